"""`SortThunk` and `SelectKThunk`: sorting by keys with numpy, or merging with a comparator that is a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hlo_run.artifact import ArraySpec, SelectKThunk, SortComparator, SortKey, SortThunk
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.backends.literals import Bytes, from_bytes, size_bytes, to_bytes
from hlo_run.hlo.dtype import DTYPES

KernelCaller = Callable[[str, Sequence[Bytes]], None]
"""Launches a kernel by name with these buffers as its parameters, the last one written."""
Compare = Callable[[Array, Array], Array]
"""Of two arrays of places, says per pair if the element at the first goes before that at the second."""


def sort_call(thunk: SortThunk, call_kernel: KernelCaller) -> LibraryCall:
    """Return the call of a sort."""

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        if not results[0].size:
            return
        if isinstance(thunk.order, SortComparator):
            order = _order_by_comparator(thunk, thunk.order, arrays, call_kernel)
        else:
            order = _order_by_keys(thunk, thunk.order, arrays, call_kernel)
        for array, result in zip(arrays, results, strict=True):
            result[...] = np.take_along_axis(array, order, thunk.dim)

    return LibraryCall(thunk.operands, thunk.results, compute)


def select_k_call(thunk: SelectKThunk) -> LibraryCall:
    """Return the call of a top-k: NaNs are the largest, equal elements keep their order."""
    count = thunk.values.dims[-1]

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        keys = ordinals(arrays[0], thunk.source.dtype, total_order=True)
        order = stable_order(~keys if thunk.largest else keys)[..., :count]
        results[0][...] = np.take_along_axis(arrays[0], order, -1)
        results[1][...] = order

    return LibraryCall((thunk.source,), (thunk.values, thunk.indices), compute)


# ---- by keys --------------------------------------------------------------------------------------------------------


def _order_by_keys(thunk: SortThunk, keys: Sequence[SortKey], arrays: Sequence[Array], call_kernel: KernelCaller) -> Array:
    """Sort by the last key first; as every step is stable, the first key has the last word."""
    order: Array | None = None
    for key in reversed(keys):
        values = _key_values(thunk, key, arrays, call_kernel)
        numbers = np.moveaxis(ordinals(values, key.dtype, key.total_order), thunk.dim, -1)
        numbers = ~numbers if key.descending else numbers
        if order is None:
            order = stable_order(numbers)
        else:
            again = stable_order(np.take_along_axis(numbers, order, -1))
            order = np.take_along_axis(order, again, -1)
    assert order is not None, "a sort has a key"
    return np.moveaxis(order, -1, thunk.dim)


def _key_values(thunk: SortThunk, key: SortKey, arrays: Sequence[Array], call_kernel: KernelCaller) -> Array:
    if not key.kernel:
        return arrays[key.operands[0]]
    first = thunk.operands[key.operands[0]]
    given = [_packed(arrays[number], thunk.operands[number]) for number in key.operands]
    out = np.empty(size_bytes(key.dtype, first.dims), np.uint8)
    call_kernel(key.kernel, [*given, out])
    return from_bytes(out, key.dtype, first.dims, first.minor_to_major)


def _packed(array: Array, spec: ArraySpec) -> Bytes:
    return to_bytes(np.asarray(array), spec.dtype, spec.minor_to_major)


def ordinals(values: Array, dtype: str, total_order: bool) -> Array:
    """Return ints that compare as the values do; equal values have equal ones."""
    record = DTYPES[dtype]
    if not record.is_float:
        small = record.bits < 8 or record.kind == "pred"
        return values.astype(np.int8 if record.is_signed else np.uint8) if small else values
    if not total_order:
        values = np.where(values == 0, np.zeros((), values.dtype), values)
        values = np.where(np.isnan(values), np.abs(np.full((), np.nan).astype(values.dtype)), values)
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
    return np.where(bits == lowest, lowest if total_order else -(lowest + 1), turned) if "fnuz" in dtype else turned


def stable_order(keys: Array) -> Array:
    """Return the places of the elements of the last dimension in ascending order; equal ones keep their order."""
    length = keys.shape[-1]
    if keys.dtype.itemsize > 4 or keys.dtype.kind not in "iu" or length >= 1 << 32:
        return np.argsort(keys, axis=-1, kind="stable")
    # Key and place in one number: all are different, so the fastest sort will do.
    lowest = np.iinfo(keys.dtype).min
    packed = (keys.astype(np.int64) - int(lowest)).astype(np.uint64) << np.uint64(32)
    packed |= np.arange(length, dtype=np.uint64)
    packed.sort(axis=-1)
    return (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)


# ---- by a comparator ------------------------------------------------------------------------------------------------


def _order_by_comparator(
    thunk: SortThunk, comparator: SortComparator, arrays: Sequence[Array], call_kernel: KernelCaller
) -> Array:
    """Merge sorted runs of 1, 2, 4, .. elements: where an element goes is found by bisecting the run beside its own."""
    flat = [np.ascontiguousarray(np.moveaxis(array, thunk.dim, -1)).reshape(-1) for array in arrays]
    moved = np.moveaxis(arrays[0], thunk.dim, -1).shape
    length = moved[-1]
    rows = math.prod(moved[:-1])
    compare = _kernel_compare(thunk, comparator, flat, call_kernel)
    order: Array = np.arange(rows * length, dtype=np.int64).reshape(rows, length)
    width = 1
    while width < length:
        order = _merge(order, width, compare)
        width *= 2
    starts: Array = np.arange(0, rows * length, length, dtype=np.int64)[:, None]
    return np.moveaxis((order - starts).reshape(moved), -1, thunk.dim)


def _kernel_compare(thunk: SortThunk, comparator: SortComparator, flat: Sequence[Array], call_kernel: KernelCaller) -> Compare:
    out = np.empty(comparator.pairs, np.uint8)

    def compare(first: Array, second: Array) -> Array:
        buffers: list[Bytes] = []
        for spec, values in zip(thunk.operands, flat, strict=True):
            buffers += [
                to_bytes(np.ascontiguousarray(values[places.reshape(-1)]), spec.dtype, (0,)) for places in (first, second)
            ]
        call_kernel(comparator.kernel, [*buffers, out])
        return out.reshape(first.shape) != 0

    return compare


def _merge(order: Array, width: int, compare: Compare) -> Array:
    """Return `order` with neighbouring runs of `width` elements merged; of equals, the left run's go first."""
    length = order.shape[-1]
    place = np.arange(length, dtype=np.int64)
    run = place // width
    is_left = np.broadcast_to(run % 2 == 0, order.shape)
    other = np.minimum((run ^ 1) * width, length)
    low = np.broadcast_to(other, order.shape).copy()
    high = np.broadcast_to(np.minimum(other + width, length), order.shape).copy()
    for _ in range(width.bit_length()):
        middle = (low + high) // 2
        found = np.take_along_axis(order, np.minimum(middle, length - 1), -1)
        says = compare(np.where(is_left, found, order), np.where(is_left, order, found))
        goes_before = (says == is_left) & (low < high)
        low, high = np.where(goes_before, middle + 1, low), np.where(goes_before, high, middle)
    target = (run // 2) * 2 * width + (place - run * width) + (low - other)
    merged = np.empty_like(order)
    np.put_along_axis(merged, target, order, -1)
    return merged
