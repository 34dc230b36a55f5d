"""Emits the opcodes that apply a called computation to elements: reduce, reduce-window, map; and nested fusion and call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue

from hlo_run.codegen.elemental.builder import INDEX, IrBuilder
from hlo_run.codegen.elemental.emission import Emission, EmissionContext, EmitStructured, Request, Values, element
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.ops.index import operand_map

# Takes the induction variables and the carried values; returns the next carried values.
LoopBody = Callable[[Values, Values], Generator[Request, Values, Values]]


def loop_nest(b: IrBuilder, indexing_map: IndexingMap, inits: Values, body: LoopBody) -> Generator[Request, Values, Values]:
    """Emit one `scf.for` per range variable of the map, the first outermost. Returns the carried values after the loops.

    The carried values start as `inits`. The bounds come from the intervals; constraints are left to `body`.
    """
    bounds = [variable.bounds for variable in indexing_map.ranges]

    def nest(number: int, outer: Values, values: Values) -> Generator[Request, Values, Values]:
        if number == len(bounds):
            return (yield from body(outer, values))
        block = Block(arg_types=(INDEX, *(value.type for value in values)))
        with b.inside(block):
            induction, *carried = block.args
            results = yield from nest(number + 1, (*outer, induction), tuple(carried))
            b.yield_values(results)
        limits = b.index(bounds[number].lower), b.index(bounds[number].upper + 1), b.index(1)
        return tuple(b.add(scf.ForOp(*limits, values, Region(block))))

    return (yield from nest(0, (), inits))


def guarded(
    b: IrBuilder, condition: SSAValue, values: Values, body: Callable[[], Generator[Request, Values, Values]]
) -> Generator[Request, Values, Values]:
    """Emit an `scf.if` that yields the values of `body` if `condition` is true, else `values`. Returns its results."""
    then, otherwise = Block(), Block()
    with b.inside(then):
        b.yield_values((yield from body()))
    with b.inside(otherwise):
        b.yield_values(values)
    return tuple(b.if_op(condition, [value.type for value in values], then, otherwise))


def _reduce(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Start from the init values. Positions outside the map's domain (padding of a window) contribute nothing."""
    b = ctx.builder
    count = len(instruction.operands) // 2
    inputs, init_operands = instruction.operands[:count], instruction.operands[count:]
    indexing_map = operand_map(instruction, 0)
    assert indexing_map is not None, f"{instruction.opcode} has an index map"
    inits: list[SSAValue] = []
    for operand in init_operands:
        inits.append((yield from element(operand, ())))
    if indexing_map.is_known_empty:
        return tuple(inits)
    reducer = instruction.to_apply
    sizes = _output_dims(instruction)

    def combine(place: Values, values: Values) -> Generator[Request, Values, Values]:
        elements: list[SSAValue] = []
        operand_index = b.apply(indexing_map, place)
        for operand in inputs:
            elements.append((yield from element(operand, operand_index)))
        return ctx.call_scalar(reducer, (*values, *elements), is_reduction=True)

    def body(symbols: Values, values: Values) -> Generator[Request, Values, Values]:
        place = (*index, *symbols)
        if not indexing_map.constraints and _covers(indexing_map, sizes):
            return (yield from combine(place, values))
        condition = b.in_bounds(indexing_map, sizes, place)
        return (yield from guarded(b, condition, values, lambda: combine(place, values)))

    return (yield from loop_nest(b, indexing_map, tuple(inits), body))


def _output_dims(instruction: HloInstruction) -> tuple[int, ...]:
    shape = instruction.shape
    return shape.tuple_shapes[0].dims if shape.is_tuple else shape.dims


def _covers(indexing_map: IndexingMap, sizes: Sequence[int]) -> bool:
    return all(v.bounds.lower <= 0 and v.bounds.upper >= size - 1 for v, size in zip(indexing_map.dims, sizes, strict=True))


def _map(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    values: list[SSAValue] = []
    for operand in instruction.operands:
        values.append((yield from element(operand, index)))
    mapper = instruction.to_apply
    return ctx.call_scalar(mapper, tuple(values), is_reduction=False)


def _nested(ctx: EmissionContext, instruction: HloInstruction, index: Values) -> Emission:
    """Emit a fusion or call on scalars (in a reducer) as a call. Raises Unsupported for arrays."""
    if index or any(operand.shape.rank or not operand.shape.is_array for operand in instruction.operands):
        raise Unsupported(f"'{instruction.opcode}' on arrays inside a fusion", instruction.where, hint="inline it")
    values: list[SSAValue] = []
    for operand in instruction.operands:
        values.append((yield from element(operand, ())))
    return ctx.call_scalar(instruction.called_computations[0], tuple(values), is_reduction=False)


EMIT: dict[Opcode, EmitStructured] = {
    "reduce": _reduce,
    "reduce-window": _reduce,
    "map": _map,
    "fusion": _nested,
    "call": _nested,
}
