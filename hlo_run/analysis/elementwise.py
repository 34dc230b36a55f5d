"""Does an instruction compute each element of its result from the operands' elements at the same index?"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ELEMENTWISE


def is_elementwise(instruction: HloInstruction) -> bool:
    """Mirrors XLA's `HloInstruction::IsElementwise`; a `bitcast-convert` that changes the rank is not elementwise."""
    if instruction.opcode == "bitcast-convert":
        return instruction.shape.same_dims(instruction.operands[0].shape)
    return instruction.opcode in ELEMENTWISE
