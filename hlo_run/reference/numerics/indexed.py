"""Evaluate `gather` and `scatter` by indexing rows of the operand with numpy.

A row is the innermost dimensions that a window covers completely. The offsets of a window's rows depend on the shapes
alone. An evaluation clamps the indices (gather) or drops windows out of bounds (scatter), and adds the offsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.reference.numerics.reduce import PRED_REDUCTIONS, REDUCTIONS, recognised
from hlo_run.reference.values import Array, Calls, Kernel, Value, as_array, computing_type, narrow, prepared_row, table


class _Places(Struct, frozen=True):
    """The rows of the windows of an operand, for index vectors in the last dimension of an array.

    `limits` are the largest starts per component of a vector, and `strides` the rows per step of a component. `offsets`
    are the rows of a window relative to its start, including the batching dimensions; they broadcast to `dims`, which is
    [batch.., window dims outside rows..]. `row_dims` are the dimensions of a row. `paired`, which broadcasts to [batch..],
    is false for batch elements beyond the end of the operand's batching dimensions; their `offsets` are clamped to it.
    """

    limits: Array
    strides: Array
    offsets: Array
    paired: Array
    dims: tuple[int, ...]
    row_dims: tuple[int, ...]

    @property
    def row_size(self) -> int:
        return math.prod(self.row_dims)

    def rows(self, starts: Array) -> Array:
        """Return the row numbers, [batch.., window dims outside rows..], of windows at `starts`, which are in bounds."""
        line = (starts * self.strides).sum(-1, dtype=np.int64)
        return line.reshape(line.shape + (1,) * (self.offsets.ndim - line.ndim)) + self.offsets


def _places(
    dims: Sequence[int],
    sizes: Sequence[int],
    index_map: Sequence[int],
    window_dims: Sequence[int],
    batching: Sequence[tuple[int, int]],
    batch: Sequence[int],
) -> _Places:
    """Return the places of windows of `sizes`.

    `window_dims` are the operand's dimensions that the window keeps. `batching` has pairs of a batching dimension of the
    operand and the number of its dimension in `batch`, the batch dimensions of the indices.
    """
    first = len(dims)
    while first and sizes[first - 1] == dims[first - 1] and first - 1 in window_dims:
        first -= 1
    steps = [math.prod(dims[d + 1 : first]) if d < first else 0 for d in range(len(dims))]
    outside = [d for d in window_dims if d < first]
    rank = len(batch) + len(outside)
    offsets, paired = np.zeros((1,) * rank, np.int64), np.ones((1,) * len(batch), np.bool_)
    for dim, axis in batching:
        places = np.arange(batch[axis], dtype=np.int64)
        offsets = offsets + _along(np.minimum(places, dims[dim] - 1) * steps[dim], axis, rank)
        paired = paired & _along(places < dims[dim], axis, len(batch))
    for k, dim in enumerate(outside):
        offsets = offsets + _along(np.arange(sizes[dim], dtype=np.int64) * steps[dim], len(batch) + k, rank)
    limits = np.array([dims[d] - sizes[d] for d in index_map], np.int64)
    strides = np.array([steps[d] for d in index_map], np.int64)
    shape = (*batch, *(sizes[d] for d in outside))
    return _Places(limits, strides, offsets, paired, shape, tuple(dims[first:]))


def _along(line: Array, axis: int, rank: int) -> Array:
    """Reshape a one-dimensional array to `rank` dimensions, with its elements along `axis`."""
    return line.reshape([-1 if dim == axis else 1 for dim in range(rank)])


def _vectors(rank: int, vector_dim: int, dtype: DType, components: Sequence[int]) -> Kernel:
    """Return a function that converts indices to s64 vectors [batch.., component], with only these components."""

    def vectors(indices: Array) -> Array:
        if vector_dim == rank:
            indices = indices[..., None]
        elif vector_dim != rank - 1:
            indices = np.moveaxis(indices, vector_dim, -1)
        if dtype.bits == 64 and not dtype.is_signed:
            # Indices above the s64 range are out of bounds, not negative.
            indices = np.minimum(indices, np.uint64(2**62))
        if len(components) < indices.shape[-1]:
            indices = indices[..., components]
        return indices.astype(np.int64, copy=False)

    return vectors


def _batch_dims(dims: Sequence[int], vector_dim: int) -> tuple[int, ...]:
    return tuple(size for d, size in enumerate(dims) if d != vector_dim)


def _batching(view: Indexed) -> list[tuple[int, int]]:
    """Return pairs of an operand's batching dimension and its dimension in the batch.

    A dimension paired with the index vector dimension is left out: its index is 0, as on XLA:GPU.
    """
    vector_dim = view.index_vector_dim
    pairs = zip(view.operand_batching, view.indices_batching, strict=True)
    return [(dim, other - (other > vector_dim)) for dim, other in pairs if other != vector_dim]


def _components(view: Indexed) -> list[int]:
    """Return the used components of an index vector: batching dimensions are ignored."""
    return [number for number, dim in enumerate(view.index_map) if dim not in view.operand_batching]


def _places_of(
    view: Indexed, dims: Sequence[int], batch: Sequence[int], sizes: Sequence[int], components: Sequence[int]
) -> _Places:
    index_map = [view.index_map[number] for number in components]
    return _places(dims, sizes, index_map, view.kept_dims, _batching(view), batch)


def _gather(instruction: HloInstruction) -> Kernel:
    view = Indexed.of(instruction)
    operand, indices, batch, sizes = view.operand.shape, view.indices.shape, view.row_sizes, view.slice_sizes
    components = _components(view)
    places = _places_of(view, operand.dims, batch, sizes, components)
    vectors = _vectors(indices.rank, view.index_vector_dim, indices.dtype, components)
    picked = (*batch, *(sizes[d] for d in view.kept_dims))
    order = _result_order(view.window_dims, len(batch), instruction.shape.rank)
    # As XLA does, a slice without elements gives zeros, if a result has elements nevertheless.
    is_empty, dtype = 0 in operand.dims or 0 in sizes, operand.dtype.numpy

    def kernel(operand: Array, indices: Array) -> Array:
        if is_empty:
            return np.zeros(instruction.shape.dims, dtype)
        rows = places.rows(np.clip(vectors(indices), 0, places.limits))
        found = np.take(operand.reshape(-1, places.row_size), np.broadcast_to(rows, places.dims), axis=0)
        return found.reshape(picked).transpose(order)

    return kernel


def _result_order(offset_dims: Sequence[int], batch_rank: int, rank: int) -> tuple[int, ...]:
    """Return the permutation of [batch.., window..] to the result: window dimensions are at `offset_dims`."""
    batch = iter(range(batch_rank))
    return tuple(batch_rank + offset_dims.index(d) if d in offset_dims else next(batch) for d in range(rank))


def _scatter(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Apply updates in row-major order of the indices; a window that is partly out of bounds is skipped."""
    arrays = [as_array(operand) for operand in operands]
    count = len(arrays) // 2
    inputs, indices, updates = arrays[:count], arrays[count], arrays[count + 1 :]
    if not inputs[0].size:
        return tuple(inputs) if instruction.shape.is_tuple else inputs[0]
    dtype = instruction.operands[count].shape.dtype
    view = Indexed.of(instruction)
    components = _components(view)
    places = _scatter_places(view, inputs[0], indices, updates[0], components)
    starts = _vectors(indices.ndim, view.index_vector_dim, dtype, components)(indices)
    rows = np.broadcast_to(places.rows(starts), places.dims)
    inside = np.all((starts >= 0) & (starts <= places.limits), axis=-1) & places.paired
    lines = [_scatter_order(instruction, update).reshape(*rows.shape, places.row_size) for update in updates]
    if not inside.all():
        rows, lines = rows[inside], [line[inside] for line in lines]
    outs = [array.copy().reshape(-1, places.row_size) for array in inputs]
    flat = [line.reshape(-1, places.row_size) for line in lines]
    _combine(instruction, outs, rows.reshape(-1), flat, calls)
    shaped = tuple(out.reshape(array.shape) for out, array in zip(outs, arrays, strict=False))
    return shaped if instruction.shape.is_tuple else shaped[0]


