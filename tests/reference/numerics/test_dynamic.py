"""Dynamic sizes: an op on a dynamic array equals the op on the array cut to its size, and the buffer keeps the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference_running import Array, array, assert_same

import hlo_run
from hlo_run.errors import Unsupported, UsageError
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.numerics.dynamic import common_factors

HEAD = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
most { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(a, b) }
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT }
ENTRY e {
  p = f32[8,6] parameter(0)
  n = s32[] parameter(1)
  z = f32[] constant(0)
  d = f32[<=8,6] set-dimension-size(p, n), dimensions={0}
"""
DATA = (np.random.default_rng(3).integers(-50, 50, (8, 6)) + 0.5).astype(np.float32)


def run(body: str, size: int = 5) -> Any:
    """Return the result of a body in which `d` is DATA with `size` rows."""
    return evaluate(hlo_run.parse(HEAD + body + "\n}", "d.hlo"), [DATA, array("s32", size)])


CUT = DATA[:5]
WHOLE_MOVES = [
    ("ROOT r = f32[6] reduce(d, z), dimensions={0}, to_apply=add", CUT.sum(0)),
    ("m = f32[] constant(-inf)\nROOT r = f32[6] reduce(d, m), dimensions={0}, to_apply=most", CUT.max(0)),
    ("t = f32[6,<=8] transpose(d), dimensions={1,0}\nROOT r = f32[6] reduce(t, z), dimensions={1}, to_apply=add", CUT.sum(0)),
    ("ROOT r = f32[6,6] dot(d, d), lhs_contracting_dims={0}, rhs_contracting_dims={0}", CUT.T @ CUT),
    ("ROOT r = f32[<=8,6] negate(d)", -CUT),
    ("ROOT r = f32[<=8,6] add(d, p)", 2 * CUT),
    ("ROOT r = f32[<=8,6] add(p, d)", 2 * CUT),
    ("c = pred[<=8,6] compare(d, p), direction=NE\nROOT r = f32[<=8,6] select(c, d, d)", CUT),
    ("ROOT r = f32[<=16,6] concatenate(d, p), dimensions={0}", np.concatenate([CUT, DATA])),
    ("ROOT r = f32[<=8,6] sort(d), dimensions={0}, to_apply=less", np.sort(CUT, 0)),
    ("ROOT r = f32[<=8,6] reverse(d), dimensions={0}", CUT[::-1]),
    ("ROOT r = f32[<=11,6] pad(d, z), padding=1_2x0_0", np.pad(CUT, ((1, 2), (0, 0)))),
    ("ROOT r = f32[<=7,6] reduce-window(d, z), window={size=2x1}, to_apply=add", CUT[1:] + CUT[:-1]),
    ("ROOT r = f32[<=48] reshape(d)", CUT.reshape(-1)),
    ("ROOT r = f32[<=8,2,3] reshape(d)", CUT.reshape(5, 2, 3)),
    ("ROOT r = f32[<=4,2,6] reshape(d)", None),
    ("ROOT r = f32[3,<=8,6] broadcast(d), dimensions={1,2}", np.broadcast_to(CUT, (3, 5, 6))),
    ("ROOT r = f32[<=8,2] slice(d), slice={[0:8], [1:3]}", CUT[:, 1:3]),
    ("ROOT r = f32[2,6] slice(d), slice={[1:3], [0:6]}", CUT[1:3]),
    ("ROOT r = bf16[<=8,6] convert(d)", CUT.astype(array("bf16", 0).dtype)),
    ("i = s32[] constant(2)\nROOT r = f32[<=8,2] dynamic-slice(d, i, i), dynamic_slice_sizes={8,2}", CUT[:, 2:4]),
    ("i = s32[] constant(9)\nROOT r = f32[1,2] dynamic-slice(d, i, i), dynamic_slice_sizes={1,2}", DATA[7:, 4:]),
]


@pytest.mark.parametrize(("body", "expected"), WHOLE_MOVES)
def test_an_op_sees_only_what_counts(body: str, expected: Array | None) -> None:
    if expected is None:
        with pytest.raises(Unsupported, match="do not divide"):
            run(body)
    else:
        assert_same(run(body), np.asarray(expected))


@pytest.mark.parametrize(("size", "counted"), [(0, 0), (3, 3), (8, 8), (11, 8), (-2, 0)])
def test_sizes_are_kept_within_the_bound(size: int, counted: int) -> None:
    assert run("ROOT s = s32[] get-dimension-size(d), dimensions={0}", size) == counted
    assert run("ROOT s = s32[] get-dimension-size(d), dimensions={1}", size) == 6
    assert_same(run("ROOT r = f32[<=8,6] copy(d)", size), DATA[:counted])


def test_the_buffer_keeps_what_a_smaller_size_hides() -> None:
    body = "eight = s32[] constant(8)\nROOT r = f32[8,6] set-dimension-size(d, eight), dimensions={0}"
    assert_same(run(body), DATA)


def test_dynamic_reshape_takes_its_sizes_from_operands() -> None:
    body = """a = s32[] constant(10)
    b = s32[] constant(3)
    ROOT r = f32[<=16,<=3] dynamic-reshape(d, a, b)"""
    assert_same(run(body), CUT.reshape(10, 3))
    with pytest.raises(Unsupported, match=r"'dynamic-reshape' of \[4, 6\] to \[10, 3\]"):
        run(body, 4)


