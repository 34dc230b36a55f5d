"""The `.approx` instructions, whose values PTX leaves open: tables for both engines, and the functions in numpy.

Both engines use the same operations in the same order, so that the bits agree. `ex2`, which most kernels with an exponential or
a tanh need, is computed in f32 with an error below one unit in the last place (the manual allows two). The others are computed in
f64 and rounded once to f32; before that rounding the error is below 2**-44 of the value. A GPU's results differ from these by
what its manual allows (some units in the last place of f32).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.numerics.float_numerics import fma_f32

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U64 = NDArray[np.uint64]

EXP2 = tuple(
    float.fromhex(text)
    for text in (
        "0x1.0000000000000p+0",
        "0x1.62e42fefa39f9p-1",
        "0x1.ebfbdff82c5b8p-3",
        "0x1.c6b08d7042499p-5",
        "0x1.3b2ab6fb98bd4p-7",
        "0x1.5d87fe95e4ccdp-10",
        "0x1.430913349199ap-13",
        "0x1.ffcb636666662p-17",
        "0x1.62bf4b3333331p-20",
        "0x1.b66b99999999ap-24",
        "0x1.e71999999999ap-28",
    )
)
"""Coefficients of 2**f for f in [-1/2, 1/2], lowest power first (interpolated at Chebyshev points)."""
EXP2_F32 = tuple(
    float.fromhex(text)
    for text in ("0x1.62e43p-1", "0x1.ebfbep-3", "0x1.c6af6cp-5", "0x1.3b2a54p-7", "0x1.5f089p-10", "0x1.44138ap-13")
)
"""(2**f - 1) / f for the same f, as f32 values."""
LOG2 = tuple(2 / (2 * k + 1) / 0.6931471805599453 for k in range(11))
"""log2((1+s)/(1-s)) / s in powers of s squared."""
TANH = tuple(
    numerator / denominator
    for numerator, denominator in (
        (-1, 3),
        (2, 15),
        (-17, 315),
        (62, 2835),
        (-1382, 155925),
        (21844, 6081075),
        (-929569, 638512875),
        (6404582, 10854718875),
    )
)
"""(tanh(x) - x) / x**3 in powers of x squared."""
SIN = tuple((-1) ** k / f for k, f in enumerate((6, 120, 5040, 362880, 39916800, 6227020800, 1307674368000), 1))
"""(sin(x) - x) / x**3 in powers of x squared."""
COS = tuple((-1) ** k / f for k, f in enumerate((2, 24, 720, 40320, 3628800, 479001600, 87178291200), 1))
"""(cos(x) - 1) / x**2 in powers of x squared."""

EXP2_LIMIT = 200.0
ROUNDING = 1.5 * 2.0**52
"""Adding this rounds a small f64 to an integer, which is then in the lowest bits."""
ROUNDING_F32 = 1.5 * 2.0**23
ROUNDING_F32_BITS = 0x4B400000
"""The bits of `ROUNDING_F32`, the same constant for f32."""
TANH_SMALL = 0.25
TWO_LOG2_E = 2.8853900817779268
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
SMALL_ANGLE = 2.0**-8
QUARTER_TURN = 1.5707963267948966


@functools.cache
def turn_tables() -> tuple[U64, U64]:
    """Return tables of 2/pi * 2**(e + 62), where 2**e is the unit of an f32 with the exponent field that is the index.

    The first table holds the integer part modulo 2**64, the second the 32 bits below the point.
    """
    digits = 256
    two_over_pi = (2 << 2 * digits) // _pi(digits)
    high, low = np.zeros(256, np.uint64), np.zeros(256, np.uint64)
    for field in range(256):
        shift = field - 150 + 62 + 32
        scaled = two_over_pi >> (digits - shift) if shift <= digits else 0
        high[field], low[field] = (scaled >> 32) & (2**64 - 1), scaled & (2**32 - 1)
    return high, low


def _pi(bits: int) -> int:
    """Return pi * 2**bits, by Machin's formula."""
    one = 1 << (bits + 32)

    def arctan_inverse(x: int) -> int:
        total, power, k = 0, one // x, 0
        while power:
            total += power // (2 * k + 1) * (-1) ** k
            power //= x * x
            k += 1
        return total

    return 4 * (4 * arctan_inverse(5) - arctan_inverse(239)) >> 32


