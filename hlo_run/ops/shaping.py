"""Shape rules of opcodes that move elements without computing on them (`ops.md` 5)."""

from __future__ import annotations

from dataclasses import replace

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.ops.rule import (
    Rule,
    array_operand,
    array_operands,
    brief,
    dim_list,
    is_open,
    one_dim,
    operand,
    refuse,
    resized,
    same_types,
)


def _iota(instruction: HloInstruction) -> Shape:
    shape, dim = instruction.shape, instruction.attrs["iota_dimension"]
    if not shape.is_array or shape.element_type == "pred":
        raise refuse(f"iota does not make elements of shape {brief(shape)}")
    if not 0 <= dim < shape.rank:
        raise refuse(f"iota_dimension is {dim}, but the rank is {shape.rank}")
    return shape


def _broadcast(instruction: HloInstruction) -> Shape:
    source, target = array_operand(instruction), instruction.shape
    if is_open(target):
        if source.rank or instruction.attrs.get("dimensions"):
            raise refuse("cannot infer the shape of a broadcast", hint="write the result's shape before the opcode")
        return source
    if not target.is_array:
        raise refuse(f"a broadcast makes an array, but its shape is {brief(target)}")
    dims = dim_list(instruction, "dimensions", target.rank)
    if len(dims) != source.rank:
        raise refuse(f"dimensions has {len(dims)} entries, but the operand has shape {brief(source)}")
    for number, dim in enumerate(dims):
        if source.dims[number] != target.dims[dim]:
            raise refuse(f"operand dimension {number} of {brief(source)} cannot become dimension {dim} of {brief(target)}")
    return target.with_element_type(source.element_type)


def _reshape(instruction: HloInstruction) -> Shape:
    source, target = array_operand(instruction), instruction.shape
    if not target.is_array or source.element_count != target.element_count:
        raise refuse(f"cannot reshape {brief(source)} to {brief(target)}: the number of elements differs")
    return target.with_element_type(source.element_type)


def _bitcast(instruction: HloInstruction) -> Shape:
    source, target = instruction.operands[0].shape, instruction.shape
    if not source.is_array or not target.is_array:
        return source
    if target.element_count * target.dtype.bits > source.element_count * source.dtype.bits:
        raise refuse(f"cannot bitcast {brief(source)} to {brief(target)}: the result has more bytes")
    return target


