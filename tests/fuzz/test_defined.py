"""Results that HLO leaves open, which are not compared with real XLA's."""

from __future__ import annotations

import pytest

from hlo_run.fuzz.defined import open_part
from hlo_run.ops.parse import parse

_REDUCE = """
r {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT o = f32[] {op} }}
ENTRY e {{ x = f32[4] parameter(0) i = f32[] constant({init}) ROOT y = f32[] reduce(x, i), dimensions={{0}}, to_apply=r }}
"""
_SORT = """
l {{ a = f32[] parameter(0) b = f32[] parameter(1) {more} ROOT o = pred[] compare(a, b), direction={direction} }}
ENTRY e {{ x = f32[4] parameter(0) y = s32[4] parameter(1)
  ROOT s = {shape} sort({operands}), dimensions={{0}}, to_apply=l{stable} }}
"""
_MORE = "c = s32[] parameter(2) d = s32[] parameter(3)"
_PAIR = "(f32[4], s32[4])"


@pytest.mark.parametrize(
    ("op", "init", "reason"),
    [
        ("add(a, b)", "0", ""),
        ("maximum(b, a)", "-inf", ""),
        ("minimum(a, b)", "inf", ""),
        ("multiply(a, b)", "1", ""),
        ("add(a, b)", "1", "y: the init value is not the identity"),
        ("maximum(a, b)", "0", "y: the init value is not the identity"),
        ("subtract(a, b)", "0", "y: the order of the reduction is open"),
        ("add(a, a)", "0", "y: the order of the reduction is open"),
    ],
)
def test_reductions(op: str, init: str, reason: str) -> None:
    assert open_part(parse(_REDUCE.format(op=op, init=init)), in_range=True) == reason


@pytest.mark.parametrize(
    ("direction", "operands", "stable", "is_open"),
    [("LT", "x", "", False), ("LE", "x", "", True), ("GT", "x, y", "", True), ("GT", "x, y", ", is_stable=true", False)],
)
def test_sorts(direction: str, operands: str, stable: str, is_open: bool) -> None:
    pair = "," in operands
    text = _SORT.format(
        direction=direction, operands=operands, stable=stable, more=_MORE if pair else "", shape=_PAIR if pair else "f32[4]"
    )
    assert bool(open_part(parse(text), in_range=True)) == is_open


@pytest.mark.parametrize(
    "body",
    [
        "ROOT y = s32[4] convert(x)",
        "i = s32[4] iota(), iota_dimension=0 ROOT y = s32[4] divide(i, i)",
    ],
)
def test_conversions_and_divisions_need_ranges(body: str) -> None:
    module = parse(f"ENTRY e {{ x = f32[4] parameter(0) {body} }}")
    assert open_part(module, in_range=False)
    assert not open_part(module, in_range=True)


@pytest.mark.parametrize(("second", "is_open"), [("maximum(b, d)", False), ("maximum(a, d)", True), ("subtract(b, d)", True)])
def test_reductions_of_several_arrays(second: str, is_open: bool) -> None:
    text = f"""
r {{ a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3) s = f32[] add(a, c)
  m = f32[] {second} ROOT t = (f32[], f32[]) tuple(s, m) }}
ENTRY e {{ x = f32[4] parameter(0) z = f32[] constant(0) i = f32[] constant(-inf)
  ROOT y = (f32[], f32[]) reduce(x, x, z, i), dimensions={{0}}, to_apply=r }}
"""
    assert bool(open_part(parse(text), in_range=True)) == is_open
