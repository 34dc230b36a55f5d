"""Corner cases of the elementwise ops; every row was also run on XLA:CPU, and agrees unless `docs/differences.md` says why."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from reference_running import INF, NAN, apply, array, assert_same, run

from hlo_run.errors import Unsupported

MIN8, MAX8, MIN32, MIN64 = -128, 127, -(2**31), -(2**63)
MAX32, MAX64, ALL64 = 2**31 - 1, 2**63 - 1, 2**64 - 1

# opcode, type, operands, result.
SAME_TYPE: list[tuple[str, str, list[list[object]], list[object]]] = [
    ("abs", "s8", [[MIN8, -3, 4]], [MIN8, 3, 4]),
    ("abs", "f32", [[-0.0, -INF, NAN, 2.5]], [0.0, INF, NAN, 2.5]),
    ("negate", "s8", [[MIN8, 5]], [MIN8, -5]),
    ("negate", "u8", [[1, 0]], [255, 0]),
    ("negate", "f32", [[0.0, -0.0, INF]], [-0.0, 0.0, -INF]),
    ("sign", "f32", [[-0.0, 0.0, NAN, -3.0, INF]], [-0.0, 0.0, NAN, -1.0, 1.0]),
    ("sign", "s32", [[-7, 0, 9]], [-1, 0, 1]),
    ("sign", "c64", [[3 + 4j, 0]], [0.6 + 0.8j, 0]),
    ("not", "s8", [[0, -1, 5]], [-1, 0, -6]),
    ("not", "u4", [[0, 15, 5]], [15, 0, 10]),
    ("floor", "f32", [[-1.5, 1.5, -0.0]], [-2.0, 1.0, -0.0]),
    ("ceil", "f32", [[-1.5, 1.5, -0.5]], [-1.0, 2.0, -0.0]),
    ("round-nearest-afz", "f32", [[2.5, -2.5, 0.49999997, -0.3, 8388609.0]], [3.0, -3.0, 0.0, -0.0, 8388609.0]),
    ("round-nearest-even", "f32", [[2.5, -2.5, 3.5, -0.5]], [2.0, -2.0, 4.0, -0.0]),
    ("popcnt", "s8", [[0, -1, 1, MIN8]], [0, 8, 1, 1]),
    ("popcnt", "s4", [[-1, 7, 0]], [4, 3, 0]),
    ("count-leading-zeros", "s8", [[0, -1, 1, 64]], [8, 0, 7, 1]),
    ("count-leading-zeros", "u64", [[0, 1, ALL64]], [64, 63, 0]),
    ("rsqrt", "f32", [[0.0, -0.0, -1.0, INF, 4.0]], [INF, -INF, NAN, 0.0, 0.5]),
    ("logistic", "f32", [[-200.0, 200.0, 0.0, NAN]], [0.0, 1.0, 0.5, NAN]),
    ("erf", "f32", [[0.0, 1.0, -1.0, INF]], [0.0, 0.8427007929497149, -0.8427007929497149, 1.0]),
    ("log", "f32", [[0.0, -1.0, 1.0, INF]], [-INF, NAN, 0.0, INF]),
    ("exponential", "f16", [[11.0, 12.0, -30.0]], [59872.0, INF, 0.0]),
    ("cbrt", "f64", [[-27.0, 8.0, -0.0]], [-3.0, 2.0, -0.0]),
    ("sqrt", "f32", [[-0.0, 2.0, -4.0]], [-0.0, 1.4142135381698608, NAN]),
    ("add", "s8", [[MAX8, MIN8], [1, -1]], [MIN8, MAX8]),
    ("add", "u4", [[15, 8], [1, 9]], [0, 1]),
    ("add", "s4", [[7, -8], [1, -1]], [-8, 7]),
    ("subtract", "u32", [[0], [1]], [2**32 - 1]),
    ("multiply", "s64", [[MIN64, 2**62], [3, 4]], [MIN64, 0]),
    ("mulhi", "u8", [[255, 16], [255, 15]], [254, 0]),
    ("mulhi", "s8", [[MIN8, -1], [MIN8, 1]], [64, -1]),
    ("mulhi", "u64", [[ALL64, 2**63], [ALL64, 2]], [ALL64 - 1, 1]),
    ("mulhi", "s64", [[MIN64, -1, MAX64], [MIN64, 1, -1]], [2**62, -1, -1]),
    ("divide", "s32", [[7, -7, 7, MIN32, 5], [2, 2, -2, -1, 0]], [3, -3, -3, MIN32, -1]),
    ("divide", "s4", [[-8, 3], [-1, 0]], [-8, -1]),
    ("divide", "u8", [[200, 5], [7, 0]], [28, 255]),
    ("divide", "u4", [[9], [0]], [15]),
    ("divide", "f32", [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]], [INF, -INF, NAN]),
    ("remainder", "s32", [[7, -7, 7, MIN32, 5], [3, 3, -3, -1, 0]], [1, -1, 1, 0, 5]),
    ("remainder", "u32", [[2**32 - 1, 9], [10, 0]], [5, 9]),
    ("remainder", "f32", [[5.0, -5.0, 5.0, INF, -0.0, 5.0], [3.0, 3.0, INF, 2.0, 1.0, 0.0]], [2.0, -2.0, 5.0, NAN, -0.0, NAN]),
    ("power", "s32", [[-1, -1, 1, 2, 0, 0, 3, 3], [-3, -2, -5, -1, -1, 0, 5, 65]], [-1, 1, 1, 0, 0, 1, 243, 3]),
    ("power", "u8", [[3, 2, 3, 255], [5, 8, 128, 129]], [243, 0, 0, 255]),
    ("power", "u4", [[3, 2], [9, 3]], [3, 8]),
    ("power", "f32", [[1.0, NAN, 0.0, -8.0, -INF, 2.0], [NAN, 0.0, -1.0, 1 / 3, 3.0, -INF]], [1.0, 1.0, INF, NAN, -INF, 0.0]),
    ("maximum", "f32", [[0.0, -0.0, NAN, 1.0], [-0.0, 0.0, 1.0, NAN]], [0.0, 0.0, NAN, NAN]),
    ("minimum", "f32", [[0.0, -0.0, NAN, 1.0], [-0.0, 0.0, 1.0, NAN]], [-0.0, -0.0, NAN, NAN]),
    ("maximum", "u8", [[200, 3], [100, 5]], [200, 5]),
    ("atan2", "f64", [[0.0, -0.0, 1.0], [-1.0, -1.0, 0.0]], [np.pi, -np.pi, np.pi / 2]),
    ("xor", "s4", [[-8, 5], [-1, 3]], [7, 6]),
    ("shift-left", "s32", [[1, 1, 1, -1], [31, 32, -1, 4]], [MIN32, 0, 0, -16]),
    ("shift-left", "s4", [[3, 3], [2, 4]], [-4, 0]),
    ("shift-right-logical", "s8", [[MIN8, -1, -1], [7, 8, -1]], [1, 0, 0]),
    ("shift-right-logical", "s4", [[-8, -1], [3, 1]], [1, 7]),
    ("shift-right-arithmetic", "s8", [[MIN8, -1, 64, -2], [7, 8, 9, -1]], [-1, -1, 0, -1]),
    ("shift-right-arithmetic", "u8", [[200, 100], [40, 40]], [255, 0]),
    ("clamp", "f32", [[0.0, 2.0, 0.0, NAN], [NAN, 5.0, -1.0, 1.0], [1.0, 1.0, 1.0, 2.0]], [NAN, 1.0, 0.0, NAN]),
    ("clamp", "u8", [[10, 200], [5, 50], [20, 100]], [10, 100]),
    ("divide", "c64", [[1 + 1j, complex(INF, 0)], [0, 1]], [complex(INF, INF), complex(INF, NAN)]),
    ("multiply", "pred", [[1, 1, 0], [1, 0, 0]], [1, 0, 0]),
    ("add", "pred", [[1, 1, 0], [1, 0, 0]], [1, 1, 0]),
    ("maximum", "pred", [[1, 0], [0, 0]], [1, 0]),
    ("minimum", "pred", [[1, 1], [0, 1]], [0, 1]),
    ("not", "pred", [[1, 0]], [0, 1]),
]


@pytest.mark.parametrize(("opcode", "dtype", "operands", "expected"), SAME_TYPE)
def test_corner_case(opcode: str, dtype: str, operands: list[list[object]], expected: list[object]) -> None:
    found = apply(opcode, dtype, [array(dtype, operand) for operand in operands])
    assert_same(found, array(dtype, expected))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e5m2"])
def test_narrow_floats_round_after_every_op(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, y, z = (rng.standard_normal(2000).astype(np.float32).astype(array(dtype, 0).dtype) for _ in range(3))
    text = f"""
      x = {dtype}[2000] parameter(0)
      y = {dtype}[2000] parameter(1)
      z = {dtype}[2000] parameter(2)
      product = {dtype}[2000] multiply(x, y)
      ROOT sum = {dtype}[2000] add(product, z)"""
    wide = [part.astype(np.float32) for part in (x, y, z)]
    product = (wide[0] * wide[1]).astype(x.dtype).astype(np.float32)
    rounded_each = (product + wide[2]).astype(x.dtype)
    rounded_once = (wide[0] * wide[1] + wide[2]).astype(x.dtype)
    assert_same(run(text, x, y, z), rounded_each)
    assert not np.array_equal(rounded_each, rounded_once), "the data must tell the two apart"


def test_transcendental_functions_are_the_nearest_f32() -> None:
    x = np.random.default_rng(4).uniform(-3, 3, 5000).astype(np.float32)
    for opcode, function in (("tanh", np.tanh), ("exponential", np.exp), ("sine", np.sin), ("asinh", np.arcsinh)):
        assert_same(apply(opcode, "f32", [x]), function(x.astype(np.float64)).astype(np.float32))


def test_large_arrays_go_in_chunks() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 70001)).astype(np.float32)
    row = rng.standard_normal(70001).astype(np.float32)
    text = """
      x = f32[70001,3] parameter(0)
      row = f32[70001] parameter(1)
      half = f32[] constant(0.5)
      halves = f32[70001,3] broadcast(half), dimensions={}
      rows = f32[70001,3] broadcast(row), dimensions={0}
      sum = f32[70001,3] add(x, rows)
      ROOT r = f32[70001,3] multiply(halves, sum)"""
    transposed = x.T
    assert_same(run(text, transposed, row), np.float32(0.5) * (transposed + row[:, None]))


COMPARES: list[tuple[str, list[bool]]] = [
    ("EQ", [False, True, False, True]),
    ("NE", [True, False, True, False]),
    ("LT", [False, False, True, False]),
    ("LE", [False, True, True, True]),
    ("GT", [False, False, False, False]),
    ("GE", [False, True, False, True]),
]


@pytest.mark.parametrize(("direction", "expected"), COMPARES)
def test_compare_floats_partially(direction: str, expected: list[bool]) -> None:
    x, y = array("bf16", [NAN, -0.0, 1.0, INF]), array("bf16", [NAN, 0.0, 2.0, INF])
    found = apply("compare", "bf16", [x, y], "pred", f", direction={direction}")
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "f8e5m2", "f8e4m3fn"])
def test_compare_total_order(dtype: str) -> None:
    numbers = array(dtype, [-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
    negative_nan = np.copysign(np.float64(NAN), -1.0)
    line = np.concatenate([np.asarray([negative_nan]).astype(numbers.dtype), numbers, array(dtype, [NAN])])
    assert np.signbit(line[0].astype(np.float32)), "the conversion must keep the NaN's sign"
    found = apply("compare", dtype, [line[:-1], line[1:]], "pred", ", direction=LT, type=TOTALORDER")
    assert found.all()


def test_compare_unsigned_and_pred() -> None:
    x, y = array("u8", [200, 3]), array("u8", [100, 3])
    assert apply("compare", "u8", [x, y], "pred", ", direction=GT").tolist() == [True, False]
    p, q = np.array([False, True]), np.array([True, True])
    assert apply("compare", "pred", [p, q], "pred", ", direction=LT").tolist() == [True, False]


def test_select_takes_a_scalar_predicate_too() -> None:
    x, y = array("bf16", [1, 2]), array("bf16", [3, 4])
    text = """
      p = pred[] parameter(0)
      x = bf16[2] parameter(1)
      y = bf16[2] parameter(2)
      ROOT r = bf16[2] select(p, x, y)"""
    assert_same(run(text, np.array(False), x, y), y)
    each = apply("is-finite", "bf16", [array("bf16", [INF, 1])], "pred")
    assert each.tolist() == [False, True]


def test_complex_parts() -> None:
    z = array("c64", [1 + 2j, complex(-0.0, INF)])
    assert_same(apply("real", "c64", [z], "f32"), array("f32", [1.0, -0.0]))
    assert_same(apply("imag", "c64", [z], "f32"), array("f32", [2.0, INF]))
    assert_same(apply("abs", "c64", [array("c64", [3 + 4j])], "f32"), array("f32", [5.0]))
    back = apply("complex", "f32", [array("f32", [1.0, NAN]), array("f32", [INF, 2.0])], "c64")
    assert_same(back, array("c64", [complex(1, INF), complex(NAN, 2)]))
    assert_same(apply("imag", "f32", [array("f32", [7.0])]), array("f32", [0.0]))


def test_no_warning_leaves_numpy() -> None:
    # Warnings are errors in this suite; overflow, 0/0 and NaN conversions are ordinary here.
    x = array("f32", [INF, 0.0, 3e38])
    apply("divide", "f32", [x, array("f32", [INF, 0.0, 1e-10])])
    apply("convert", "f32", [array("f32", [NAN, INF, 1e30])], "s8")
    apply("convert", "f32", [array("f32", [NAN, INF, 1e30])], "f8e4m3fn")
    apply("multiply", "bf16", [array("bf16", [3e38]), array("bf16", [3e38])])


def test_undefined_kind_is_unsupported() -> None:
    text = """HloModule m
    ENTRY e {
      x = c64[2] parameter(0)
      ROOT r = c64[2] remainder(x, x)
    }"""
    with pytest.raises(Unsupported) as caught:
        run(text, array("c64", [1, 2]))
    assert "remainder" in caught.value.message
    assert caught.value.where is not None
    assert caught.value.where.line == 4


def test_reference_types_are_ml_dtypes() -> None:
    assert apply("negate", "bf16", [array("bf16", [1.5])]).dtype == ml_dtypes.bfloat16
