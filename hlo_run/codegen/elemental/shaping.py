"""Emits the opcodes that move, select or create elements: reshape, transpose, pad, concatenate, iota, constant, tuple, .."""

from __future__ import annotations

from collections.abc import Callable, Generator

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.codegen.elemental.convert import bitcast_convert, convert
from hlo_run.codegen.elemental.emission import Emission, EmissionContext, EmitStructured, Request, Values, element
from hlo_run.codegen.elemental.types import element_type, tensor_type
from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.index import bitcast_map, operand_map


def _move(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit the operand's element at the mapped index."""
    indexing_map = operand_map(instruction, 0)
    assert indexing_map is not None, f"{instruction.opcode} has an index map"
    value = yield from element(instruction.operands[0], ctx.builder.apply(indexing_map, index))
    return (value,)


def _bitcast(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    source, target = instruction.operands[0].shape, instruction.shape
    if source.dtype.bits != target.dtype.bits:
        raise Unsupported(f"'bitcast' from {source} to {target}: element widths differ", instruction.where)
    (value,) = yield from _move(ctx, instruction, index)
    return (bitcast_convert(ctx.builder, value, element_type(target.element_type, instruction.where)),)


def _pad(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    b = ctx.builder
    operand, padding = instruction.operands
    indexing_map = operand_map(instruction, 0)
    assert indexing_map is not None, "pad has an index map"
    if indexing_map.is_known_empty:
        return (yield padding, ())
    condition = b.in_bounds(indexing_map, instruction.shape.dims, index)
    chosen = yield from choose(
        b,
        condition,
        lambda: element(operand, b.apply(indexing_map, index)),
        lambda: element(padding, ()),
    )
    return (chosen,)


Branch = Callable[[], Generator[Request, Values, SSAValue]]


def choose(b: IrBuilder, condition: SSAValue, then: Branch, otherwise: Branch) -> Generator[Request, Values, SSAValue]:
    """Emit an `scf.if` whose branches each yield one value, and return its result."""
    then_block, else_block = Block(), Block()
    with b.inside(then_block):
        value = yield from then()
        b.yield_values((value,))
    with b.inside(else_block):
        b.yield_values(((yield from otherwise()),))
    return b.if_op(condition, (value.type,), then_block, else_block)[0]


def _concatenate(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit a binary tree of `scf.if` over the offsets of the operands."""
    b = ctx.builder
    dimension: int = instruction.dimensions[0]
    operands: list[tuple[int, HloInstruction]] = []
    offset = 0
    for operand in instruction.operands:
        size = operand.shape.dims[dimension]
        if size:
            operands.append((offset, operand))
        offset += size

    def pick(low: int, high: int) -> Generator[Request, Values, SSAValue]:
        if high - low == 1:
            offset, operand = operands[low]
            position = index[dimension]
            if offset:
                position = b.binary(arith.SubiOp, position, b.index(offset))
            return (yield from element(operand, (*index[:dimension], position, *index[dimension + 1 :])))
        middle = (low + high) // 2
        condition = b.cmpi("ult", index[dimension], b.index(operands[middle][0]))
        return (yield from choose(b, condition, lambda: pick(low, middle), lambda: pick(middle, high)))

    value = yield from pick(0, len(operands))
    return (value,)


def _iota(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    yield from ()
    b = ctx.builder
    source = DTYPES[f"u{b.index_bits}"]
    dimension = instruction.iota_dimension
    number = b.cast(IndexCastUIOp, index[dimension], IntegerType(b.index_bits))
    target = instruction.shape.dtype
    return (convert(b, number, source, target, element_type(target.name, instruction.where)),)


def _constant(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    yield from ()
    b, shape, literal = ctx.builder, instruction.shape, instruction.constant_array
    type_ = element_type(shape.element_type, instruction.where)
    first = literal.reshape(-1)[:1]
    # Compares bytes, because 0.0 == -0.0.
    if literal.size == 1 or literal.tobytes() == first.tobytes() * literal.size:
        return (b.element(type_, first.reshape(())),)
    table_type = tensor_type(Shape.array(shape.element_type, shape.dims), instruction.where)
    table = b.dense(table_type, literal)
    return (b.create(tensor.ExtractOp, (table, *index), type_),)


def tuple_leaves(root: HloInstruction) -> tuple[HloInstruction, ...]:
    """Return the operands of a tuple, with nested tuples replaced by their operands. Other roots: the root itself."""
    if root.opcode != "tuple":
        return (root,)
    return tuple(leaf for operand in root.operands for leaf in tuple_leaves(operand))


def _tuple(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit the element of each leaf at the linear offset that `index` has in the first leaf."""
    first: Shape | None = None
    values: list[SSAValue] = []
    for leaf in tuple_leaves(instruction):
        _, shape = next(leaf.shape.leaves())
        first = first or shape
        indexing_map = bitcast_map(first, shape)
        assert indexing_map is not None, "the leaves of a function's root have equal element counts"
        values += yield leaf, ctx.builder.apply(indexing_map, index)
    return tuple(values)


def _get_tuple_element(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    del ctx
    number = instruction.tuple_index
    values = yield instruction.operands[0], index
    return (values[number],)


def _bitcast_convert_of_other_width(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit a bitcast-convert, little endian: part k of a wide element begins at its bit k * width."""
    b, operand = ctx.builder, instruction.operands[0]
    source, target = operand.shape.dtype.bits, instruction.shape.dtype.bits
    wide, narrow = IntegerType(max(source, target)), IntegerType(min(source, target))
    result_type = element_type(instruction.shape.element_type, instruction.where)
    if source > target:
        value = yield from element(operand, index[:-1])
        number = b.cast(IndexCastUIOp, index[-1], wide)
        shift = b.binary(arith.MuliOp, number, b.constant(wide, target))
        shifted = b.binary(arith.ShRUIOp, bitcast_convert(b, value, wide), shift)
        return (bitcast_convert(b, b.cast(arith.TruncIOp, shifted, narrow), result_type),)
    joined: SSAValue | None = None
    for part in range(target // source):
        value = yield from element(operand, (*index, b.index(part)))
        bits = b.cast(arith.ExtUIOp, bitcast_convert(b, value, narrow), wide)
        if joined is None:
            joined = bits
        else:
            joined = b.binary(arith.OrIOp, joined, b.binary(arith.ShLIOp, bits, b.constant(wide, part * source)))
    assert joined is not None, "the wide element has at least one part"
    return (bitcast_convert(b, joined, result_type),)


def bitcast_convert_changes_rank(instruction: HloInstruction) -> bool:
    """True for a bitcast-convert between element types of different widths."""
    return instruction.shape.dtype.bits != instruction.operands[0].shape.dtype.bits


EMIT: dict[Opcode, EmitStructured] = {
    **dict.fromkeys(("reshape", "transpose", "broadcast", "slice", "reverse"), _move),
    "bitcast": _bitcast,
    "pad": _pad,
    "concatenate": _concatenate,
    "iota": _iota,
    "constant": _constant,
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "bitcast-convert": _bitcast_convert_of_other_width,
}
