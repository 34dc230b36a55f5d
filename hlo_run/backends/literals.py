"""Convert literals (arrays in logical order) to and from buffer bytes (physical order, types below 8 bits packed)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES, DType

Literal: TypeAlias = "Array | tuple[Literal, ...]"
Bytes: TypeAlias = NDArray[np.uint8]


def size_bytes(dtype: str, dims: tuple[int, ...]) -> int:
    """Return the size of an array in a buffer: pred takes one byte per element, types below 8 bits are packed."""
    return (math.prod(dims) * DTYPES[dtype].bits + 7) // 8


def to_bytes(array: Array, dtype: str, minor_to_major: tuple[int, ...]) -> Bytes:
    """Return the buffer bytes of `array`. `array` is in logical order and has the numpy type of `dtype`.

    The result may share memory with `array`.
    """
    record = DTYPES[dtype]
    assert array.dtype == record.numpy, f"a literal of {dtype} has numpy type {record.numpy}, not {array.dtype}"
    order = _layout(array.shape, minor_to_major).order
    physical = array if order is None else array.transpose(order)
    items = np.ascontiguousarray(physical).reshape(-1).view(np.uint8)
    return items if record.bits >= 8 else _pack(items, record.bits)


def from_bytes(data: Bytes, dtype: str, dims: tuple[int, ...], minor_to_major: tuple[int, ...]) -> Array:
    """Return the array in logical order that `data` holds; the result may share memory with `data`."""
    record, layout = DTYPES[dtype], _layout(dims, minor_to_major)
    count = layout.count
    assert data.size * 8 >= count * record.bits, f"{data.size} bytes are too few for {dtype}{list(dims)}"
    if record.bits >= 8:
        items = _typed(data[: count * record.numpy.itemsize], record)
    else:
        items = _sub_byte_items(_unpack(data, record.bits, count), record)
    physical = items.reshape(layout.dims)
    return physical if layout.inverse is None else physical.transpose(layout.inverse)


class _Layout(Struct, frozen=True):
    """A layout: physical dimensions from major to minor, the permutation to them (None if the identity), and its inverse."""

    count: int
    dims: tuple[int, ...]
    order: tuple[int, ...] | None
    inverse: tuple[int, ...] | None


@lru_cache(maxsize=4096)
def _layout(dims: tuple[int, ...], minor_to_major: tuple[int, ...]) -> _Layout:
    order = tuple(reversed(minor_to_major))
    inverse = tuple(order.index(dim) for dim in range(len(dims)))
    is_straight = order == tuple(range(len(dims)))
    physical = tuple(dims[dim] for dim in order)
    return _Layout(math.prod(dims), physical, None if is_straight else order, None if is_straight else inverse)


def dynamic_to_bytes(array: Array, dtype: str, bounds: tuple[int, ...], minor_to_major: tuple[int, ...]) -> Bytes:
    """Return the buffer bytes of a dynamic array with the upper bounds `bounds`.

    The elements come first. The sizes, one s32 per dimension, follow the room for `bounds`.
    """
    data, room = to_bytes(array, dtype, minor_to_major), size_bytes(dtype, bounds)
    buffer = np.zeros(room + 4 * len(bounds), np.uint8)
    buffer[: data.size] = data
    buffer[room:] = np.array(array.shape, np.int32).view(np.uint8)
    return buffer


def dynamic_from_bytes(data: Bytes, dtype: str, bounds: tuple[int, ...], minor_to_major: tuple[int, ...]) -> Array:
    """Return the array that `dynamic_to_bytes` encoded. Raises DeviceError for sizes that are not within the bounds."""
    room = size_bytes(dtype, bounds)
    sizes = tuple(map(int, data[room : room + 4 * len(bounds)].copy().view(np.int32)))
    if not all(0 <= size <= bound for size, bound in zip(sizes, bounds, strict=True)):
        raise DeviceError(f"an array {dtype}{list(bounds)} of dynamic size has the sizes {list(sizes)}: nothing has written them")
    return from_bytes(data, dtype, sizes, minor_to_major)


def _typed(data: Bytes, record: DType) -> Array:
    # A byte of a pred that is neither 0 nor 1 stays as it is: a comparison must see that no kernel wrote it.
    return data.view(record.numpy)


def _sub_byte_items(items: Bytes, record: DType) -> Array:
    """Give unpacked items their numpy type. A signed integer is sign-extended to a byte."""
    if record.is_signed:
        sign = np.uint8(1 << (record.bits - 1))
        return ((items ^ sign) - sign).view(np.int8).astype(record.numpy)
    return items.view(record.numpy)


def _pack(items: Bytes, bits: int) -> Bytes:
    """Pack the low `bits` of each byte into a stream of bits, low bits first."""
    stream = np.unpackbits(items[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(-1), bitorder="little")


def _unpack(data: Bytes, bits: int, count: int) -> Bytes:
    """Undo `_pack`: return `count` bytes, each with `bits` bits of the stream."""
    stream = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(-1)
