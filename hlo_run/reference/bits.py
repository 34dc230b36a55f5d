"""Elements as bits: each element's bits, and buffers of packed elements."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.values import Array


def to_packed_bytes(line: Array, dtype: DType) -> Array:
    """Return the bytes of a buffer that holds the elements in order; types below a byte are packed, low bits first."""
    if dtype.bits >= 8:
        return np.ascontiguousarray(line).view(np.uint8)
    per_byte = 8 // dtype.bits
    padded = np.zeros((-(-len(line) // per_byte), per_byte), np.uint8)
    padded.reshape(-1)[: len(line)] = element_bits(line, dtype)
    return np.bitwise_or.reduce(padded << _piece_shifts(dtype), axis=1)


def from_packed_bytes(data: Array, dtype: DType, count: int) -> Array:
    """Return the `count` elements that a buffer holds; the inverse of `to_packed_bytes`."""
    if dtype.bits >= 8:
        return from_element_bits(data[: count * dtype.bits // 8].view(f"u{dtype.numpy.itemsize}"), dtype)
    pieces = (data[:, None] >> _piece_shifts(dtype)) & np.uint8((1 << dtype.bits) - 1)
    return from_element_bits(pieces.reshape(-1)[:count], dtype)


def _piece_shifts(dtype: DType) -> Array:
    return np.arange(0, 8, dtype.bits, dtype=np.uint8)


def element_bits(array: Array, dtype: DType) -> Array:
    """Return each element's `dtype.bits` bits as an unsigned int of its item size."""
    if dtype.bits >= 8:
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    if dtype.is_integer:
        # The high bits of an ml_dtypes int are not promised to be anything.
        array = array.astype(np.int8)
    return array.view(np.uint8) & np.uint8((1 << dtype.bits) - 1)


def from_element_bits(bits: Array, dtype: DType) -> Array:
    """Return the elements whose low `dtype.bits` bits are given; the inverse of `element_bits`."""
    if dtype.is_integer and dtype.bits < 8:
        return bits.astype(np.uint8).view(np.int8 if dtype.is_signed else np.uint8).astype(dtype.numpy)
    if dtype.kind == "pred":
        return bits != 0
    return bits.astype(np.dtype(f"u{dtype.numpy.itemsize}"), copy=False).view(dtype.numpy)