def _scatter_order(instruction: HloInstruction, update: Array) -> Array:
    """Transpose the update to [scatter dims.., window dims..]."""
    window = instruction.update_window_dims
    return np.transpose(update, [*(d for d in range(update.ndim) if d not in window), *window])


def _scatter_places(view: Indexed, operand: Array, indices: Array, update: Array, components: Sequence[int]) -> _Places:
    # The arrays may be dynamic, smaller than their bounds.
    sizes = [1] * operand.ndim
    for dim, update_dim in zip(view.kept_dims, view.window_dims, strict=True):
        sizes[dim] = update.shape[update_dim]
    batch = _batch_dims(indices.shape, view.index_vector_dim)
    return _places_of(view, operand.shape, batch, sizes, components)


def _combine(instruction: HloInstruction, outs: list[Array], rows: Array, updates: list[Array], calls: Calls) -> None:
    """Combine updates into rows of `outs`, in place; updates of the same row are combined in order."""
    combiner = instruction.to_apply
    types = [operand.shape.dtype for operand in instruction.operands[: len(outs)]]
    if len(outs) == 1 and _overwrites(combiner):
        # numpy keeps the last of several values for one row.
        outs[0][rows] = updates[0]
        return
    size = outs[0].shape[1]
    if len(outs) == 1:
        elements = _elements(rows, size)
        if combine_quickly(recognised(combiner), outs[0].reshape(-1), elements.reshape(-1), updates[0].reshape(-1), types[0]):
            return
    for chosen in rounds(rows):
        places = rows[chosen]
        combined = calls.call_on_elements(combiner, [*(out[places] for out in outs), *(update[chosen] for update in updates)])
        for out, new, out_type in zip(outs, combined, types, strict=False):
            out[places] = narrow(new, out_type)