def test_the_static_crossings() -> None:
    body = """s = (f32[8,6], s32[], s32[]) custom-call(d), custom_call_target="PadToStatic"
    x = f32[8,6] get-tuple-element(s), index=0
    rows = s32[] get-tuple-element(s), index=1
    columns = s32[] get-tuple-element(s), index=2
    two = f32[8,6] add(x, x)
    ROOT r = f32[<=8,6] custom-call(two, rows, columns), custom_call_target="SliceToDynamic" """
    assert_same(run(body), 2 * CUT)


def test_sizes_travel_through_tuples_calls_and_loops() -> None:
    text = """HloModule m
    shorter { p = (s32[], f32[<=8]) parameter(0)
      x = f32[<=8] get-tuple-element(p), index=1
      n = s32[] get-dimension-size(x), dimensions={0}
      three = s32[] constant(3)
      ROOT c = pred[] compare(n, three), direction=GT }
    step { p = (s32[], f32[<=8]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      x = f32[<=8] get-tuple-element(p), index=1
      n = s32[] get-dimension-size(x), dimensions={0}
      one = s32[] constant(1)
      m = s32[] subtract(n, one)
      y = f32[<=8] set-dimension-size(x, m), dimensions={0}
      z = f32[<=8] add(y, y)
      j = s32[] add(i, one)
      ROOT t = (s32[], f32[<=8]) tuple(j, z) }
    loop { x = f32[<=8] parameter(0)
      i = s32[] constant(0)
      t = (s32[], f32[<=8]) tuple(i, x)
      ROOT w = (s32[], f32[<=8]) while(t), condition=shorter, body=step }
    ENTRY e { x = f32[<=8] parameter(0)
      ROOT c = (s32[], f32[<=8]) call(x), to_apply=loop }"""
    module = hlo_run.parse(text)
    x = np.arange(1, 7, dtype=np.float32)
    rounds, rest = evaluate(module, [x])
    assert rounds == 3
    assert_same(np.asarray(rest), 8 * x[:3])
    with pytest.raises(UsageError, match=r"argument 0 \(%x\.\d\): expected f32\[<=8\], found float32\[9\]"):
        evaluate(module, [np.ones(9, np.float32)])


def test_groups_of_dimensions_that_stay_together() -> None:
    assert common_factors((8, 6), (48,)) == [([0, 1], [0])]
    assert common_factors((8, 6), (8, 2, 3)) == [([0], [0]), ([1], [1, 2])]
    assert common_factors((4, 1, 6), (2, 2, 6)) == [([0], [0, 1]), ([1, 2], [2])]
    assert common_factors((), (1, 1)) == [([], [0]), ([], [1])]


DROPS = """HloModule m
add { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b) }
same { p = s32[<=4] parameter(0)
  ROOT c = s32[<=4] copy(p) }
fixed { p = s32[4] parameter(0)
  ROOT c = s32[4] copy(p) }
ENTRY e {
  y = s32[4] parameter(0)
  n = s32[] parameter(1)
  z = s32[] constant(0)
  x = s32[<=4] set-dimension-size(y, n), dimensions={0}
"""


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        ("call", "w = s32[4] call(x), to_apply=same"),
        ("call", "w = s32[4] call(x), to_apply=fixed"),
        ("fusion", "w = s32[4] fusion(x), kind=kLoop, calls=same"),
        ("conditional", "w = s32[4] conditional(z, x, y), branch_computations={same, fixed}"),
        ("conditional", "w = s32[<=4] conditional(z, x, y), branch_computations={fixed, same}"),
        ("tuple", "t = (s32[4]) tuple(x)\n  w = s32[4] get-tuple-element(t), index=0"),
        ("get-tuple-element", "t = (s32[<=4]) tuple(x)\n  w = s32[4] get-tuple-element(t), index=0"),
        ("opt-barrier", "w = s32[4] opt-barrier(x)"),
        ("slice", "w = s32[4] slice(x), slice={[0:4]}"),
        ("dynamic-slice", "w = s32[4] dynamic-slice(x, z), dynamic_slice_sizes={4}"),
        ("dynamic-update-slice", "w = s32[4] dynamic-update-slice(x, y, z)"),
        ("set-dimension-size", "w = s32[4] set-dimension-size(y, n), dimensions={0}"),
        ("call", "s = ((s32[<=4]), s32[4], u32[]) call-start(x), to_apply=same\n  w = s32[4] call-done(s)"),
        ("async-done", "s = ((s32[<=4]), s32[<=4], u32[]) call-start(x), to_apply=same\n  w = s32[4] call-done(s)"),
        ("map", "w = s32[4] map(x, x), dimensions={0}, to_apply=add"),
    ],
)
def test_a_shape_that_drops_a_size_is_refused(opcode: str, body: str) -> None:
    module = hlo_run.parse(f"{DROPS}  {body}\n  ROOT r = s32[] reduce(w, z), dimensions={{0}}, to_apply=add\n}}")
    y = np.asarray([1, 2, 3, 4], np.int32)
    with pytest.raises(Unsupported, match=f"'{opcode}' of dynamic dimensions to"):
        evaluate(module, [y, np.asarray(3, np.int32)])
    whole = evaluate(module, [y, np.asarray(4, np.int32)])
    np.testing.assert_array_equal(whole, 20 if opcode == "map" else 10)
