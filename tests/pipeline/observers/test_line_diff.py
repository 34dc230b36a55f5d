"""Differences of texts by lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hlo_run.pipeline.observers.line_diff import changed_blocks, changed_but_names, in_context

_LINES = st.lists(st.sampled_from("abcdefghij"), max_size=30)


@given(_LINES, _LINES)
def test_the_changes_make_one_text_of_the_other(before: list[str], after: list[str]) -> None:
    made = list(before)
    changes = changed_blocks(before, after)
    for old, new, gone, come in reversed(changes):
        assert (before[old : old + len(gone)], after[new : new + len(come)]) == (gone, come)
        made[old : old + len(gone)] = come
    assert made == after
    assert (changes == []) == (before == after)


def test_a_change_is_small() -> None:
    before = [f"line {n}" for n in range(5000)]
    after = ["new", *before[:100], "other", *before[101:3000], *before[3001:]]
    assert changed_blocks(before, after) == [
        (0, 0, [], ["new"]),
        (100, 101, ["line 100"], ["other"]),
        (3000, 3001, ["line 3000"], []),
    ]


def test_context_is_above_and_not_part_of_another_change() -> None:
    before, after = list("abcdef"), list("abXdYf")
    found = in_context(changed_blocks(before, after), before)
    assert [(old, above) for old, _, _, _, above in found] == [(2, ["a", "b"]), (4, ["d"])]


def test_names_of_values_may_change_and_must_correspond() -> None:
    before = ["%c1 = constant 1", "%0 = add %a, %b", "%1 = mul %0, %0", "return %1"]
    renumbered = ["%c = constant 1", "%0 = cast %a", "%1 = add %a, %b", "%2 = mul %1, %1", "return %2"]
    assert changed_but_names(before, renumbered) == [(1, 1, [], ["%0 = cast %a"])]
    swapped = ["%c1 = constant 1", "%0 = add %b, %a", "%1 = mul %0, %c1", "return %1"]
    assert [change[2:] for change in changed_but_names(["%a = x", "%b = y", *before], ["%a = x", "%b = y", *swapped])] == [
        (["%0 = add %a, %b", "%1 = mul %0, %0"], ["%0 = add %b, %a", "%1 = mul %0, %c1"])
    ]
