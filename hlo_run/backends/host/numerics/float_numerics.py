"""Floating-point arithmetic with PTX's exact roundings, on whole arrays.

add, sub, mul, div, sqrt, rcp, fma and all conversions are correctly rounded in every format and rounding mode, including
subnormals. `approximations` defines the `.approx` operations; a GPU's results differ from them by what its manual allows.
f16 and bf16 values are held *wide*: as f32 arrays of exactly representable values. Arithmetic may leave any NaN in an f32 or
narrower result. `bits32` and `bits16` make NaNs canonical (positive, all mantissa bits set, as PTX defines them) when code reads
the bits.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.backends.host.numerics import exact_numerics

U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Half = Array  # float16 or bfloat16: ml_dtypes has no type stubs
Float = Array  # float32 or float64
Bool = NDArray[np.bool_]

_F32_TINY = np.float32(2.0**-126)
_ONE64 = np.uint64(1)
_TIE_MASK = np.uint64(0x1FFFFFFF)
_TIE = np.uint64(0x10000000)
_SIGN16 = np.uint16(0x8000)
_QUIET32 = np.uint32(0x7FFFFFFF)
_QUIET16 = np.uint16(0x7FFF)

# ---- bits and NaNs --------------------------------------------------------------------------------------------------


def bits32(x: F32) -> U32:
    """Return the bits of f32 results. Every NaN is canonical."""
    bits = x.view(np.uint32)
    is_nan = np.isnan(x)
    return np.where(is_nan, _QUIET32, bits) if is_nan.any() else bits


def bits16(x: Half) -> U16:
    """Return the bits of f16 or bf16 results. Every NaN is canonical."""
    bits: U16 = x.view(np.uint16)
    infinity = np.uint16(0x7C00 if x.dtype == np.float16 else 0x7F80)
    is_nan = (bits & _QUIET16) > infinity
    return np.where(is_nan, _QUIET16, bits) if is_nan.any() else bits


def flush(x: F32) -> F32:
    """Return `x` with subnormals replaced by zeros of the same sign (`.ftz`)."""
    tiny = np.abs(x) < _F32_TINY
    return np.where(tiny, np.copysign(np.float32(0), x), x) if tiny.any() else x


def flush_half(x: Half, kind: str) -> Half:
    """Return f16 or bf16 values, wide or not, with subnormals replaced by zeros of the same sign (`.ftz`)."""
    tiny = np.abs(x) < x.dtype.type(2.0**-14 if kind == "f16" else 2.0**-126)
    return np.where(tiny, np.copysign(x.dtype.type(0), x), x) if tiny.any() else x


def saturate(x: Float) -> Float:
    """Clamp to [0, 1]. NaN becomes +0 (`.sat`)."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    clamped = np.where(x > zero, x, zero)  # NaN and -0 become +0
    return np.minimum(clamped, one)


def relu(x: Float) -> Float:
    """Clamp below at +0. NaN stays NaN (`.relu`)."""
    return np.where((x > 0) | np.isnan(x), x, x.dtype.type(0))


# ---- narrow formats -------------------------------------------------------------------------------------------------


def to_bf16(x: F32) -> Half:
    """Round f32 to bf16, nearest even."""
    return x.astype(ml_dtypes.bfloat16)


def to_f16(x: F32 | F64) -> Half:
    """Round f32 or f64 to f16, nearest even, in one rounding."""
    return x.astype(np.float16)


def wide_bf16(bits: U16) -> F32:
    """Return bf16 bits as f32."""
    return bits.view(ml_dtypes.bfloat16).astype(np.float32)


def wide_f16(bits: U16) -> F32:
    """Return f16 bits as f32."""
    return bits.view(np.float16).astype(np.float32)


def mul_bf16(a: F32, b: F32) -> Half:
    """Multiply wide bf16 values. The f32 product is exact unless it underflows."""
    try:
        with np.errstate(under="raise"):
            product = a * b
    except FloatingPointError:
        return to_bf16(f32_to_odd(a.astype(np.float64) * b.astype(np.float64)))
    return to_bf16(product)


def fma_bf16(a: F32, b: F32, c: F32) -> Half:
    """Fused multiply-add of wide bf16 values, one rounding to bf16."""
    return to_bf16(f32_to_odd(add_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))))


def fma_f16(a: F32, b: F32, c: F32) -> Half:
    """Fused multiply-add of wide f16 values, one rounding to f16."""
    return to_f16(add_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)))


# ---- error-free building blocks -------------------------------------------------------------------------------------


