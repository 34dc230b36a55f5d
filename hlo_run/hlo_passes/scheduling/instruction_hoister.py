"""Move parameters, constants, bitcasts and get-tuple-elements to earlier places of the schedule.

Parameters and constants come first, the others directly after their operands. XLA's `InstructionHoister`, for modules with a
schedule. Values are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.walks import walk

_BEFORE_PARAMETERS: tuple[Opcode, ...] = ("get-tuple-element", "tuple", "constant", "bitcast", "parameter")


class InstructionHoister(Struct, frozen=True):
    """The pass; see the module's docstring. The options say which instructions move."""

    name: ClassVar[str] = "instruction-hoister"

    hoists_parameters: bool = True
    hoists_constants: bool = True
    hoists_bitcasts: bool = False
    hoists_elements: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the schedule in place. Raises Unsupported without one."""
        del ctx
        if module.schedule is None:
            raise Unsupported(f"{self.name} needs a module with a schedule", hint="run the pass schedule before")
        for computation, order in list(module.schedule.items()):
            if computation.is_fusion:
                continue
            new = self._order(computation, order)
            if new != order:
                module.schedule[computation] = new
                computation.root.touch()

    def _order(self, computation: HloComputation, order: Sequence[HloInstruction]) -> list[HloInstruction]:
        new = list(order)
        ordered = {p for value in new for p in value.control_predecessors}
        if self.hoists_parameters and _is_late(computation, new):
            for parameter in computation.parameters:
                parameter.control_predecessors = []
            new = [*computation.parameters, *(value for value in new if value.opcode != "parameter")]
        if self.hoists_constants:
            constants = [value for value in new if value.opcode == "constant"]
            if not any(value in ordered or value.control_predecessors for value in constants):
                new = [*constants, *(value for value in new if value.opcode != "constant")]
        if self.hoists_elements:
            new = _after_operands(new, "get-tuple-element", ordered)
        if self.hoists_bitcasts:
            new = _after_operands(new, "bitcast", ordered)
        return new


def _is_late(computation: HloComputation, order: Sequence[HloInstruction]) -> bool:
    """True if an instruction that computes comes before a parameter."""
    left = len(computation.parameters)
    for value in order:
        left -= value.opcode == "parameter"
        if not left:
            return False
        if value.opcode not in _BEFORE_PARAMETERS:
            return True
    return False


def _after_operands(order: Sequence[HloInstruction], opcode: Opcode, ordered: set[HloInstruction]) -> list[HloInstruction]:
    moved = [v for v in order if v.opcode == opcode and not v.control_predecessors and v not in ordered]
    following: dict[HloInstruction, list[HloInstruction]] = {}
    for value in moved:
        following.setdefault(value.operands[0], []).append(value)
    gone = set(moved)
    kept = [value for value in order if value not in gone]
    return list(walk(reversed(kept), lambda value: reversed(following.get(value, []))))