def _transpose(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    dims = dim_list(instruction, "dimensions", source.rank)
    if len(dims) != source.rank:
        raise refuse(f"dimensions has {len(dims)} entries, but the operand has shape {brief(source)}")
    dynamic = tuple(source.dynamic_dims[dim] for dim in dims) if source.dynamic_dims else ()
    # Shape inference of XLA permutes the layout along, so that the data stay in place.
    order = tuple(dims.index(dim) for dim in source.minor_to_major)
    shape = Shape.array(source.element_type, tuple(source.dims[dim] for dim in dims), order)
    return replace(shape, dynamic_dims=dynamic)


def _reverse(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    dim_list(instruction, "dimensions", source.rank)
    return source


def _concatenate(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("concatenate expects at least 1 operand, but has 0 operands")
    first = shapes[0]
    same_types(shapes)
    dim = one_dim(instruction, "dimensions", first.rank)
    for shape in shapes:
        if shape.rank != first.rank or any(
            a != b for d, (a, b) in enumerate(zip(shape.dims, first.dims, strict=True)) if d != dim
        ):
            raise refuse(f"cannot concatenate {brief(first)} and {brief(shape)} along dimension {dim}")
    total = sum(shape.dims[dim] for shape in shapes)
    return resized(first, (*first.dims[:dim], total, *first.dims[dim + 1 :]))


def _slice(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    ranges: tuple[tuple[int, int, int], ...] = instruction.attrs["slice"]
    if len(ranges) != source.rank:
        raise refuse(f"slice has {len(ranges)} ranges, but the operand has shape {brief(source)}")
    for dim, (start, limit, stride) in enumerate(ranges):
        if not 0 <= start <= limit <= source.dims[dim]:
            raise refuse(f"slice range [{start}:{limit}] is not within dimension {dim} of {brief(source)}")
        if stride < 1:
            raise refuse(f"slice stride {stride} of dimension {dim} is not positive")
    return resized(source, [-(-(limit - start) // stride) for start, limit, stride in ranges])


def _pad(instruction: HloInstruction) -> Shape:
    source, value = array_operands(instruction)
    same_types([source, value])
    if value.rank:
        raise refuse(f"the padding value must be a scalar, but has shape {brief(value)}")
    padding: tuple[tuple[int, int, int], ...] = instruction.attrs["padding"]
    if len(padding) != source.rank:
        raise refuse(f"padding has {len(padding)} entries, but the operand has shape {brief(source)}")
    sizes: list[int] = []
    for dim, (low, high, interior) in enumerate(padding):
        size = low + high + source.dims[dim] + max(source.dims[dim] - 1, 0) * interior
        if size < 0 or interior < 0:
            raise refuse(f"padding {low}_{high}_{interior} of dimension {dim} gives the size {size}")
        sizes.append(size)
    return resized(source, sizes)


def _dynamic_slice(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    sizes: tuple[int, ...] = instruction.attrs["dynamic_slice_sizes"]
    if len(sizes) != source.rank:
        raise refuse(f"dynamic_slice_sizes has {len(sizes)} entries, but the operand has shape {brief(source)}")
    for dim, size in enumerate(sizes):
        if not 0 <= size <= source.dims[dim]:
            raise refuse(f"slice size {size} is not within dimension {dim} of {brief(source)}")
    _check_starts(instruction, 1, source.rank)
    return resized(source, sizes)


def _dynamic_update_slice(instruction: HloInstruction) -> Shape:
    source, update = array_operand(instruction), array_operand(instruction, 1)
    same_types([source, update])
    if source.rank != update.rank or any(u > s for u, s in zip(update.dims, source.dims, strict=True)):
        raise refuse(f"the update of shape {brief(update)} does not fit into {brief(source)}")
    _check_starts(instruction, 2, source.rank)
    return source


def _check_starts(instruction: HloInstruction, first: int, rank: int) -> None:
    """Refuse start indices that are neither one scalar per dimension nor one vector of them."""
    starts = [operand(instruction, number) for number in range(first, len(instruction.operands))]
    if any(not start.is_array or not start.dtype.is_integer for start in starts):
        raise refuse("start indices must be integers")
    if len(starts) == 1 and starts[0].rank == 1:
        if starts[0].dims != (rank,):
            raise refuse(f"expects {rank} start indices, but sees a vector of {starts[0].dims[0]}")
        return
    if len(starts) != rank or any(start.rank for start in starts):
        raise refuse(f"expects {rank} scalar start indices, but has {len(starts)} of shapes {', '.join(map(brief, starts))}")
    same_types(starts or [Shape("s32")])


def _gather(instruction: HloInstruction) -> Shape:
    source, indices = array_operands(instruction)
    attrs = instruction.attrs
    vector_dim, sizes = attrs["index_vector_dim"], attrs["slice_sizes"]
    if not indices.dtype.is_integer or not 0 <= vector_dim <= indices.rank:
        raise refuse(f"start indices of shape {brief(indices)} do not go with index_vector_dim={vector_dim}")
    if len(sizes) != source.rank or any(not 0 <= size <= extent for size, extent in zip(sizes, source.dims, strict=True)):
        raise refuse(f"slice_sizes {sizes} are not within the operand's shape {brief(source)}")
    dropped = (*attrs["collapsed_slice_dims"], *attrs.get("operand_batching_dims", ()))
    if any(not 0 <= dim < source.rank or sizes[dim] > 1 for dim in dropped):
        raise refuse("collapsed and batching dimensions must have slices of size 1")
    window = [size for dim, size in enumerate(sizes) if dim not in dropped]
    batch = [size for dim, size in enumerate(indices.dims) if dim != vector_dim]
    rank = len(window) + len(batch)
    offsets = dim_list(instruction, "offset_dims", rank, ordered=True)
    if len(offsets) != len(window):
        raise refuse(f"offset_dims has {len(offsets)} entries, but slices have {len(window)} dimensions left")
    return resized(source, [window.pop(0) if dim in offsets else batch.pop(0) for dim in range(rank)])


def _set_dimension_size(instruction: HloInstruction) -> Shape:
    source, size = array_operands(instruction)
    dim = one_dim(instruction, "dimensions", source.rank)
    if size.element_type != "s32" or size.rank:
        raise refuse(f"the size must be s32[], but has shape {brief(size)}")
    dynamic = [*(source.dynamic_dims or [False] * source.rank)]
    dynamic[dim] = True
    return replace(source, dynamic_dims=tuple(dynamic))


def _get_dimension_size(instruction: HloInstruction) -> Shape:
    one_dim(instruction, "dimensions", array_operand(instruction).rank)
    return Shape.array("s32", ())


INFER: dict[str, Rule] = {
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "bitcast": _bitcast,
    "transpose": _transpose,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "slice": _slice,
    "pad": _pad,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "set-dimension-size": _set_dimension_size,
    "get-dimension-size": _get_dimension_size,
}
