"""Emits the opcodes whose indices are data: dynamic-slice, dynamic-update-slice, gather."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from hlo_run.codegen.elemental.builder import INDEX, IrBuilder
from hlo_run.codegen.elemental.emission import Emission, EmissionContext, EmitStructured, Request, Values, element
from hlo_run.codegen.elemental.shaping import choose
from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.indexing.expr import dim
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import Variable
from hlo_run.ops.index import runtime_values


def clamp_start(b: IrBuilder, value: SSAValue, high: int, signed: bool) -> SSAValue:
    """Return the start of a slice, an integer value, clamped to [0, high] as an index."""
    if high <= 0:
        return b.index(0)
    if not signed:
        return b.binary(arith.MinUIOp, b.cast(IndexCastUIOp, value, INDEX), b.index(high))
    capped = b.binary(arith.MinSIOp, b.cast(arith.IndexCastOp, value, INDEX), b.index(high))
    return b.binary(arith.MaxSIOp, capped, b.index(0))


@lru_cache(maxsize=1024)
def _sum_map(size: int, last_start: int) -> IndexingMap:
    window, start = Variable(Interval.of_size(size)), Variable(Interval(0, last_start))
    return IndexingMap((window, start), (), (), (dim(0) + dim(1),))


def add_start(b: IrBuilder, position: SSAValue, start: SSAValue, window_size: int, size: int) -> SSAValue:
    """Return position + start, for a window of `window_size` in a dimension of `size`.

    The sum is an apply_indexing, so that later indexing maps can fold it.
    """
    return b.apply(_sum_map(window_size, size - window_size), (position, start))[0]


def _starts(
    ctx: EmissionContext, instruction: HloInstruction, index: Values, window: HloInstruction
) -> Generator[Request, Values, list[SSAValue]]:
    """Return the clamped starts of the slice with `window`'s sizes, one per dimension of operand 0."""
    b, source = ctx.builder, instruction.operands[0]
    reads = runtime_values(instruction, 0 if instruction.opcode == "dynamic-slice" else 1)
    starts: list[SSAValue] = []
    for read, size, window_size in zip(reads, source.shape.dims, window.shape.dims, strict=True):
        if size == window_size:
            starts.append(b.index(0))
            continue
        operand = instruction.operands[read.operand_number]
        value = yield from element(operand, b.apply(read.index, index))
        starts.append(clamp_start(b, value, size - window_size, operand.shape.dtype.is_signed))
    return starts


def _dynamic_slice(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    starts = yield from _starts(ctx, instruction, index, instruction)
    moved = tuple(_add(ctx.builder, position, start) for position, start in zip(index, starts, strict=True))
    value = yield from element(instruction.operands[0], moved)
    return (value,)


def _add(b: IrBuilder, position: SSAValue, start: SSAValue) -> SSAValue:
    return position if start is b.index(0) else b.binary(arith.AddiOp, position, start)


def _dynamic_update_slice(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    b = ctx.builder
    operand, update = instruction.operands[:2]
    if 0 in update.shape.dims:
        return (yield operand, index)
    starts = yield from _starts(ctx, instruction, index, update)
    condition: SSAValue | None = None
    inner: list[SSAValue] = []
    for position, start, size in zip(index, starts, update.shape.dims, strict=True):
        if start is b.index(0) and size == operand.shape.dims[len(inner)]:
            inner.append(position)
            continue
        inside = b.binary(
            arith.AndIOp,
            b.cmpi("sge", position, start),
            b.cmpi("slt", position, b.binary(arith.AddiOp, start, b.index(size))),
        )
        condition = inside if condition is None else b.binary(arith.AndIOp, condition, inside)
        inner.append(b.binary(arith.SubiOp, position, start))
    if condition is None:
        return (yield update, tuple(inner))
    value = yield from choose(b, condition, lambda: element(update, tuple(inner)), lambda: element(operand, index))
    return (value,)


def _gather(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Read an index vector at the batch dimensions of the output, clamp its components, and add them to the offsets."""
    b = ctx.builder
    operand, indices = instruction.operands
    offset_dims = instruction.offset_dims
    batch = [position for number, position in enumerate(index) if number not in offset_dims]
    batching = instruction.operand_batching_dims
    slice_sizes = instruction.gather_slice_sizes
    vector_dim = instruction.index_vector_dim
    starts: dict[int, SSAValue] = {}
    index_map = instruction.start_index_map
    for component, dimension in enumerate(index_map):
        place = list(batch)
        if vector_dim < indices.shape.rank:
            place.insert(vector_dim, b.index(component))
        value = yield from element(indices, tuple(place))
        high = operand.shape.dims[dimension] - slice_sizes[dimension]
        starts[dimension] = clamp_start(b, value, high, indices.shape.dtype.is_signed)
    places = instruction.start_indices_batching_dims
    for dimension, indices_dim in zip(batching, places, strict=True):
        # The index vector's dimension is not among the batch dimensions.
        own = batch[indices_dim - (indices_dim > vector_dim)]
        last = operand.shape.dims[dimension] - 1
        starts[dimension] = b.binary(arith.MinUIOp, own, b.index(last)) if indices.shape.dims[indices_dim] - 1 > last else own
    offsets = iter(offset_dims)
    source_index: list[SSAValue] = []
    for dimension in range(operand.shape.rank):
        position = starts.get(dimension, b.index(0))
        if dimension not in instruction.collapsed_slice_dims and dimension not in batching:
            position = _add(b, index[next(offsets)], position)
        source_index.append(position)
    value = yield from element(operand, tuple(source_index))
    return (value,)


EMIT: dict[Opcode, EmitStructured] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
}
