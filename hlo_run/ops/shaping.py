"""Shape rules of data movement without indices: broadcast, reshape, transpose, pad and others (`ops.md` 5)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.ops.rule import (
    Rule,
    array_operand,
    array_operands,
    brief,
    dim_list,
    dynamic_dims,
    is_open,
    make_array,
    one_dim,
    operand,
    refuse,
    same_type,
    wider_type,
    with_dynamic,
)

_INT32_MAX = 2**31 - 1


def _iota(instruction: HloInstruction) -> Shape:
    shape, dim = instruction.shape, instruction.iota_dimension
    if not shape.is_array or shape.element_type == "pred":
        raise refuse(f"iota cannot have the shape {brief(shape)}")
    if not 0 <= dim < shape.rank:
        raise refuse(f"iota_dimension is {dim}, but the rank is {shape.rank}")
    return shape


def _broadcast(instruction: HloInstruction) -> Shape:
    source, target = array_operand(instruction), instruction.shape
    dims = instruction.ints("dimensions")
    if is_open(target):
        # XLA reads `dimensions` as sizes of new leading dimensions here, and as dimension numbers after this.
        if any(size < 0 for size in dims):
            raise refuse(f"a dimension has the negative size {min(dims)}")
        target = make_array(source.element_type, (*dims, *source.dims), (*[False] * len(dims), *dynamic_dims(source)))
    if not target.is_array:
        raise refuse(f"a broadcast makes an array, but its shape is {brief(target)}")
    if len(dims) != source.rank:
        raise refuse(f"dimensions has {len(dims)} entries, but the operand has shape {brief(source)}")
    for number, dim in enumerate(dims):
        if not 0 <= dim < target.rank:
            raise refuse(f"dimensions names dimension {dim}, but the rank is {target.rank}", _WRITE_SHAPE)
        if source.dims[number] != target.dims[dim]:
            raise refuse(
                f"operand dimension {number} of {brief(source)} cannot become dimension {dim} of {brief(target)}", _WRITE_SHAPE
            )
    if not same_type(source, target):
        raise refuse(f"cannot broadcast {brief(source)} to elements of type {target.element_type}")
    return target


_WRITE_SHAPE = "write the result's shape before the opcode, with the operand's dimensions at the numbers in `dimensions`"


def _reshape(instruction: HloInstruction) -> Shape:
    source, target = array_operand(instruction), instruction.shape
    if not target.is_array or source.element_count != target.element_count:
        raise refuse(f"cannot reshape {brief(source)} to {brief(target)}: the number of elements differs")
    if not same_type(source, target):
        raise refuse(f"cannot reshape {brief(source)} to {brief(target)}: the element types differ")
    return target


def _dynamic_reshape(instruction: HloInstruction) -> Shape:
    target = _reshape(instruction)
    sizes = array_operands(instruction)[1:]
    if len(sizes) != target.rank:
        raise refuse(f"expects {target.rank} sizes for {brief(target)}, but has {len(sizes)}")
    for size in sizes:
        if size.element_type != "s32":
            raise refuse(f"sizes must be s32, but one has shape {brief(size)}")
    return target


def _bitcast(instruction: HloInstruction) -> Shape:
    return instruction.shape


def _transpose(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    dims = dim_list(instruction, "dimensions", source.rank)
    if len(dims) != source.rank:
        raise refuse(f"dimensions has {len(dims)} entries, but the operand has shape {brief(source)}")
    # XLA's shape inference permutes the layout as well, so that the data stay in place.
    order = tuple(dims.index(dim) for dim in source.minor_to_major)
    layout = Layout(order, source.layout.extra if source.layout else "")
    sizes = tuple(source.dims[dim] for dim in dims)
    dynamic = tuple(source.dynamic_dims[dim] for dim in dims) if source.dynamic_dims else ()
    return Shape(source.element_type, sizes, layout, (), dynamic)


def _shuffle(instruction: HloInstruction) -> Shape:
    # XLA does not check its dimensions.
    return array_operand(instruction)


def _reverse(instruction: HloInstruction) -> Shape:
    source = array_operand(instruction)
    dim_list(instruction, "dimensions", source.rank)
    return source


def _concatenate(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("concatenate expects at least 1 operand, but has 0 operands")
    first = shapes[0]
    dim = one_dim(instruction, "dimensions", first.rank)
    kind, dynamic = first.element_type, [*dynamic_dims(first)]
    for shape in shapes[1:]:
        if shape.rank != first.rank or any(
            a != b for d, (a, b) in enumerate(zip(shape.dims, first.dims, strict=True)) if d != dim
        ):
            raise refuse(f"cannot concatenate {brief(first)} and {brief(shape)} along dimension {dim}")
        if not same_type(first, shape):
            raise refuse(f"operand element types differ: {brief(first)} and {brief(shape)}")
        # As in XLA, the type is that of the first and the last operand.
        kind = wider_type(first.element_type, shape.element_type)
        dynamic = [one or other for one, other in zip(dynamic, dynamic_dims(shape), strict=True)]
    total = sum(shape.dims[dim] for shape in shapes)
    return make_array(kind, (*first.dims[:dim], total, *first.dims[dim + 1 :]), dynamic)


def _pad(instruction: HloInstruction) -> Shape:
    source, value = array_operands(instruction)
    if not same_type(source, value):
        raise refuse(f"operand element types differ: {brief(source)} and {brief(value)}")
    if value.rank:
        raise refuse(f"the padding value must be a scalar, but has shape {brief(value)}")
    padding = instruction.padding
    if len(padding) != source.rank:
        raise refuse(f"padding has {len(padding)} entries, but the operand has shape {brief(source)}")
    sizes: list[int] = []
    for dim, (low, high, interior) in enumerate(padding):
        size = low + high + source.dims[dim] + max(source.dims[dim] - 1, 0) * interior
        if size < 0 or interior < 0:
            raise refuse(f"padding {low}_{high}_{interior} of dimension {dim} gives the size {size}")
        sizes.append(size)
    return make_array(wider_type(source.element_type, value.element_type), sizes, dynamic_dims(source))


def _set_dimension_size(instruction: HloInstruction) -> Shape:
    source, size = operand(instruction, 0), operand(instruction, 1)
    dim = _size_dimension(instruction, source)
    if size.element_type != "s32" or size.rank:
        raise refuse(f"the size must be s32[], but has shape {brief(size)}")
    dynamic = [*dynamic_dims(source)]
    dynamic[dim] = True
    return with_dynamic(source, dynamic)


def _get_dimension_size(instruction: HloInstruction) -> Shape:
    _size_dimension(instruction, operand(instruction, 0))
    return Shape.array("s32", ())


def _size_dimension(instruction: HloInstruction, source: Shape) -> int:
    # As in XLA, only the first entry is used.
    dim = next(iter(instruction.dimensions), -1)
    if not 0 <= dim < source.rank:
        raise refuse(f"dimensions must name one dimension of {brief(source)}")
    if source.dims[dim] > _INT32_MAX:
        raise refuse(f"dimension {dim} of {brief(source)} is too large for s32")
    return dim


INFER: dict[Opcode, Rule] = {
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "dynamic-reshape": _dynamic_reshape,
    "bitcast": _bitcast,
    "transpose": _transpose,
    "reverse": _reverse,
    "shuffle": _shuffle,
    "concatenate": _concatenate,
    "pad": _pad,
    "set-dimension-size": _set_dimension_size,
    "get-dimension-size": _get_dimension_size,
}