def add_to_odd(a: F64, b: F64) -> F64:
    """Return a + b rounded to odd: truncate, and set the last bit if the truncation was inexact.

    A second rounding to a format with at least two bits less gives the correctly rounded sum.
    """
    total = a + b
    shadow = total - a
    error = (a - (total - shadow)) + (b - shadow)
    return _to_odd(total, error)


def _to_odd(total: F64, error: F64) -> F64:
    """Make the last bit of `total` odd by a step towards `error`, where `error` is not zero."""
    bits = total.view(np.uint64)
    inexact = (error != 0) & np.isfinite(error) & ((bits & _ONE64) == 0)
    if not inexact.any():
        return total
    # `total` is not zero where it is inexact, so one unit in the last place is one step of its bits.
    step = np.where((error > 0) == (total > 0), _ONE64, np.uint64(0xFFFFFFFFFFFFFFFF))
    return np.where(inexact, bits + step, bits).view(np.float64)


def f32_to_odd(x: F64) -> F32:
    """Round f64 (exact, or rounded to odd) to f32 by rounding to odd, so that bf16 can follow."""
    narrow = narrow_f64(x, "rz")
    inexact = (narrow.astype(np.float64) != x) & np.isfinite(x)
    bits = narrow.view(np.uint32)
    return np.where(inexact, bits | np.uint32(1), bits).view(np.float32)


def narrow_f64(x: F64, mode: str) -> F32:
    """Round f64 (exact, or rounded to odd) to f32 in any mode."""
    nearest = x.astype(np.float32)
    return nearest if mode == "rn" else redirect(nearest, x, mode)


def redirect(nearest: Half | F32, exact: Float, mode: str) -> Half | F32:
    """Return the result rounded in the direction `mode`, from the result rounded to nearest. `exact` has a wider type."""
    back = nearest.astype(exact.dtype)
    match mode:
        case "rm":
            return _step_down(nearest, back > exact)
        case "rp":
            return -_step_down(-nearest, back < exact)
        case _:
            bits = nearest.view(f"u{nearest.dtype.itemsize}")
            return (bits - (np.abs(back) > np.abs(exact))).view(nearest.dtype)


def _step_down(x: Half | F32, chosen: Bool) -> Half | F32:
    """Replace the chosen values by the next smaller ones."""
    bits = x.view(f"i{x.dtype.itemsize}")
    # The bits of a smaller number are smaller if it is positive, and larger if it is negative.
    step = (bits >> bits.dtype.type(8 * x.dtype.itemsize - 1)) | bits.dtype.type(1)
    stepped = (bits - step * chosen).view(x.dtype)
    from_zero = (x == 0) & chosen
    if not from_zero.any():
        return stepped
    least = np.array((1 << (8 * x.dtype.itemsize - 1)) | 1, f"u{x.dtype.itemsize}").view(x.dtype)
    return np.where(from_zero, least, stepped)


# ---- f32 ------------------------------------------------------------------------------------------------------------


def fma_f32(a: F64, b: F64, c: F64) -> F32:
    """Fused multiply-add of f32 values given as f64, rounded to nearest.

    The f64 product is exact. The f64 sum is already rounded, so rounding it again can be wrong in two cases: half-way between two
    f32 values, and among subnormals, which the processor's underflow flag reports. Both cases are detected and corrected.
    """
    product = a * b
    total = product + c
    try:
        with np.errstate(under="raise"):
            result = total.astype(np.float32)
    except FloatingPointError:
        return add_to_odd(product, c).astype(np.float32)
    ties = (total.view(np.uint64) & _TIE_MASK) == _TIE
    if ties.any():
        index = np.flatnonzero(ties)
        _mend_ties(result.reshape(-1), index, _picked(product, total.shape, index), _picked(c, total.shape, index))
    return result


def _mend_ties(result: F32, index: NDArray[np.intp], product: F64, c: F64) -> None:
    """Round the sums at flat positions of `result` again. Most ties are exact sums, whose result is already correct."""
    total, error = _two_sum(product, c)
    if error.any():
        result[index] = _to_odd(total, error).astype(np.float32)


def _picked(x: F64, shape: tuple[int, ...], index: NDArray[np.intp]) -> F64:
    """Return the items at flat positions of `x` broadcast to `shape`."""
    if x.size == 1:
        return x.reshape(1)
    return (x if x.shape == shape else np.broadcast_to(x, shape)).reshape(-1).take(index)


def fma_f32_directed(a: F64, b: F64, c: F64, mode: str) -> F32:
    """Fused multiply-add of f32 values given as f64 in the direction `mode`."""
    return _sum_directed(a * b, c, mode)