def _horner(coefficients: tuple[float, ...], x: F64) -> F64:
    total = np.full(x.shape, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _exp2(x: F64) -> F64:
    """Return 2**x in f64, for `tanh`."""
    x = np.where(x > EXP2_LIMIT, EXP2_LIMIT, np.where(x < -EXP2_LIMIT, -EXP2_LIMIT, x))
    rounded = x + ROUNDING
    fraction = x - (rounded - ROUNDING)
    scale = ((rounded.view(np.uint64) << np.uint64(52)) + np.uint64(1023 << 52)).view(np.float64)
    return _horner(EXP2, fraction) * scale


def exp2_approx(x: F32) -> F32:
    """`ex2.approx`: a polynomial of the fraction times two powers of two. Only the second may leave the range of f32."""
    limit = np.float32(EXP2_LIMIT)
    x = np.where(x > limit, limit, np.where(x < -limit, -limit, x))
    rounded = x + np.float32(ROUNDING_F32)
    fraction = x - (rounded - np.float32(ROUNDING_F32))
    total = np.full(x.shape, EXP2_F32[-1], np.float32)
    for coefficient in EXP2_F32[-2::-1]:
        total = total * fraction + np.float32(coefficient)
    power = fma_f32(total.astype(np.float64), fraction.astype(np.float64), np.ones(1))
    exponent = rounded.view(np.int32) - np.int32(ROUNDING_F32_BITS)
    half = exponent >> np.int32(1)
    return power * _two_to(half) * _two_to(exponent - half)


def _two_to(exponent: NDArray[np.int32]) -> F32:
    return ((exponent + np.int32(127)) << np.int32(23)).view(np.float32)


def log2_approx(x: F32) -> F32:
    """`lg2.approx`."""
    bits = x.astype(np.float64).view(np.int64)
    exponent = (bits - np.int64(SQRT_HALF_BITS)) >> np.int64(52)
    mantissa = (bits - (exponent << np.int64(52))).view(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    result = exponent.astype(np.float64) + s * _horner(LOG2, s * s)
    result = np.where(x > 0, result, np.where(x == 0, -np.inf, np.nan))
    return np.where(x == np.inf, np.inf, result).astype(np.float32)


def tanh_approx(x: F32) -> F32:
    """`tanh.approx`."""
    wide = x.astype(np.float64)
    square = wide * wide
    small = wide + wide * square * _horner(TANH, square)
    large = 1.0 - 2.0 / (_exp2(np.abs(wide) * TWO_LOG2_E) + 1.0)
    return np.copysign(np.where(np.abs(wide) < TANH_SMALL, small, large), wide).astype(np.float32)


def sin_approx(x: F32) -> F32:
    """`sin.approx`."""
    return _sine(x, 0)


def cos_approx(x: F32) -> F32:
    """`cos.approx`."""
    return _sine(x, 1)


def _sine(x: F32, quarters: int) -> F32:
    """Return sin(x + quarters * pi/2)."""
    turns, angle = _reduced(np.abs(x))
    turns = turns + np.int64(quarters)
    square = angle * angle
    sine = angle + angle * square * _horner(SIN, square)
    cosine = 1.0 + square * _horner(COS, square)
    result = np.where(turns & 1, cosine, sine)
    negative = (turns & 2) != 0
    negative = negative ^ np.signbit(x) if quarters == 0 else negative
    return np.where(np.isfinite(x), np.where(negative, -result, result), np.nan).astype(np.float32)


def _reduced(x: F32) -> tuple[NDArray[np.int64], F64]:
    """Return (quarter turns, angle in [-pi/4, pi/4]) of x >= 0, from the fraction of x * 2/pi in integers."""
    high, low = turn_tables()
    bits = x.view(np.uint32)
    field = bits >> np.uint32(23)
    mantissa = ((bits & np.uint32(0x7FFFFF)) | np.uint32(0x800000)).astype(np.uint64)
    product = mantissa * high[field] + ((mantissa * low[field]) >> np.uint64(32))
    turns = (product + np.uint64(1 << 61)) >> np.uint64(62)
    fraction = (product - (turns << np.uint64(62))).view(np.int64)
    angle = fraction.astype(np.float64) * (QUARTER_TURN * 2.0**-62)
    is_small = x < np.float32(SMALL_ANGLE)
    return np.where(is_small, 0, turns.view(np.int64)), np.where(is_small, x.astype(np.float64), angle)
