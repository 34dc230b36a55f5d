"""Minimum, maximum, approximations and other floating-point operations of PTX that need no separate rounding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.numerics.float_numerics import F32, F64, Bool, Float

# ---- comparison and selection ---------------------------------------------------------------------------------------


def minimum(a: Float, b: Float) -> Float:
    """Return the smaller value. A number is preferred to a NaN, and -0 is smaller than +0."""
    return _ordered_zeros(np.fmin(a, b), a, b, np.bitwise_or)


def maximum(a: Float, b: Float) -> Float:
    """Return the larger value. A number is preferred to a NaN, and -0 is smaller than +0."""
    return _ordered_zeros(np.fmax(a, b), a, b, np.bitwise_and)


def minimum_nan(a: Float, b: Float) -> Float:
    """Return the smaller value, or NaN if either is NaN (`.NaN`)."""
    return _ordered_zeros(np.minimum(a, b), a, b, np.bitwise_or)


def maximum_nan(a: Float, b: Float) -> Float:
    """Return the larger value, or NaN if either is NaN (`.NaN`)."""
    return _ordered_zeros(np.maximum(a, b), a, b, np.bitwise_and)


def _ordered_zeros(result: Float, a: Float, b: Float, combine: np.ufunc) -> Float:
    """Combine the bits of zeros that compare equal, so that their sign is correct."""
    zero = result == 0
    if not zero.any():
        return result
    unsigned = np.dtype(f"u{result.dtype.itemsize}")
    combined: Float = combine(a.view(unsigned), b.view(unsigned)).view(result.dtype)
    return np.where(zero & (a == b), combined, result)


# ---- approximations -------------------------------------------------------------------------------------------------


def reciprocal_top_f64(x: F64) -> F64:
    """`rcp.approx.ftz.f64`: from the upper 32 bits of the operand to the upper 32 bits of the result."""
    return _top_half(1.0 / _flush_f64(_top_half(x)))


def rsqrt_top_f64(x: F64) -> F64:
    """`rsqrt.approx.ftz.f64`: from the upper 32 bits of the operand to the upper 32 bits of the result."""
    return _top_half(1.0 / np.sqrt(_flush_f64(_top_half(x))))


def _top_half(x: F64) -> F64:
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def _flush_f64(x: F64) -> F64:
    return np.where(np.abs(x) < 2.0**-1022, np.copysign(np.float64(0), x), x)


def divide_approx(a: F32, b: F32) -> F32:
    """`div.approx.f32`: a times the reciprocal of b, which is flushed to zero for |b| above 2**126."""
    return np.where(np.abs(b) > np.float32(2.0**126), a * np.copysign(np.float32(0), b), a / b)


def rsqrt(x: F64) -> F64:
    """Return 1 / sqrt(x). For -0 it is -inf."""
    return 1.0 / np.sqrt(x)


def rsqrt_f32(x: F32) -> F32:
    """Return 1 / sqrt(x), computed in f64 and rounded to f32."""
    return rsqrt(x.astype(np.float64)).astype(np.float32)


# ---- two in one register --------------------------------------------------------------------------------------------


def low_f32(pair: NDArray[np.uint64]) -> F32:
    """Return the lower of two f32 in a 64-bit register."""
    return pair.astype(np.uint32).view(np.float32)


def high_f32(pair: NDArray[np.uint64]) -> F32:
    """Return the upper of two f32 in a 64-bit register."""
    return (pair >> np.uint64(32)).astype(np.uint32).view(np.float32)


def test_property(x: Float, kind: str) -> Bool:
    """`testp`: return, per value, whether it is finite, infinite, a number, not a number, normal or subnormal."""
    magnitude = np.abs(x)
    least_normal = np.finfo(x.dtype).tiny
    match kind:
        case "finite":
            return np.isfinite(x)
        case "infinite":
            return np.isinf(x)
        case "number":
            return ~np.isnan(x)
        case "notanumber":
            return np.isnan(x)
        case "normal":
            return np.isfinite(x) & (magnitude >= least_normal)
        case _:
            return (magnitude < least_normal) & (magnitude > 0)
