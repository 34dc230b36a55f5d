"""Finds the instruction that defines the buffer of a value."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import FORWARDING

ShapeIndex = tuple[int, ...]


def defining_value(instruction: HloInstruction, index: ShapeIndex = ()) -> tuple[HloInstruction, ShapeIndex]:
    """Return (instruction, shape index) that defines the buffer of `instruction` at `index`.

    Looks through tuple, get-tuple-element and instructions that forward their operand.
    """
    while True:
        if instruction.opcode in FORWARDING:
            instruction = instruction.operands[0]
        elif instruction.opcode == "get-tuple-element":
            index = (instruction.tuple_index, *index)
            instruction = instruction.operands[0]
        elif instruction.opcode == "tuple" and index:
            instruction, index = instruction.operands[index[0]], index[1:]
        else:
            return instruction, index