def add_f32_directed(a: F32, b: F32, mode: str) -> F32:
    """Add in the direction `mode`."""
    return _sum_directed(a.astype(np.float64), b.astype(np.float64), mode)


def mul_f32_directed(a: F32, b: F32, mode: str) -> F32:
    """Multiply in the direction `mode`."""
    return narrow_f64(a.astype(np.float64) * b.astype(np.float64), mode)


def _sum_directed(a: F64, b: F64, mode: str) -> F32:
    """Add f64 values of at most 48 bits and round to f32 in the direction `mode`.

    The f64 sum is on the same side of every f32 value as the exact sum, unless it equals that value. Such sums are redone.
    """
    total = a + b
    result = narrow_f64(total, mode)
    index = np.flatnonzero(result == total)
    if not index.size:
        return result
    a, b = _picked(a, total.shape, index), _picked(b, total.shape, index)
    exact, error = _two_sum(a, b)
    if error.any():
        result.reshape(-1)[index] = narrow_f64(_to_odd(exact, error), mode)
    if mode == "rm":
        # An exact zero sum is -0, unless both terms are +0.
        both_positive_zero = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
        result.reshape(-1)[index[(exact == 0) & (error == 0) & ~both_positive_zero]] = np.float32(-0.0)
    return result


# ---- f64 ------------------------------------------------------------------------------------------------------------

_SPLITTER = np.float64(2**27 + 1)
_SAFE_LOW, _SAFE_HIGH = np.float64(2.0**-480), np.float64(2.0**480)


def _two_product(a: F64, b: F64) -> tuple[F64, F64]:
    """Return (p, e) with p + e exactly a * b (Dekker). The magnitudes must neither overflow nor underflow."""
    product = a * b
    scaled_a, scaled_b = a * _SPLITTER, b * _SPLITTER
    high_a, high_b = scaled_a - (scaled_a - a), scaled_b - (scaled_b - b)
    low_a, low_b = a - high_a, b - high_b
    return product, low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """Return (s, e) with s + e exactly a + b (Knuth)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def fma_f64(a: F64, b: F64, c: F64) -> F64:
    """Fused multiply-add of f64, rounded to nearest (Boldo and Melquiond's sum of three through a sum to odd)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    # The plain operations are correct for zero products and for infinite or NaN operands, unless the product overflows.
    finite_product = np.isfinite(a) & np.isfinite(b)
    special = (a == 0) | (b == 0) | ~finite_product | ~np.isfinite(c)
    plain = np.where(finite_product & ~np.isfinite(c), c, product + c)
    result = np.where(special, plain, _fma_f64_core(a, b, c))
    small = np.minimum(np.minimum(np.abs(a), np.abs(b)), np.abs(product))
    large = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.maximum(np.abs(product), np.abs(c)))
    extreme = ((small < _SAFE_LOW) | (large > _SAFE_HIGH)) & ~special
    if extreme.any():
        result[extreme] = _fma_f64_scaled(a[extreme], b[extreme], c[extreme])
    return result


def _fma_f64_core(a: F64, b: F64, c: F64) -> F64:
    high, low = _two_product(a, b)
    top, rest = _two_sum(c, low)
    head, tail = _two_sum(high, top)
    return head + add_to_odd(rest, tail)


def _fma_f64_scaled(a: F64, b: F64, c: F64) -> F64:
    """Do the same for operands of any exponents: compute on the mantissas, with the addend within 2**±220 of the product.

    At a larger distance the smaller term is only a sticky bit. Results near or below the smallest normal number would be rounded
    twice, so they are computed exactly, lane by lane.
    """
    (mantissa_a, exponent_a), (mantissa_b, exponent_b), (mantissa_c, exponent_c) = np.frexp(a), np.frexp(b), np.frexp(c)
    exponent = exponent_a + exponent_b
    distance = np.where(c == 0, 0, np.clip(exponent_c - exponent, -220, 220))
    shift = np.where(c == 0, exponent, exponent_c - distance)
    # If the product is far below the addend, the scale is the addend's; if far above, the product's.
    shift = np.where(distance == -220, exponent, shift)
    scaled = _fma_f64_core(mantissa_a, mantissa_b, np.ldexp(mantissa_c, distance))
    result = np.ldexp(scaled, shift)
    underflow = np.frexp(scaled)[1] + shift < -1019
    if underflow.any():
        result[underflow] = exact_numerics.exact_fma(a[underflow], b[underflow], c[underflow], "rn")
    return result


def fma_f64_directed(a: F64, b: F64, c: F64, mode: str) -> F64:
    """Fused multiply-add of f64 in the direction `mode`."""
    return exact_numerics.exact_fma(a, b, c, mode)
