"""Which comparators order by keys, and by which."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis.sort_order import sort_order

HEAD = """HloModule m
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
"""
TAIL = """
ENTRY e { x = f32[8] parameter(0)
  y = s32[8] parameter(1)
  ROOT s = (f32[8], s32[8]) sort(x, y), dimensions={0}, to_apply=less }
"""


def order(*lines: str) -> list[tuple[tuple[int, ...], bool, bool]] | None:
    module = hlo_run.parse(HEAD + "\n".join(f"  {line}" for line in lines) + "}" + TAIL)
    (comparator,) = module.entry.root.called["to_apply"]
    keys = sort_order(comparator)
    return None if keys is None else [(key.operands, key.descending, key.total_order) for key in keys]


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        ("compare(a, b), direction=LT", ((0,), False, False)),
        ("compare(b, a), direction=LT", ((0,), True, False)),
        ("compare(a, b), direction=GT, type=TOTALORDER", ((0,), True, True)),
        ("compare(j, i), direction=GT", ((1,), False, False)),
    ],
)
def test_one_comparison(compare: str, expected: tuple[tuple[int, ...], bool, bool]) -> None:
    assert order(f"ROOT c = pred[] {compare}") == [expected]


def test_a_function_of_both_operands() -> None:
    lines = ("c = f32[] convert(i)", "d = f32[] convert(j)", "e = f32[] multiply(a, c)", "f = f32[] multiply(b, d)")
    assert order(*lines, "ROOT r = pred[] compare(e, f), direction=GT") == [((0, 1), True, False)]


def test_a_second_key_decides_between_equals() -> None:
    less = "l = pred[] compare(i, j), direction=LT"
    then = "t = pred[] compare(a, b), direction=GT"
    expected = [((1,), False, False), ((0,), True, False)]
    assert order(less, then, "q = pred[] compare(j, i), direction=EQ", "ROOT r = pred[] select(q, t, l)") == expected
    equal = "q = pred[] compare(i, j), direction=EQ"
    assert order(less, then, equal, "b2 = pred[] and(t, q)", "ROOT r = pred[] or(b2, l)") == expected
    other = "m = pred[] compare(j, i), direction=LT"
    assert order(less, then, other, "q = pred[] compare(m, l), direction=EQ", "ROOT r = pred[] select(q, t, l)") == expected


@pytest.mark.parametrize(
    "lines",
    [
        ("ROOT r = pred[] compare(a, b), direction=LE",),  # is not strict
        ("n = f32[] negate(b)", "ROOT r = pred[] compare(a, n), direction=LT"),  # different functions of the two
        ("c = f32[] add(a, b)", "ROOT r = pred[] compare(c, b), direction=LT"),  # one side reads both elements
        ("c = f32[] constant(0)", "ROOT r = pred[] compare(a, c), direction=LT"),
        (
            "l = pred[] compare(i, j), direction=LT",  # the equality is of another key
            "q = pred[] compare(a, b), direction=EQ",
            "t = pred[] compare(b, a), direction=LT",
            "ROOT r = pred[] select(q, t, l)",
        ),
        (
            "l = pred[] compare(a, b), direction=LT",  # NaN is not equal to itself: no key says so
            "q = pred[] compare(a, b), direction=EQ",
            "t = pred[] compare(i, j), direction=LT",
            "ROOT r = pred[] select(q, t, l)",
        ),
    ],
)
def test_other_comparators_have_no_keys(lines: tuple[str, ...]) -> None:
    assert order(*lines) is None
