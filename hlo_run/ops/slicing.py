"""Shape rules of opcodes that read or write a part of an array: slices, gather and scatter (`ops.md` 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.reducer import check_reducer
from hlo_run.ops.rule import (
    Rule,
    array_operand,
    array_operands,
    brief,
    dim_list,
    dynamic_dims,
    make_array,
    operand,
    refuse,
    same_type,
    tuple_or_one,
)


def _slice(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    ranges = instruction.slice_ranges
    if len(ranges) != source.rank:
        raise refuse(f"slice has {len(ranges)} ranges, but the operand has shape {brief(source)}")
    for dim, (start, limit, stride) in enumerate(ranges):
        if not 0 <= start <= limit <= source.dims[dim]:
            raise refuse(f"slice range [{start}:{limit}] is not within dimension {dim} of {brief(source)}")
        if stride < 1:
            raise refuse(f"slice stride {stride} of dimension {dim} is not positive")
    return make_array(source.element_type, [-(-(limit - start) // stride) for start, limit, stride in ranges])


def _dynamic_slice(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    sizes = instruction.dynamic_slice_sizes
    _check_starts(instruction, 1, source.rank)
    if len(sizes) != source.rank:
        raise refuse(f"dynamic_slice_sizes has {len(sizes)} entries, but the operand has shape {brief(source)}")
    for dim, size in enumerate(sizes):
        if not 0 <= size <= source.dims[dim]:
            raise refuse(f"slice size {size} is not within dimension {dim} of {brief(source)}")
    return make_array(source.element_type, sizes)


def _dynamic_update_slice(instruction: HloInstruction) -> Shape:
    result, update = operand(instruction, 0), array_operand(instruction, 1)
    source = result.tuple_shapes[0] if result.element_type == "buffer" else array_operand(instruction)
    _check_starts(instruction, 2, source.rank)
    if not same_type(source, update):
        raise refuse(f"operand element types differ: {brief(source)} and {brief(update)}")
    if source.rank != update.rank or any(u > s for u, s in zip(update.dims, source.dims, strict=True)):
        raise refuse(f"the update of shape {brief(update)} does not fit into {brief(source)}")
    return result


def _check_starts(instruction: HloInstruction, first: int, rank: int) -> None:
    """Refuse start indices that are neither one scalar per dimension nor one vector."""
    starts = [array_operand(instruction, number) for number in range(first, len(instruction.operands))]
    if any(not start.dtype.is_integer for start in starts):
        raise refuse("start indices must be integers")
    if len(starts) == 1 and starts[0].rank:
        if starts[0].dims != (rank,):
            raise refuse(f"expects {rank} start indices, but has {brief(starts[0])}")
        return
    if len(starts) != rank or any(start.rank for start in starts):
        raise refuse(f"expects {rank} scalar start indices, but has {len(starts)} of shapes {', '.join(map(brief, starts))}")
    for start in starts[1:]:
        if start.element_type != starts[0].element_type:
            raise refuse(f"start indices differ in type: {brief(starts[0])} and {brief(start)}")


def _index_vectors(indices: Shape, vector_dim: int) -> list[int]:
    """Return the dimensions of an index array except the index vector dimension."""
    if not indices.dtype.is_integer:
        raise refuse(f"indices must be integers, but have shape {brief(indices)}")
    if not 0 <= vector_dim <= indices.rank:
        raise refuse(f"index_vector_dim={vector_dim} does not match indices of shape {brief(indices)}")
    return [dim for dim in range(indices.rank) if dim != vector_dim]


def _check_index_map(instruction: HloInstruction, names: tuple[str, str, str], source: Shape, indices: Shape) -> None:
    """Refuse batching dimensions and an index map that do not match the operands.

    `names` are the attributes of the index map, and of the batching dimensions of operand and indices.
    """
    vector_dim = instruction.index_vector_dim
    mapped = dim_list(instruction, names[0], source.rank)
    batching = dim_list(instruction, names[1], source.rank, ordered=True)
    index_batching = dim_list(instruction, names[2], indices.rank)
    length = indices.dims[vector_dim] if vector_dim < indices.rank else 1
    if len(mapped) != length:
        raise refuse(f"{names[0]} has {len(mapped)} entries, but index vectors have {length} elements")
    if len(batching) != len(index_batching):
        raise refuse(f"{names[1]} and {names[2]} differ in length")


def _gather(instruction: HloInstruction) -> Shape:
    source, indices = array_operands(instruction)
    batch = _index_vectors(indices, instruction.index_vector_dim)
    sizes = instruction.gather_slice_sizes
    if len(sizes) != source.rank or any(not 0 <= size <= extent for size, extent in zip(sizes, source.dims, strict=True)):
        raise refuse(f"slice_sizes {sizes} are not within the operand's shape {brief(source)}")
    collapsed = dim_list(instruction, "collapsed_slice_dims", source.rank, ordered=True)
    _check_index_map(instruction, _GATHER_NAMES, source, indices)
    dropped = {*collapsed, *instruction.operand_batching_dims}
    if any(sizes[dim] > 1 for dim in dropped):
        raise refuse("collapsed and batching dimensions must have slices of size 0 or 1")
    window = [dim for dim in range(source.rank) if dim not in dropped]
    rank = len(instruction.offset_dims) + len(batch)
    offsets = dim_list(instruction, "offset_dims", rank, ordered=True)
    batching = instruction.operand_batching_dims
    if len(offsets) + len(collapsed) + len(batching) != source.rank:
        raise refuse(f"offset_dims has {len(offsets)} entries, but slices have {len(window)} dimensions left")
    source_dynamic, index_dynamic = dynamic_dims(source), dynamic_dims(indices)
    # A slice of a whole dynamic dimension is dynamic.
    windows = iter([(sizes[dim], source_dynamic[dim] and sizes[dim] == source.dims[dim]) for dim in window])
    batches = iter([(indices.dims[dim], index_dynamic[dim]) for dim in batch])
    parts = [next(windows) if dim in offsets else next(batches) for dim in range(rank)]
    return make_array(source.element_type, [size for size, _ in parts], [dynamic for _, dynamic in parts])


_GATHER_NAMES = ("start_index_map", "operand_batching_dims", "start_indices_batching_dims")
_SCATTER_NAMES = ("scatter_dims_to_operand_dims", "input_batching_dims", "scatter_indices_batching_dims")


def _scatter(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    count = len(shapes) // 2
    if len(shapes) % 2 == 0:
        raise refuse(f"scatter expects operands, indices and as many updates, but has {len(shapes)} operands")
    sources, indices, updates = shapes[:count], shapes[count], shapes[count + 1 :]
    if not sources:
        raise refuse("scatter expects at least 3 operands, but has 1")
    batch = _index_vectors(indices, instruction.index_vector_dim)
    check_reducer(instruction, [s.element_type for s in sources], [u.element_type for u in updates])
    for source, update in zip(sources, updates, strict=True):
        _check_update(instruction, source, indices, update, batch)
    return tuple_or_one(sources)


def _check_update(instruction: HloInstruction, source: Shape, indices: Shape, update: Shape, batch: Sequence[int]) -> None:
    inserted = dim_list(instruction, "inserted_window_dims", source.rank, ordered=True)
    batching = instruction.input_batching_dims
    window = dim_list(instruction, "update_window_dims", update.rank)
    if update.rank != len(batch) + len(window):
        raise refuse(f"updates of shape {brief(update)} must have rank {len(batch) + len(window)}")
    if len(window) + len(inserted) + len(batching) != source.rank:
        raise refuse(f"window, inserted and batching dimensions do not add up to the operand's shape {brief(source)}")
    _check_index_map(instruction, _SCATTER_NAMES, source, indices)
    kept = [size for dim, size in enumerate(source.dims) if dim not in inserted and dim not in batching]
    for dim, size in zip(window, kept, strict=True):
        if update.dims[dim] > size:
            raise refuse(f"dimension {dim} of the updates, {brief(update)}, is larger than the operand's, {brief(source)}")
    outer = [size for dim, size in enumerate(update.dims) if dim not in window]
    if outer != [indices.dims[dim] for dim in batch]:
        raise refuse(f"updates of shape {brief(update)} do not match indices of shape {brief(indices)}")


INFER: dict[Opcode, Rule] = {
    "slice": _slice,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
