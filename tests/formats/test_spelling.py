"""Text for an older jaxlib is spelled as that reads it."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.formats import spelling

_TEXT = """HloModule m

ENTRY %e (a: f32[4,6], b: f32[4,6]) -> (pred[4,6], (f32[4,2], s32[4,2]), f32[4,6]) {
  %a = f32[4,6]{1,0} parameter(0), metadata={op_name="x = compare(a, b), order=TOTAL"}
  %b = f32[4,6]{1,0} parameter(1), origin={(),[""]}
  %c = pred[4,6]{1,0} compare(%a, %b), direction=LT, order=TOTAL, metadata={op_name="c"}
  %k = (f32[4,2]{1,0}, s32[4,2]{1,0}) topk(%a), k=2, largest=true, is_stable=true
  %d = f32[4,6]{1,0} collective-broadcast(%a), replica_groups={{0}}, has_dynamic_root=false, origin={{"a"},["f/g"]}
  ROOT %r = (pred[4,6]{1,0}, (f32[4,2]{1,0}, s32[4,2]{1,0}), f32[4,6]{1,0}) tuple(%c, %k, %d)
}
"""


def test_what_an_older_parser_does_not_know_is_spelled_otherwise() -> None:
    lines = [line.strip() for line in spelling.older(_TEXT).splitlines()]
    assert '%a = f32[4,6]{1,0} parameter(0), metadata={op_name="x = compare(a, b), order=TOTAL"}' in lines
    assert "%b = f32[4,6]{1,0} parameter(1), origin={[synthetic_call]}" in lines
    assert '%c = pred[4,6]{1,0} compare(%a, %b), direction=LT, type=TOTALORDER, metadata={op_name="c"}' in lines
    assert "%k = (f32[4,2]{1,0}, s32[4,2]{1,0}) topk(%a), k=2, largest=true" in lines
    assert '%d = f32[4,6]{1,0} collective-broadcast(%a), replica_groups={{0}}, origin={{"a"}}' in lines


def test_the_older_spelling_means_the_same_but_for_what_it_cannot_say() -> None:
    again = hlo_run.parse(spelling.older(_TEXT)).to_string()
    assert again == hlo_run.parse(_TEXT).to_string().replace(',["f/g"]', "")


@pytest.mark.parametrize(("release", "changes"), [((), False), ((0, 10, 2), True), ((0, 12, 0, 1), False)])
def test_only_an_older_jaxlib_gets_the_older_spelling(
    release: tuple[int, ...], changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spelling, "installed_release", lambda: release)
    assert (spelling.for_installed(_TEXT) != _TEXT) is changes
