"""`cvt` between integer and floating-point formats, with PTX's rounding modes, clamping and packing.

f16 and bf16 operands and results are wide (f32 arrays of representable values) unless a function says otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from hlo_run.arrays import Array, NumpyType
from hlo_run.backends.host.numerics import exact_numerics
from hlo_run.backends.host.numerics.float_numerics import (
    F32,
    F64,
    U16,
    U32,
    Float,
    Half,
    add_to_odd,
    f32_to_odd,
    narrow_f64,
    redirect,
)

Ints = Array

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def round_to_integral(x: Float, mode: str) -> Float:
    """Round to an integral value of the same format (`cvt.rni.f32.f32` and similar)."""
    return _ROUND[mode](x)


def float_to_int(x: Float, mode: str, type_name: str, source: str) -> Ints:
    """Convert to an integer type, clamped to its range.

    NaN becomes 0. For f64 operands and 64-bit results it becomes the smallest signed value (for unsigned types, its bits).
    """
    target = np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{int(type_name[1:]) // 8}")
    limits = np.iinfo(target)
    whole = _ROUND[mode](x)
    if target.itemsize < 8:
        clamped = np.clip(whole.astype(np.float64), limits.min, limits.max)
        result = np.nan_to_num(clamped, nan=0.0).astype(np.int64).astype(target)
    else:
        # The largest 64-bit integers are not floats: compare with the limits first, then convert the rest.
        high, low = whole >= float(limits.max), whole <= float(limits.min)
        inside = np.where(high | low | np.isnan(whole), x.dtype.type(0), whole).astype(target)
        result = np.where(high, target.type(limits.max), np.where(low, target.type(limits.min), inside))
    is_nan = np.isnan(x)
    if not is_nan.any():
        return result
    indefinite = np.zeros((), target)
    if source == "f64" or target.itemsize == 8:
        indefinite = np.array(1 << (8 * target.itemsize - 1), f"u{target.itemsize}").view(target)
    return np.where(is_nan, indefinite, result)


# ---- from integers --------------------------------------------------------------------------------------------------


def int_to_f32(x: Ints, mode: str) -> F32:
    """Convert an integer to f32."""
    return x.astype(np.float32) if mode == "rn" else narrow_f64(_int_to_odd(x), mode)


def int_to_f64(x: Ints, mode: str) -> F64:
    """Convert an integer to f64."""
    if mode == "rn" or x.dtype.itemsize < 8:
        return x.astype(np.float64)
    high, low = _split(x)
    return exact_numerics.exact_add(high, low, mode)


def int_to_f16(x: Ints, mode: str) -> Half:
    """Convert an integer to f16 (as f16)."""
    return narrow_to_f16(_int_to_odd(x), mode)


def int_to_bf16(x: Ints, mode: str) -> Half:
    """Convert an integer to bf16 (as bf16)."""
    return narrow_to_bf16(_int_to_odd(x), mode)


def _split(x: Ints) -> tuple[F64, F64]:
    """Return two f64 arrays whose exact sum is the 64-bit integer `x`."""
    high = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
    return high, (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)


def _int_to_odd(x: Ints) -> F64:
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    return add_to_odd(*_split(x))


# ---- between floats -------------------------------------------------------------------------------------------------


def narrow_to_f16(x: Float, mode: str) -> Half:
    """Round f32 or f64 (exact, or rounded to odd) to f16."""
    nearest = x.astype(np.float16)
    return nearest if mode == "rn" else redirect(nearest, x, mode)


def narrow_to_bf16(x: Float, mode: str) -> Half:
    """Round f32 or f64 (exact, or rounded to odd) to bf16."""
    single = x if x.dtype == np.float32 else f32_to_odd(x)
    nearest = single.astype(ml_dtypes.bfloat16)
    if mode == "rn":
        return nearest
    # Truncating the bits rounds towards zero. Add one step away from zero if the direction requires it.
    bits = single.view(np.uint32)
    cut = (bits >> np.uint32(16)).astype(np.uint16)
    inexact = (bits & np.uint32(0xFFFF)) != 0
    away = inexact & {"rm": single < 0, "rp": single > 0}.get(mode, np.zeros_like(inexact))
    stepped = np.where(np.isfinite(single), cut + away.astype(np.uint16), cut).view(ml_dtypes.bfloat16)
    return np.where(np.isnan(single), nearest, stepped)


def to_tf32(x: F32) -> U32:
    """Round to tf32, halves away from zero (`cvt.rna.tf32.f32`): 10 bits of mantissa, the others zero."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), np.where(np.isinf(x), bits, rounded))


def clamp_finite(x: Float, largest: float) -> Float:
    """Clamp to the finite range of a narrower format (`.satfinite`). NaN stays NaN."""
    return np.clip(x, x.dtype.type(-largest), x.dtype.type(largest))


# ---- floats of 8 and 4 bits, two in a register -----------------------------------------------------------------------


class _Small(NamedTuple):
    dtype: Any
    bits: int
    largest: float


_SMALL: dict[str, _Small] = {
    "e4m3x2": _Small(ml_dtypes.float8_e4m3fn, 8, 448.0),
    "e5m2x2": _Small(ml_dtypes.float8_e5m2, 8, 57344.0),
    "e2m1x2": _Small(ml_dtypes.float4_e2m1fn, 4, 6.0),
}


def pack_small(high: F32, low: F32, type_name: str) -> U16:
    """Round two f32 (or wide f16) arrays to 8-bit or 4-bit floats, saturating, with `high` in the upper half."""
    return (_small_bits(high, type_name) << np.uint16(_SMALL[type_name].bits)) | _small_bits(low, type_name)


def _small_bits(x: F32, type_name: str) -> U16:
    """Return the bits of a small float. A NaN becomes the positive number with all bits set: NaN in 8-bit formats, 6 in 4-bit."""
    dtype, bits, largest = _SMALL[type_name]
    not_a_number = np.isnan(x)
    finite = clamp_finite(np.where(not_a_number, np.float32(0), x), largest)
    rounded: U16 = finite.astype(dtype).view(np.uint8).astype(np.uint16)
    return np.where(not_a_number, np.uint16((1 << (bits - 1)) - 1), rounded)


def unpack_small(pair: U16, type_name: str) -> tuple[F32, F32]:
    """Return (low, high) of two 8-bit or 4-bit floats as f32."""
    dtype, bits, _ = _SMALL[type_name]
    mask = np.uint16((1 << bits) - 1)
    low, high = pair & mask, (pair >> np.uint16(bits)) & mask
    return low.astype(np.uint8).view(dtype).astype(np.float32), high.astype(np.uint8).view(dtype).astype(np.float32)


def saturate_integer(x: Ints, target: NumpyType) -> Ints:
    """Convert between integer types, clamped to the range of `target` (`cvt.sat`)."""
    limits, own = np.iinfo(target), np.iinfo(x.dtype)
    low, high = max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max))
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(target)
