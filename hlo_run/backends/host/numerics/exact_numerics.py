"""Correctly rounded arithmetic in every format by exact integers, lane by lane.

It takes some microseconds per lane. So it serves only where whole-array arithmetic cannot: directed rounding of f64, directed
division and roots, and the rare lanes of a fused multiply-add whose exponents are near the ends of the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from hlo_run.arrays import Array
from hlo_run.hlo.values.dtype import DTYPES

Real = Array


def round_fraction(value: Fraction, mode: str, type_name: str) -> float:
    """Return `value` rounded to the format. `mode`: `rn` nearest even, `rz` to zero, `rm` down, `rp` up. Zero becomes +0."""
    form = DTYPES[type_name].float_format
    # Bits of precision, exponent of the last bit of a subnormal, first exponent of infinite results.
    precision, least_exponent, overflow_exponent = form.mantissa_bits + 1, 1 - form.bias - form.mantissa_bits, form.max_exponent
    if value == 0:
        return 0.0
    magnitude = abs(value)
    # The exponent of the leading bit. The difference of bit lengths may be one too large.
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = max(exponent - precision + 1, least_exponent)
    scaled = magnitude / Fraction(2) ** unit
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    away = {"rz": False, "rm": value < 0, "rp": value > 0}.get(mode, rest > Fraction(1, 2) or (2 * rest == 1 and whole & 1 == 1))
    if rest and away:
        whole += 1
    if whole.bit_length() + unit > overflow_exponent:
        stays = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        largest = math.ldexp((1 << precision) - 1, overflow_exponent - precision)
        result = largest if stays else math.inf
    else:
        result = math.ldexp(whole, unit)
    return -result if value < 0 else result


def exact_fma(a: Real, b: Real, c: Real, mode: str, type_name: str = "f64") -> Real:
    """Return a * b + c with one rounding."""
    return _by_lane(_fma_lane, mode, type_name, a, b, c)


def exact_add(a: Real, b: Real, mode: str, type_name: str = "f64") -> Real:
    """Return a + b with one rounding."""
    return _by_lane(_fma_lane, mode, type_name, a, np.ones((), a.dtype), b)


def exact_mul(a: Real, b: Real, mode: str, type_name: str = "f64") -> Real:
    """Return a * b with one rounding."""
    return _by_lane(_mul_lane, mode, type_name, a, b)


def exact_div(a: Real, b: Real, mode: str, type_name: str = "f64") -> Real:
    """Return a / b with one rounding."""
    return _by_lane(_div_lane, mode, type_name, a, b)


def exact_sqrt(a: Real, mode: str, type_name: str = "f64") -> Real:
    """Return the square root with one rounding."""
    return _by_lane(_sqrt_lane, mode, type_name, a)


def _by_lane(lane: Callable[..., float], mode: str, type_name: str, *arrays: Real) -> Real:
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    columns = [np.broadcast_to(array, shape).ravel().tolist() for array in arrays]
    values = [lane(mode, type_name, *operands) for operands in zip(*columns, strict=True)]
    return np.array(values, DTYPES[type_name].numpy).reshape(shape)


def _fma_lane(mode: str, type_name: str, a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        # The plain operations give the fused operation's signs and NaNs.
        return a * b + c
    if not math.isfinite(c):
        return c
    product = Fraction(a) * Fraction(b)
    total = product + Fraction(c)
    if total:
        return round_fraction(total, mode, type_name)
    if product == 0 and c == 0:
        negative_product = math.copysign(1.0, a) * math.copysign(1.0, b) < 0
        if negative_product == (math.copysign(1.0, c) < 0):
            return -0.0 if negative_product else 0.0
    return -0.0 if mode == "rm" else 0.0


def _mul_lane(mode: str, type_name: str, a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return _signed(round_fraction(Fraction(a) * Fraction(b), mode, type_name), (a < 0) != (b < 0))


def _div_lane(mode: str, type_name: str, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return math.nan
    negative = math.copysign(1.0, a) * math.copysign(1.0, b) < 0
    if math.isinf(a) or b == 0:
        return -math.inf if negative else math.inf
    if math.isinf(b):
        return _signed(0.0, negative)
    return _signed(round_fraction(Fraction(a) / Fraction(b), mode, type_name), negative)


def _sqrt_lane(mode: str, type_name: str, a: float) -> float:
    if a == 0 or math.isnan(a) or a == math.inf:
        return a
    if a < 0:
        return math.nan
    # Enough bits that the integer root decides every rounding. A sticky bit records the rest.
    value = Fraction(a)
    shift = 2 * (64 + max(0, value.denominator.bit_length()))
    scaled = (value.numerator << shift) // value.denominator
    root = math.isqrt(scaled)
    sticky = int(root * root != scaled)
    return round_fraction(Fraction(2 * root + sticky, 2 << (shift // 2)), mode, type_name)


def _signed(value: float, negative: bool) -> float:
    """Give a zero the sign of the operands. Other values have the sign already."""
    return math.copysign(value, -1.0 if negative else 1.0) if value == 0 else value
