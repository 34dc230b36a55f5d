"""Reductions, windows and maps, with reducers that numpy has and reducers that it lacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference_running import Array, array, assert_same, run

from hlo_run.reference.numerics import reduce

ADD = "add {\n a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT c = T[] OP(a, b)\n}\n"


def _reduce(opcode: str, dtype: str, x: Array, init: float, dims: str, out: str) -> Array:
    shape = ",".join(map(str, x.shape))
    text = "HloModule m\n" + ADD.replace("T[", f"{dtype}[").replace("OP", opcode)
    text += f"""ENTRY e {{
      x = {dtype}[{shape}] parameter(0)
      init = {dtype}[] parameter(1)
      ROOT r = {dtype}[{out}] reduce(x, init), dimensions={{{dims}}}, to_apply=add
    }}"""
    return run(text, x, array(dtype, init))


def test_float_sums_round_once() -> None:
    x = np.random.default_rng(8).uniform(0, 1, (3, 5000)).astype(array("bf16", 0).dtype)
    found = _reduce("add", "bf16", x, 0.5, "1", "3")
    exact = [math.fsum(row) + 0.5 for row in x.astype(np.float64)]
    assert_same(found, np.asarray(exact, np.float32).astype(x.dtype))
    single = np.random.default_rng(9).standard_normal((4, 3, 70000)).astype(np.float32)
    sums = _reduce("add", "f32", single, 0.0, "0,2", "3")
    # An f32 sum loses the last digits; an f64 sum rounds to the nearest f32.
    assert_same(sums, np.asarray([math.fsum(single[:, k].ravel()) for k in range(3)], np.float32))


@pytest.mark.parametrize(
    ("opcode", "function"), [("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum), ("minimum", np.minimum)]
)
@pytest.mark.parametrize("dtype", ["s8", "u32", "s64"])
def test_ints_wrap(opcode: str, function: np.ufunc, dtype: str) -> None:
    kind = array(dtype, 0).dtype
    x = np.random.default_rng(10).integers(-100 if kind.kind == "i" else 0, 100, (4, 5, 6)).astype(kind)
    expected = function(function.reduce(x, axis=(0, 2), dtype=kind), kind.type(3))
    assert_same(_reduce(opcode, dtype, x, 3, "0,2", "5"), expected)


def test_pred_and_bits() -> None:
    x = np.array([[True, False], [False, False]])
    assert _reduce("or", "pred", x, 0, "0", "2").tolist() == [True, False]
    assert _reduce("add", "pred", x, 0, "1", "2").tolist() == [True, False]
    assert _reduce("and", "pred", x, 1, "0", "2").tolist() == [False, False]
    bits = array("u8", [0b1100, 0b1010])
    assert_same(_reduce("xor", "u8", bits, 1, "0", ""), array("u8", 0b0111))


def test_nan_wins_a_maximum() -> None:
    x = array("f32", [[1, np.nan], [3, 2]])
    assert_same(_reduce("maximum", "f32", x, -np.inf, "0", "2"), array("f32", [3, np.nan]))


def test_no_elements_leave_the_init() -> None:
    assert_same(_reduce("maximum", "f32", array("f32", np.zeros((0, 2))), 5, "0", "2"), array("f32", [5, 5]))
    assert_same(_reduce("add", "bf16", array("bf16", np.zeros((2, 0))), 5, "1", "2"), array("bf16", [5, 5]))


def test_narrow_products_round_at_every_step() -> None:
    x = array("bf16", np.random.default_rng(11).uniform(0.5, 1.5, 200))
    step = array("bf16", 1.0)
    for value in x:
        step = (step.astype(np.float32) * np.float32(value)).astype(x.dtype)
    assert_same(_reduce("multiply", "bf16", x, 1, "0", ""), step)


ARGMAX = """HloModule m
pick {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GE
  v = f32[] select(gt, a, b)
  n = s32[] select(gt, i, j)
  ROOT t = (f32[], s32[]) tuple(v, n)
}
ENTRY e {
  x = f32[SIZE] parameter(0)
  i = s32[SIZE] iota(), iota_dimension=DIM
  low = f32[] constant(-inf)
  none = s32[] constant(-1)
  ROOT r = (f32[OUT], s32[OUT]) reduce(x, i, low, none), dimensions={DIM}, to_apply=pick
}"""


@pytest.mark.parametrize(("size", "dim"), [((3, 50), 1), ((40, 5), 0), ((3, reduce.SEQUENTIAL_STEPS + 7), 1)])
def test_variadic_reduce(size: tuple[int, int], dim: int) -> None:
    x = np.random.default_rng(12).integers(0, 30, size).astype(np.float32)
    text = ARGMAX.replace("SIZE", ",".join(map(str, size))).replace("DIM", str(dim)).replace("OUT", str(size[1 - dim]))
    values, places = run(text, x)
    assert_same(values, x.max(axis=dim))
    assert_same(places, x.argmax(axis=dim).astype(np.int32))


def test_a_reducer_with_a_loop_runs_element_by_element() -> None:
    text = """HloModule m
    more { p = (s32[], s32[]) parameter(0)
      a = s32[] get-tuple-element(p), index=0
      zero = s32[] constant(0)
      ROOT c = pred[] compare(a, zero), direction=GT }
    step { p = (s32[], s32[]) parameter(0)
      a = s32[] get-tuple-element(p), index=0
      b = s32[] get-tuple-element(p), index=1
      one = s32[] constant(1)
      c = s32[] subtract(a, one)
      d = s32[] add(b, one)
      ROOT t = (s32[], s32[]) tuple(c, d) }
    slow_add { a = s32[] parameter(0)
      b = s32[] parameter(1)
      t = (s32[], s32[]) tuple(b, a)
      w = (s32[], s32[]) while(t), condition=more, body=step
      ROOT r = s32[] get-tuple-element(w), index=1 }
    ENTRY e { x = s32[3,4] parameter(0)
      z = s32[] constant(0)
      ROOT r = s32[3] reduce(x, z), dimensions={1}, to_apply=slow_add }"""
    x = np.random.default_rng(13).integers(0, 5, (3, 4)).astype(np.int32)
    assert_same(run(text, x), x.sum(axis=1, dtype=np.int32))


def test_map_applies_a_scalar_computation() -> None:
    text = """HloModule m
    f { a = f32[] parameter(0)
      b = f32[] parameter(1)
      two = f32[] constant(2)
      m = f32[] multiply(a, two)
      ROOT s = f32[] subtract(m, b) }
    ENTRY e { x = f32[2,3] parameter(0)
      y = f32[2,3] parameter(1)
      ROOT r = f32[2,3] map(x, y), dimensions={0,1}, to_apply=f }"""
    x, y = (np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32) for seed in (14, 15))
    assert_same(run(text, x, y), x * np.float32(2) - y)


def _window_positions(size: int, out: int, stride: int, low: int, base: int, dilation: int, window: int) -> list[list[int]]:
    """Return the elements in the window of each output of one dimension, from the dilated and padded line."""
    found: list[list[int]] = []
    for o in range(out):
        places = [o * stride + k * dilation - low for k in range(window)]
        found.append([p // base for p in places if p >= 0 and p % base == 0 and p // base < size])
    return found


def test_products_of_windows_that_begin_with_zero_do_not_overflow() -> None:
    text = "HloModule m\n" + ADD.replace("T[", "f32[").replace("OP", "multiply")
    text += """ENTRY e {
      x = f32[4] parameter(0)
      zero = f32[] constant(0)
      ROOT r = f32[3] reduce-window(x, zero), window={size=2}, to_apply=add
    }"""
    assert_same(run(text, array("f32", [1e30, -1e30, 1e30, np.inf])), array("f32", [-0.0, -0.0, np.nan]))


def test_reduce_window_skips_padding_and_holes() -> None:
    x = np.random.default_rng(16).integers(-50, 50, (6, 5)).astype(np.int32)
    text = "HloModule m\n" + ADD.replace("T[", "s32[").replace("OP", "add")
    text += """ENTRY e {
      x = s32[6,5] parameter(0)
      one = s32[] constant(1)
      ROOT r = s32[4,8] reduce-window(x, one), window={size=3x2 stride=2x1 pad=1_2x-1_1 lhs_dilate=1x2 rhs_dilate=1x1},
        to_apply=add
    }"""
    rows = _window_positions(6, 4, 2, 1, 1, 1, 3)
    columns = _window_positions(5, 8, 1, -1, 2, 1, 2)
    expected = np.array([[1 + sum(int(x[i, j]) for i in r for j in c) for c in columns] for r in rows], np.int32)
    assert_same(run(text, x), expected)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("size", "by_steps"), [(6, True), (16, True), (17, False)])
def test_short_windows_of_narrow_floats_round_at_every_step(name: str, size: int, by_steps: bool) -> None:
    text = "HloModule m\n" + ADD.replace("T[", f"{name}[").replace("OP", "add")
    text += f"""ENTRY e {{
      x = {name}[{size},8] parameter(0)
      zero = {name}[] constant(0)
      ROOT r = {name}[{size},8] reduce-window(x, zero), window={{size={size}x1 pad={size - 1}_0x0_0}}, to_apply=add
    }}"""
    x = array(name, np.random.default_rng(21).standard_normal((size, 8)) * 9)
    steps, exact = x.copy(), np.cumsum(x.astype(np.float64), axis=0).astype(x.dtype)
    for row in range(1, size):
        steps[row] = (steps[row - 1].astype(np.float32) + x[row].astype(np.float32)).astype(x.dtype)
    assert (steps != exact).any(), "the test tells the two apart"
    assert_same(run(text, x), steps if by_steps else exact)


def test_variadic_reduce_window() -> None:
    text = (
        ARGMAX[: ARGMAX.index("ENTRY")]
        + """ENTRY e {
      x = f32[8] parameter(0)
      i = s32[8] iota(), iota_dimension=0
      low = f32[] constant(-inf)
      none = s32[] constant(-1)
      ROOT r = (f32[6], s32[6]) reduce-window(x, i, low, none), window={size=3}, to_apply=pick
    }"""
    )
    x = np.random.default_rng(17).permutation(8).astype(np.float32)
    values, places = run(text, x)
    assert_same(values, np.array([x[k : k + 3].max() for k in range(6)], np.float32))
    assert_same(places, np.array([k + x[k : k + 3].argmax() for k in range(6)], np.int32))


def test_select_and_scatter_takes_the_first_of_equals() -> None:
    text = """HloModule m
    ge { a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = pred[] compare(a, b), direction=GE }
    add { a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = f32[] add(a, b) }
    ENTRY e { x = f32[6] parameter(0)
      s = f32[3] parameter(1)
      z = f32[] constant(10)
      ROOT r = f32[6] select-and-scatter(x, s, z), window={size=3 stride=2 pad=0_1}, select=ge, scatter=add }"""
    x, source = array("f32", [1, 5, 5, 0, 2, 2]), array("f32", [1, 2, 4])
    assert_same(run(text, x, source), array("f32", [10, 11, 12, 10, 14, 10]))
