"""Refuse values that lose their run-time sizes on the way to a shape without dynamic dimensions.

    t = (s32[4]) tuple(x)          x is s32[<=4]
    w = s32[4] call(x), to_apply=f

XLA accepts both, and later steps read the elements beyond the size, which are undefined. A value that has all elements passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.values import Calls, Evaluator, Value, as_array, as_tuple


def drops_sizes(instruction: HloInstruction) -> bool:
    """True if the instruction hands on a value whose dynamic dimensions the next shape lacks."""
    return any(not to.covers_dynamic_dims(source) for source, to in _hand_overs(instruction))


def _hand_overs(instruction: HloInstruction) -> Iterator[tuple[Shape, Shape]]:
    """Yield (shape of the source, shape that takes its value) of an instruction that hands on values."""
    operands = [operand.shape for operand in instruction.operands]
    match instruction.opcode:
        case "tuple":
            yield from zip(operands, instruction.shape.tuple_shapes, strict=True)
        case "get-tuple-element":
            yield operands[0].tuple_shapes[instruction.tuple_index], instruction.shape
        case "opt-barrier" | "add-dependency" | "domain":
            yield operands[0], instruction.shape
        case "async-done":
            yield operands[0].tuple_shapes[1], instruction.shape
        case "call" | "fusion" | "while" | "conditional" | "async-start":
            for number, computation in enumerate(instruction.called_computations):
                given = operands[number + 1 : number + 2] if instruction.opcode == "conditional" else operands
                yield from zip(given, (parameter.shape for parameter in computation.parameters), strict=True)
            result = instruction.shape.tuple_shapes[1] if instruction.opcode == "async-start" else instruction.shape
            for shape in _results(instruction):
                yield shape, result
        case _:
            return


def _results(instruction: HloInstruction) -> list[Shape]:
    """Return the shapes of the computations' roots that give the result of an instruction."""
    if instruction.opcode == "while":
        body = instruction.while_body
        return [body.root.shape, body.parameters[0].shape]
    return [computation.root.shape for computation in instruction.called_computations]


def guarded(evaluator: Evaluator | None, program: ProgramEvaluator | None) -> tuple[Evaluator | None, ProgramEvaluator | None]:
    """Return evaluators that refuse a value of fewer elements than the shape that takes it."""

    def evaluate(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
        assert evaluator is not None
        # get-tuple-element returns a static array for a static shape.
        value = as_tuple(operands[0])[instruction.tuple_index] if instruction.opcode == "get-tuple-element" else None
        result = evaluator(instruction, operands, calls)
        _check(instruction, result if value is None else value, instruction.shape)
        return result

    def run(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
        assert program is not None
        taken = [parameter.shape for parameter in instruction.called_computations[0].parameters]
        if instruction.opcode == "conditional":
            taken = [instruction.operands[0].shape, *(branch.parameters[0].shape for branch in instruction.called_computations)]
        for value, shape in zip(operands, taken, strict=True):
            _check(instruction, value, shape)
        value = yield from program(instruction, operands, device)
        _check(instruction, value, instruction.shape)
        return value

    return (None if evaluator is None else evaluate), (None if program is None else run)


def _check(instruction: HloInstruction, value: Value, shape: Shape) -> None:
    if isinstance(value, tuple):
        for part, element in zip(value, shape.tuple_shapes, strict=True):
            _check(instruction, part, element)
        return
    if not shape.is_array:
        return
    sizes = dynamic.sizes_of(as_array(value))
    is_dynamic = shape.dynamic_dims or (False,) * shape.rank
    if any(size != bound and not free for size, bound, free in zip(sizes, shape.dims, is_dynamic, strict=True)):
        raise dynamic.dropped(instruction, shape)
