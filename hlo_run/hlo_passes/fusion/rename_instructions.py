"""Add the suffix `.0` to the names of instructions that may be fused, so that the names of their copies in fusions differ.

    add.1 = f32[8] add(p, p)   =>   add.1.0 = f32[8] add(p, p)

XLA's `AddTrackingSuffixToInstructionNames`. A later clone is `add.1.1`, so a name in a fusion tells its origin.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext

_NEVER: frozenset[Opcode] = frozenset(("parameter", "custom-call", "fusion", "domain", "while", "conditional", "call"))


class RenameInstructions(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "rename-instructions"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the names of instructions outside of fusions in place."""
        del ctx
        for computation in module.computations:
            if computation.is_fusion:
                continue
            for instruction in computation.instructions:
                if instruction.opcode not in _NEVER and not _is_pinned(instruction):
                    instruction.name = module.unique_instruction_name(f"{instruction.name}.0")
                    instruction.touch()


def _is_pinned(instruction: HloInstruction) -> bool:
    if instruction.opcode == "rng":
        return len(instruction.users) > 1
    return has_side_effect(instruction)
