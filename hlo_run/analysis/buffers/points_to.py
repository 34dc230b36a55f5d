"""Finds which buffers an instruction of one computation makes and holds, for the schedulers that save memory.

    t = (f32[8], f32[4]) tuple(a, b)       t makes its table, and holds the buffers of a and b

Calls count as they look from outside: a loop makes its whole result, an `async-start` its output. Other starts of collectives
and their dones make new results, as do custom calls that write into an operand. XLA's `TuplePointsToAnalysis`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from hlo_run.analysis.buffers.dataflow_values import shape_bytes
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import Shape, ShapeIndex

Buffer: TypeAlias = tuple[HloInstruction, ShapeIndex]
"""A buffer: the instruction that makes it, and its place in the result."""

# The result is that of the operand.
_ALIASES = opcode_set("bitcast domain add-dependency opt-barrier async-update")
LASTING: frozenset[Opcode] = frozenset(("parameter", "constant"))
"""The buffers of these exist before the computation runs, and remain."""


class PointsTo:
    """The buffers of the instructions of one computation."""

    def __init__(self, computation: HloComputation) -> None:
        self._trees: dict[HloInstruction, dict[ShapeIndex, Buffer]] = {}
        for instruction in computation.post_order():
            self._trees[instruction] = {
                index: self._forwarded(instruction, index) or (instruction, index) for index, _ in _subshapes(instruction.shape)
            }

    def made(self, instruction: HloInstruction) -> list[Buffer]:
        """Return the buffers that an instruction allocates; none for parameters and constants."""
        return [buffer for buffer in self.held(instruction) if buffer[0] is instruction]

    def held(self, instruction: HloInstruction) -> list[Buffer]:
        """Return the buffers of an instruction's result, without buffers of parameters and constants."""
        return [b for b in dict.fromkeys(self._trees[instruction].values()) if b[0].opcode not in LASTING]

    def used(self, instruction: HloInstruction) -> list[Buffer]:
        """Return the buffers of all operands. get-tuple-element uses the whole tuple, as in XLA."""
        return list(dict.fromkeys(b for operand in dict.fromkeys(instruction.operands) for b in self.held(operand)))

    def _forwarded(self, instruction: HloInstruction, index: ShapeIndex) -> Buffer | None:
        """Return the buffer of an operand at a place of the result; None if the instruction makes its own."""
        opcode = instruction.opcode
        if opcode in _ALIASES:
            return self._at(instruction, 0, index)
        match opcode, index:
            case "get-tuple-element", _:
                return self._at(instruction, 0, (instruction.tuple_index, *index))
            case ("tuple", (number, *_)):
                return self._at(instruction, number, index[1:])
            case ("async-start", (0, number, *_)):
                return self._at(instruction, number, index[2:])
            case "async-done", _:
                return self._at(instruction, 0, (1, *index))
            case ("copy", (_, *_)) | ("recv-done", (0, *_)):
                return self._at(instruction, 0, index)
            case ("copy-start", (1,)):
                return self._at(instruction, 0, ())
            case "copy-done", ():
                return self._at(instruction, 0, (0,))
            case ("send", (0, *_)):
                return self._at(instruction, 0, index[1:])
            case "fusion", _:
                aliasing = instruction.output_to_operand_aliasing
                found = next(((number, place) for output, number, place in aliasing.pairs if output == index), None)
                return None if found is None else self._at(instruction, *found)
            case _:
                return None

    def _at(self, instruction: HloInstruction, number: int, index: ShapeIndex) -> Buffer | None:
        return self._trees[instruction.operands[number]].get(index)


def buffer_bytes(buffer: Buffer) -> int:
    """Return the bytes of a buffer. The buffer of a tuple is a table of pointers."""
    instruction, index = buffer
    shape = instruction.shape
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape_bytes(shape)


def _subshapes(shape: Shape, index: ShapeIndex = ()) -> Iterator[tuple[ShapeIndex, Shape]]:
    yield index, shape
    for number, part in enumerate(shape.tuple_shapes):
        yield from _subshapes(part, (*index, number))
