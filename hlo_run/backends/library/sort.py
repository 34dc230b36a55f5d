"""`SortThunk` and `SelectKThunk` by numpy: sort by integer keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.artifact import SelectKThunk, SortThunk
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.hlo.values.dtype import DTYPES


def sort_call(thunk: SortThunk) -> LibraryCall:
    """Return the call of a sort along the last dimension, in XLA's total order. Equal elements keep their order."""

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        keys = ordinals(arrays[0], thunk.operands[0].dtype)
        order = stable_order(~keys if thunk.descending else keys)
        for array, result in zip(arrays, results, strict=True):
            result[...] = np.take_along_axis(array, order, -1)

    return LibraryCall(thunk.operands, thunk.results, compute)


def select_k_call(thunk: SelectKThunk) -> LibraryCall:
    """Return the call of a top-k along the last dimension. NaNs are the largest; equal elements keep their order."""
    count = thunk.values.dims[-1]

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        keys = ordinals(arrays[0], thunk.source.dtype)
        order = stable_order(~keys if thunk.largest else keys)[..., :count]
        results[0][...] = np.take_along_axis(arrays[0], order, -1)
        results[1][...] = order

    return LibraryCall((thunk.source,), (thunk.values, thunk.indices), compute)


def ordinals(values: Array, dtype: str) -> Array:
    """Return integers that compare as the values do in XLA's total order. Equal values have equal integers."""
    record = DTYPES[dtype]
    if not record.is_float:
        small = record.bits < 8 or record.kind == "pred"
        return values.astype(np.int8 if record.is_signed else np.uint8) if small else values
    width = 8 * values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"i{values.dtype.itemsize}")
    if dtype == "f8e8m0fnu":
        return bits.view(np.uint8)
    if record.bits < width:
        shift = width - record.bits
        bits = (bits << shift) >> shift
    lowest = np.iinfo(bits.dtype).min
    turned = np.where(bits < 0, bits ^ ((1 << (record.bits - 1)) - 1), bits)
    # The only NaN of these types has the bits of -0.
    return np.where(bits == lowest, lowest, turned) if "fnuz" in dtype else turned


def stable_order(keys: Array) -> Array:
    """Return the indices that sort the last dimension in ascending order. Equal elements keep their order."""
    length = keys.shape[-1]
    if keys.dtype.itemsize > 4 or keys.dtype.kind not in "iu" or length >= 1 << 32:
        return np.argsort(keys, axis=-1, kind="stable")
    # Pack key and index into one integer. All are different, so an unstable sort is enough, which is faster.
    lowest = np.iinfo(keys.dtype).min
    packed = (keys.astype(np.int64) - int(lowest)).astype(np.uint64) << np.uint64(32)
    packed |= np.arange(length, dtype=np.uint64)
    packed.sort(axis=-1)
    return (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)
