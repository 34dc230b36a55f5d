"""Convert elements to their bits and to buffers of packed elements, and back."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.values import Array


def to_packed_bytes(line: Array, dtype: DType) -> Array:
    """Return the u8 buffer of a 1-d array's elements in order; types below a byte are packed, low bits first."""
    if dtype.bits >= 8:
        return np.ascontiguousarray(line).view(np.uint8)
    per_byte = 8 // dtype.bits
    padded = np.zeros((-(-len(line) // per_byte), per_byte), np.uint8)
    padded.reshape(-1)[: len(line)] = element_bits(line, dtype)
    return np.bitwise_or.reduce(padded << _piece_shifts(dtype), axis=1)


def from_packed_bytes(data: Array, dtype: DType, count: int) -> Array:
    """Return the `count` elements of a u8 buffer, as a 1-d array; the inverse of `to_packed_bytes`."""
    if dtype.bits >= 8:
        return from_element_bits(data[: count * dtype.bits // 8].view(f"u{dtype.numpy.itemsize}"), dtype)
    pieces = (data[:, None] >> _piece_shifts(dtype)) & np.uint8((1 << dtype.bits) - 1)
    return from_element_bits(pieces.reshape(-1)[:count], dtype)


def _piece_shifts(dtype: DType) -> Array:
    return np.arange(0, 8, dtype.bits, dtype=np.uint8)


def element_bits(array: Array, dtype: DType) -> Array:
    """Return each element's `dtype.bits` bits as an unsigned int of the element's item size."""
    if dtype.bits >= 8:
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    if dtype.is_integer:
        # ml_dtypes does not define the high bits of a narrow int.
        array = array.astype(np.int8)
    return array.view(np.uint8) & np.uint8((1 << dtype.bits) - 1)


def from_element_bits(bits: Array, dtype: DType) -> Array:
    """Return the elements whose low `dtype.bits` bits are given; the inverse of `element_bits`."""
    if dtype.is_integer and dtype.bits < 8:
        return bits.astype(np.uint8).view(np.int8 if dtype.is_signed else np.uint8).astype(dtype.numpy)
    if dtype.kind == "pred":
        return bits != 0
    return bits.astype(np.dtype(f"u{dtype.numpy.itemsize}"), copy=False).view(dtype.numpy)
