"""Recognises instructions that compute each result element from the operands' elements at the same index."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ELEMENTWISE


def is_elementwise(instruction: HloInstruction) -> bool:
    """True for an elementwise instruction (XLA's `HloInstruction::IsElementwise`); not for a rank-changing `bitcast-convert`."""
    if instruction.opcode == "bitcast-convert":
        return instruction.shape.same_dims(instruction.operands[0].shape)
    return instruction.opcode in ELEMENTWISE


def is_element_operation(instruction: HloInstruction) -> bool:
    """True for an elementwise instruction that computes with one operation: neither a copy nor the computation of a map."""
    return instruction.opcode not in ("copy", "map") and is_elementwise(instruction)
