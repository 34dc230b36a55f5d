"""`gather` and `scatter` as whole-array indexing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hlo_run.hlo.dtype import DType
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.reduce import REDUCTIONS, recognised
from hlo_run.reference.values import Array, Calls, Value, arrays_row, as_array, computing_type, narrow, table


def _start_vectors(indices: Array, vector_dim: int, index_map: Sequence[int], rank: int) -> Array:
    """Return the start per operand dimension, [batch dims of indices.., rank]; dimensions that have no index are 0."""
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    vectors = np.moveaxis(indices, vector_dim, -1)
    if vectors.dtype.kind == "u":
        # Huge unsigned indices are far out of bounds, not negative.
        vectors = np.minimum(vectors.astype(np.uint64), np.uint64(2**62))
    starts = np.zeros((*vectors.shape[:-1], rank), np.int64)
    for k, dim in enumerate(index_map):
        starts[..., dim] = vectors[..., k].astype(np.int64)
    return starts


def _set_batching(starts: Array, operand_dims: Sequence[int], indices_dims: Sequence[int], vector_dim: int) -> None:
    """Let each batching dimension of the operand go along with its dimension of the indices."""
    for operand_dim, indices_dim in zip(operand_dims, indices_dims, strict=True):
        axis = indices_dim - (indices_dim > vector_dim)
        np.moveaxis(starts, axis, -1)[..., operand_dim, :] = np.arange(starts.shape[axis])


def _elements(starts: Array, window_sizes: Sequence[int], window_dims: Sequence[int]) -> tuple[Array, ...]:
    """Return the index per operand dimension, all broadcasting to [batch dims.., window dims..]."""
    found: list[Array] = []
    for dim in range(len(window_sizes)):
        start = starts[..., dim].reshape((*starts.shape[:-1], *(1 for _ in window_dims)))
        if dim in window_dims:
            place = window_dims.index(dim)
            start = start + np.arange(window_sizes[dim]).reshape([-1 if w == place else 1 for w in range(len(window_dims))])
        found.append(start)
    return tuple(found)


def _gather(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    operand, indices = operands
    attrs, rank = instruction.attrs, operands[0].ndim
    sizes: tuple[int, ...] = attrs["slice_sizes"]
    vector_dim: int = attrs["index_vector_dim"]
    if operand.size == 0:
        return np.zeros(instruction.shape.dims, operand.dtype)
    starts = _start_vectors(indices, vector_dim, attrs["start_index_map"], rank)
    starts = np.clip(starts, 0, np.asarray(operand.shape, np.int64) - np.asarray(sizes, np.int64))
    batching = tuple(attrs.get("operand_batching_dims", ()))
    _set_batching(starts, batching, attrs.get("start_indices_batching_dims", ()), vector_dim)
    dropped = (*attrs["collapsed_slice_dims"], *batching)
    window_dims = [d for d in range(rank) if d not in dropped]
    picked = operand[np.broadcast_arrays(*_elements(starts, sizes, window_dims))] if rank else operand
    return _place_window_dims(picked, tuple(attrs["offset_dims"]), starts.ndim - 1, instruction.shape.rank)


def _place_window_dims(picked: Array, offset_dims: Sequence[int], batch_rank: int, rank: int) -> Array:
    """Bring [batch.., window..] into the result's order: window dimensions at `offset_dims`, batch ones between."""
    batch = iter(range(batch_rank))
    return np.transpose(picked, [batch_rank + offset_dims.index(d) if d in offset_dims else next(batch) for d in range(rank)])


