"""Clone computations so that every call, loop and branch has its own; later passes may then change each one separately.

    a = call(p), to_apply=f;  b = call(q), to_apply=f   =>   a = call(p), to_apply=f;  b = call(q), to_apply=f.clone

Computations embedded in a kernel (reducers, comparators) may be shared, but not with control flow. A fusion in a clone gets its
own body, as a body belongs to one fusion. XLA's `FlattenCallGraph`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import clone_computation
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class FlattenCallGraph:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "flatten-call-graph"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; callers come before callees, so that the calls in a clone are seen too."""
        del ctx
        if not module.instructions_of(*CONTROL_FLOW):
            return
        taken: set[HloComputation] = set()
        waiting = [module.entry]
        while waiting:
            for instruction in waiting.pop(0).post_order():
                if instruction.opcode in CONTROL_FLOW:
                    waiting += _flatten(module, instruction, taken)


def _flatten(module: HloModule, instruction: HloInstruction, taken: set[HloComputation]) -> list[HloComputation]:
    """Clone the computations of `instruction` that are in `taken`; return all it calls, which are then in `taken`."""
    called: dict[str, tuple[HloComputation, ...]] = {}
    for name, group in instruction.called.items():
        own: list[HloComputation] = []
        for computation in group:
            is_shared = computation in taken or any(caller.opcode not in CONTROL_FLOW for caller in computation.callers)
            own.append(_clone(module, computation) if is_shared else computation)
            taken.add(own[-1])
        called[name] = tuple(own)
    if called != instruction.called:
        instruction.called = called
    return list(instruction.called_computations)


def _clone(module: HloModule, computation: HloComputation) -> HloComputation:
    clone = clone_computation(module, computation)
    for instruction in clone.instructions:
        if instruction.opcode == "fusion":
            instruction.called = {"calls": (_clone(module, instruction.fused_computation),)}
    return clone