def _elements(rows: Array, size: int) -> Array:
    """Return the element numbers [row, element] of rows of `size` elements."""
    return np.add.outer(rows * size, np.arange(size))


def _overwrites(combiner: HloComputation) -> bool:
    """True if the combiner returns the update."""
    return combiner.root.opcode == "parameter" and combiner.root.parameter_number == 1


def combine_quickly(opcode: str | None, out: Array, targets: Array, update: Array, dtype: DType) -> bool:
    """Combine updates in place into elements of `out`, all 1-d, with a ufunc; return False if numpy has none for it."""
    reductions = PRED_REDUCTIONS if dtype.kind == "pred" else REDUCTIONS
    if opcode not in reductions or computing_type(dtype) != dtype.numpy or (dtype.is_complex and opcode not in _COMPLEX):
        return False
    reductions[opcode].at(out, targets, update)
    return True


# The combiners that complex numbers have. numpy's product of them differs between processors.
_COMPLEX: frozenset[Opcode] = frozenset(("add",))


def rounds(targets: Array) -> Iterator[Array]:
    """Yield rounds of positions: targets are distinct within a round, and equal targets keep their order over the rounds.

    The number of rounds is the largest number of equal targets, whose updates depend on each other.
    """
    if not targets.size:
        return
    order = np.argsort(targets, kind="stable")
    line = targets[order]
    first = np.concatenate([[True], line[1:] != line[:-1]])
    starts = np.maximum.accumulate(np.where(first, np.arange(len(line)), 0))
    turn = np.arange(len(line)) - starts
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


EVALUATE = table(prepared_row("gather", _gather), ("scatter", _scatter))
