"""Evaluate ops that move elements: iota, broadcast, reshape, bitcast, transpose, slices, concatenate, pad, copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller

import numpy as np

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.buffer_calls import array_of
from hlo_run.reference.bits import from_packed_bytes, to_packed_bytes
from hlo_run.reference.values import Array, Calls, Kernel, Value, arrays_row, as_array, narrow, prepared_row, table


def _iota(instruction: HloInstruction) -> Kernel:
    dims = instruction.shape.dims
    dim = instruction.iota_dimension
    dtype = instruction.shape.dtype

    def kernel() -> Array:
        if 0 in dims:  # the other dimensions may be longer than memory
            return np.empty(dims, dtype.numpy)
        line = narrow(np.arange(dims[dim], dtype=np.int64), dtype)
        return np.broadcast_to(line.reshape([-1 if d == dim else 1 for d in range(len(dims))]), dims)

    return kernel


def _broadcast(instruction: HloInstruction) -> Kernel:
    """Return a kernel whose result is a view that repeats elements by strides of 0."""
    dims, mapping = instruction.shape.dims, instruction.ints("dimensions")
    spread = [size if d in mapping else 1 for d, size in enumerate(dims)]
    # The verifier allows unsorted dimensions: transpose the operand to the order of the result first.
    order = tuple(sorted(range(len(mapping)), key=mapping.__getitem__))
    is_sorted = order == tuple(range(len(mapping)))

    def kernel(array: Array) -> Array:
        ordered = array if is_sorted else array.transpose(order)
        return repeated(ordered.reshape(spread), dims)

    return kernel


def repeated(array: Array, dims: tuple[int, ...]) -> Array:
    """Return `array`, whose dimensions equal `dims` or are 1, as a view of `dims`: a faster np.broadcast_to."""
    if array.dtype.isbuiltin != 1:
        # np.ndarray accepts no buffer of an ml_dtypes type.
        return np.broadcast_to(array, dims)
    strides = [0 if own == 1 else stride for own, stride in zip(array.shape, array.strides, strict=True)]
    if array.flags.c_contiguous:
        return np.ndarray(dims, array.dtype, array, 0, strides)
    return np.broadcast_to(array, dims)


def _reshape(instruction: HloInstruction) -> Kernel:
    return methodcaller("reshape", instruction.shape.dims)


def _bitcast(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    source, target = instruction.operands[0].shape, instruction.shape
    if source.dtype.bits * source.element_count < target.dtype.bits * target.element_count:
        what = f"'{instruction.name}' (bitcast): expected at most the bytes of {source}, found {target}"
        raise ParseError(what, instruction.where)
    return bitcast(operands[0], source, target)


def bitcast(array: Array, source: Shape, target: Shape) -> Array:
    """Return the value of shape `target` in the bytes of `array`, of shape `source`, both with their layouts.

    `target` may have fewer bytes than `source`.
    """
    physical = physical_order(array, source.minor_to_major)
    if source.element_type != target.element_type:
        physical = _reinterpret(physical, source.dtype, target.dtype, target.element_count)
    return logical_order(physical[: target.element_count], target.dims, target.minor_to_major)


def physical_order(array: Array, minor_to_major: Sequence[int]) -> Array:
    """Return the elements as a 1-d array in the order of a buffer with this layout."""
    return np.transpose(array, tuple(reversed(minor_to_major))).reshape(-1)


def logical_order(line: Array, dims: Sequence[int], minor_to_major: Sequence[int]) -> Array:
    """Return the array of `dims` whose elements in a buffer with this layout are `line`."""
    major_to_minor = tuple(reversed(minor_to_major))
    return np.transpose(line.reshape([dims[d] for d in major_to_minor]), np.argsort(np.asarray(major_to_minor, dtype=np.int64)))


def _reinterpret(line: Array, source: DType, target: DType, count: int) -> Array:
    if source.bits >= 8 and target.bits >= 8 and source.bits % target.bits == 0:
        return np.ascontiguousarray(line).view(target.numpy)
    return from_packed_bytes(to_packed_bytes(line, source), target, count)


def _transpose(instruction: HloInstruction) -> Kernel:
    return methodcaller("transpose", tuple(instruction.dimensions))


def _reverse(instruction: HloInstruction) -> Kernel:
    dims = instruction.dimensions
    backwards = slice(None, None, -1)
    return itemgetter(tuple(backwards if d in dims else slice(None) for d in range(instruction.shape.rank)))


def _slice(instruction: HloInstruction) -> Kernel:
    # The ellipsis makes the result of rank 0 an array, not a scalar.
    return itemgetter((*(slice(start, limit, stride) for start, limit, stride in instruction.slice_ranges), ...))


def _concatenate(instruction: HloInstruction) -> Kernel:
    dim: int = instruction.dimensions[0]
    return lambda *operands: np.concatenate(operands, dim)


def _pad(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    return padded(operands[0], operands[1], instruction.padding)


def padded(operand: Array, fill: Array, edges: Sequence[tuple[int, int, int]]) -> Array:
    """Pad the operand with (low, high, interior) elements of `fill` per dimension; a negative low or high removes elements."""
    dims = [
        low + size + max(size - 1, 0) * interior + high for size, (low, high, interior) in zip(operand.shape, edges, strict=True)
    ]
    out = np.full(dims, fill, operand.dtype)
    source: list[slice] = []
    target: list[slice] = []
    for size, out_size, (low, _high, interior) in zip(operand.shape, dims, edges, strict=True):
        # Element i is at low + i * step.
        step = interior + 1
        first = -(min(low, 0) // step)
        last = min(size, (out_size - 1 - low) // step + 1)
        count = max(0, last - first)
        start = low + first * step
        source.append(slice(first, first + count))
        target.append(slice(start, start + count * step, step) if count else slice(0, 0))
    out[tuple(target)] = operand[tuple(source)]
    return out


def _window(dims: Sequence[int], sizes: Sequence[int]) -> Callable[[Sequence[Array]], tuple[slice, ...]]:
    """Return a function from start indices to the window of `sizes`; starts are clamped to [0, dim - size].

    The starts are one scalar per dimension, or one array with all of them.
    """
    bounds = [(dim - size, size) for dim, size in zip(dims, sizes, strict=True)]

    def window(starts: Sequence[Array]) -> tuple[slice, ...]:
        numbers = starts[0].tolist() if len(starts) == 1 and starts[0].ndim else [start.item() for start in starts]
        found: list[slice] = []
        for start, (last, size) in zip(numbers, bounds, strict=True):
            first = 0 if start < 0 else min(start, last)
            found.append(slice(first, first + size))
        return tuple(found)

    return window


def _dynamic_slice(instruction: HloInstruction) -> Kernel:
    window = _window(instruction.operands[0].shape.dims, instruction.shape.dims)

    def kernel(operand: Array, *starts: Array) -> Array:
        # The ellipsis makes the result of rank 0 an array, not a scalar.
        return operand[(*window(starts), ...)]

    return kernel


def _dynamic_update_slice(instruction: HloInstruction) -> Kernel:
    window = _window(array_of(instruction.shape).dims, instruction.operands[1].shape.dims)

    def kernel(operand: Array, update: Array, *starts: Array) -> Array:
        out = operand.copy()
        out[window(starts)] = update
        return out

    return kernel


def _copy(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the operand, rounded to the result's type: a layout does not change an array's value."""
    return narrow(as_array(operands[0]), instruction.shape.dtype) if instruction.shape.is_array else operands[0]


EVALUATE = table(
    prepared_row("iota", _iota),
    prepared_row("broadcast", _broadcast),
    prepared_row("reshape", _reshape),
    arrays_row("bitcast", _bitcast),
    prepared_row("transpose", _transpose),
    prepared_row("reverse", _reverse),
    prepared_row("slice", _slice),
    prepared_row("concatenate", _concatenate),
    arrays_row("pad", _pad),
    prepared_row("dynamic-slice", _dynamic_slice),
    prepared_row("dynamic-update-slice", _dynamic_update_slice),
    ("copy", _copy),
)
