"""Make copies of parameters and constants again after the schedule: they lose their metadata and get the next names.

    copy = f32[8] copy(p), metadata={scheduling_name="copy"}   =>   copy.1 = f32[8] copy(p)

XLA removes the copies that no write needs, and then adds those that keep parameters and constants apart from results
(`RunPostSchedulingCopyInsertion`). Here the copies stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class RenewCopies:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "renew-copies"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the entry in place."""
        del ctx
        for instruction in module.instructions_of("copy"):
            if instruction.parent is module.entry and _is_of_input(instruction.operands[0]):
                instruction.name = module.unique_instruction_name("copy")
                instruction.attrs.pop("metadata", None)
                instruction.touch()


def _is_of_input(value: HloInstruction) -> bool:
    while value.opcode in ("bitcast", "get-tuple-element"):
        value = value.operands[0]
    return value.opcode in ("parameter", "constant")