def _scatter(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Updates in row-major order of the indices; a window that is not wholly in bounds is left out."""
    arrays = [as_array(operand) for operand in operands]
    count = len(arrays) // 2
    outs = [array.reshape(-1).copy() for array in arrays[:count]]
    targets, valid = _scatter_targets(instruction, arrays[0], arrays[count], arrays[count + 1])
    updates = [_scatter_order(instruction, update)[valid] for update in arrays[count + 1 :]]
    _combine(instruction, outs, targets[valid], updates, calls)
    shaped = tuple(out.reshape(array.shape) for out, array in zip(outs, arrays, strict=False))
    return shaped if instruction.shape.is_tuple else shaped[0]


def _scatter_order(instruction: HloInstruction, update: Array) -> Array:
    """Return the update's elements as a line: scatter dimensions outside, window dimensions inside."""
    window: tuple[int, ...] = instruction.attrs["update_window_dims"]
    return np.transpose(update, [*(d for d in range(update.ndim) if d not in window), *window]).reshape(-1)


def _scatter_targets(instruction: HloInstruction, operand: Array, indices: Array, update: Array) -> tuple[Array, Array]:
    """Return, for the line of `_scatter_order`, the flat index in the operand and whether its window is in bounds."""
    attrs, rank = instruction.attrs, operand.ndim
    vector_dim: int = attrs["index_vector_dim"]
    starts = _start_vectors(indices, vector_dim, attrs["scatter_dims_to_operand_dims"], rank)
    batching = tuple(attrs.get("input_batching_dims", ()))
    _set_batching(starts, batching, attrs.get("scatter_indices_batching_dims", ()), vector_dim)
    dropped = (*attrs["inserted_window_dims"], *batching)
    window_dims = [d for d in range(rank) if d not in dropped]
    sizes = [1] * rank
    for dim, update_dim in zip(window_dims, attrs["update_window_dims"], strict=True):
        sizes[dim] = update.shape[update_dim]
    room = np.asarray(operand.shape, np.int64) - np.asarray(sizes, np.int64)
    inside = np.all((starts >= 0) & (starts <= room), axis=-1)
    flat = np.zeros((), np.int64)
    for index, size in zip(_elements(starts, sizes, window_dims), operand.shape, strict=True):
        flat = flat * size + index
    dims = (*starts.shape[:-1], *(sizes[d] for d in window_dims))
    valid = np.broadcast_to(inside.reshape((*inside.shape, *(1 for _ in window_dims))), dims)
    return np.broadcast_to(flat, dims).reshape(-1), valid.reshape(-1)


def _combine(instruction: HloInstruction, outs: list[Array], targets: Array, updates: list[Array], calls: Calls) -> None:
    """Combine each update into its target, in order where several meet."""
    (combiner,) = instruction.called["to_apply"]
    types = [operand.shape.dtype for operand in instruction.operands[: len(outs)]]
    if len(outs) == 1 and combine_quickly(recognised(combiner), outs[0], targets, updates[0], types[0]):
        return
    for chosen in rounds(targets):
        places = targets[chosen]
        combined = calls.call_on_elements(combiner, [*(out[places] for out in outs), *(update[chosen] for update in updates)])
        for out, new, out_type in zip(outs, combined, types, strict=False):
            out[places] = narrow(new, out_type)


def combine_quickly(opcode: str | None, out: Array, targets: Array, update: Array, dtype: DType) -> bool:
    """Combine the updates into their places of `out`, a line, by one op in place; False if numpy has no such op."""
    if opcode not in REDUCTIONS or dtype.kind == "pred" or computing_type(dtype) != dtype.numpy:
        return False
    REDUCTIONS[opcode].at(out, targets, update)
    return True


def rounds(targets: Array) -> Iterator[Array]:
    """Yield positions so that no round meets a target twice and equal targets come in order of position."""
    if not targets.size:
        return
    order = np.argsort(targets, kind="stable")
    line = targets[order]
    first = np.concatenate([[True], line[1:] != line[:-1]])
    starts = np.maximum.accumulate(np.where(first, np.arange(len(line)), 0))
    turn = np.arange(len(line)) - starts
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


EVALUATE = table(arrays_row("gather", _gather), ("scatter", _scatter))
