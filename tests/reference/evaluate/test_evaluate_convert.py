"""Conversions: saturation, wrapping, rounding, bits; expected values are by hand and confirmed on XLA:CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from reference_running import INF, NAN, apply, array, assert_same, run

FLOATS = [NAN, INF, -INF, 300.7, -300.7, 1.5, -1.5, -0.3, 3e9, 1e30]

TO_INTS: list[tuple[str, list[int]]] = [
    ("s2", [0, 1, -2, 1, -2, 1, -1, 0, 1, 1]),
    ("s4", [0, 7, -8, 7, -8, 1, -1, 0, 7, 7]),
    ("u4", [0, 15, 0, 15, 0, 1, 0, 0, 15, 15]),
    ("s8", [0, 127, -128, 127, -128, 1, -1, 0, 127, 127]),
    ("u8", [0, 255, 0, 255, 0, 1, 0, 0, 255, 255]),
    ("s32", [0, 2**31 - 1, -(2**31), 300, -300, 1, -1, 0, 2**31 - 1, 2**31 - 1]),
    ("u32", [0, 2**32 - 1, 0, 300, 0, 1, 0, 0, 3000000000, 2**32 - 1]),
    ("s64", [0, 2**63 - 1, -(2**63), 300, -300, 1, -1, 0, 3000000000, 2**63 - 1]),
    ("u64", [0, 2**64 - 1, 0, 300, 0, 1, 0, 0, 3000000000, 2**64 - 1]),
]


@pytest.mark.parametrize(("target", "expected"), TO_INTS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_saturate_to_ints(source: str, target: str, expected: list[int]) -> None:
    assert_same(apply("convert", source, [array(source, FLOATS)], target), array(target, expected))


def test_to_pred() -> None:
    assert apply("convert", "f32", [array("f32", [NAN, 0.0, -0.0, 1e-40])], "pred").tolist() == [True, False, False, True]
    assert apply("convert", "s8", [array("s8", [0, -1, 2])], "pred").tolist() == [False, True, True]


def test_ints_wrap_and_extend_by_the_source() -> None:
    assert_same(apply("convert", "s32", [array("s32", [300, -300, 7])], "s8"), array("s8", [44, -44, 7]))
    assert_same(apply("convert", "s8", [array("s8", [-1])], "u32"), array("u32", [2**32 - 1]))
    assert_same(apply("convert", "u8", [array("u8", [255])], "s32"), array("s32", [255]))
    assert_same(apply("convert", "s32", [array("s32", [300, -300, 7])], "s4"), array("s4", [-4, 4, 7]))
    assert_same(apply("convert", "pred", [np.array([True, False])], "s4"), array("s4", [1, 0]))


OVERFLOWS: list[tuple[str, list[float]]] = [
    ("f16", [NAN, INF, -INF, INF, 1.0]),
    ("bf16", [NAN, INF, -INF, 1e30, 1.0]),
    ("f8e5m2", [NAN, INF, -INF, INF, 1.0]),
    ("f8e4m3", [NAN, INF, -INF, INF, 1.0]),
    ("f8e4m3fn", [NAN, NAN, NAN, NAN, 1.0]),
    ("f8e4m3fnuz", [NAN, NAN, NAN, NAN, 1.0]),
    ("f8e5m2fnuz", [NAN, NAN, NAN, NAN, 1.0]),
    ("f8e3m4", [NAN, INF, -INF, INF, 1.0]),
]


@pytest.mark.parametrize(("target", "expected"), OVERFLOWS)
def test_overflow_of_narrow_floats(target: str, expected: list[float]) -> None:
    found = apply("convert", "f32", [array("f32", [NAN, INF, -INF, 1e30, 1.0])], target)
    assert_same(found, array(target, expected) if target != "bf16" else array("f32", expected).astype(ml_dtypes.bfloat16))


def test_fp4_saturates() -> None:
    found = apply("convert", "f32", [array("f32", [100.0, -100.0, INF, 2.4, 2.5])], "f4e2m1fn")
    assert_same(found, array("f4e2m1fn", [6.0, -6.0, 6.0, 2.0, 2.0]))


def test_ties_go_to_even() -> None:
    ties = array("f32", [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20])
    assert_same(apply("convert", "f32", [ties], "bf16"), array("bf16", [1.0, 1 + 2.0**-6, 1 + 2.0**-7]))


def test_complex() -> None:
    assert_same(apply("convert", "c64", [array("c64", [3 + 4j, 1j])], "f32"), array("f32", [3.0, 0.0]))
    assert_same(apply("convert", "s8", [array("s8", [-3])], "c128"), array("c128", [-3]))


def test_reduce_precision() -> None:
    x = array("f32", [NAN, INF, 1e30, 1e-30, 1.3, 65520.0, 6e-5, -1e30, -1e-30])
    half = apply("reduce-precision", "f32", [x], attributes=", exponent_bits=5, mantissa_bits=10")
    # Unlike a conversion to f16 it flushes what would be a denormal of the narrow type.
    expected = [NAN, INF, INF, 0.0, 1.2998046875, INF, 0.0, -INF, -0.0]
    assert_same(half, array("f32", expected))
    own = apply("reduce-precision", "f32", [array("f32", [1e-40])], attributes=", exponent_bits=8, mantissa_bits=23")
    assert_same(own, array("f32", [1e-40]))
    none = apply("reduce-precision", "f32", [array("f32", [NAN, 1.5, 1.4])], attributes=", exponent_bits=8, mantissa_bits=0")
    assert_same(none, array("f32", [NAN, 2.0, 1.0]))


def test_reduce_precision_works_on_the_type_itself() -> None:
    tiny = array("f16", [1e-7, 1e-6])
    found = apply("reduce-precision", "f16", [tiny], attributes=", exponent_bits=5, mantissa_bits=4")
    bits = (tiny.view(np.uint16) + (31 + ((tiny.view(np.uint16) >> 6) & 1))) & 0xFFC0
    assert_same(found, bits.astype(np.uint16).view(np.float16))


def test_bitcast_convert_keeps_bits() -> None:
    x = array("f32", [1.0, -0.0])
    assert_same(apply("bitcast-convert", "f32", [x], "u32"), array("u32", [0x3F800000, 0x80000000]))
    assert_same(run("x = f32[2] parameter(0)\nROOT r = u8[2,4] bitcast-convert(x)", x), x.view(np.uint8).reshape(2, 4))
    halves = np.random.default_rng(7).integers(0, 2**16, (3, 2)).astype(np.uint16)
    assert_same(
        run("x = u16[3,2] parameter(0)\nROOT r = s32[3] bitcast-convert(x)", halves),
        (halves[:, 0].astype(np.uint32) | halves[:, 1].astype(np.uint32) << 16).view(np.int32),
    )


def test_bitcast_convert_of_packed_types() -> None:
    x = array("s8", [0x21, -1])
    nibbles = run("x = s8[2] parameter(0)\nROOT r = u4[2,2] bitcast-convert(x)", x)
    assert_same(nibbles, array("u4", [[1, 2], [15, 15]]))
    assert_same(run("x = u4[2,2] parameter(0)\nROOT r = s8[2] bitcast-convert(x)", nibbles), x)
    assert_same(apply("bitcast-convert", "u4", [nibbles], "s4"), array("s4", [[1, 2], [-1, -1]]))


def test_stochastic_convert_rounds_up_below_its_threshold() -> None:
    x = array("f32", [1.25, 1.25, -1.25, -1.25, NAN, 1e10, -INF])
    random = array("u32", [2**30 - 1, 2**30, 2**30 - 1, 2**30, 0, 0, 0])
    text = "x = f32[7] parameter(0)\nr = u32[7] parameter(1)\nROOT c = s32[7] stochastic-convert(x, r)"
    assert_same(run(text, x, random), array("s32", [2, 1, -2, -1, 0, 2**31 - 1, -(2**31)]))
