"""Finds the computations whose instructions run separately, rather than inside a kernel."""

from __future__ import annotations

from hlo_run.hlo.graph import HloComputation, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW


def executed_computations(module: HloModule) -> list[HloComputation]:
    """Return the entry and every computation that control flow reaches from it, callers first."""
    found = [module.entry]
    reached = set(found)
    for computation in found:  # grows while we walk
        for instruction in computation.instructions:
            if instruction.opcode in CONTROL_FLOW:
                fresh = [c for c in dict.fromkeys(instruction.called_computations) if c not in reached]
                reached.update(fresh)
                found += fresh
    return found


def fusible_computations(module: HloModule) -> list[HloComputation]:
    """Return the entry and the bodies and conditions of its loops and branches, where XLA fuses; callers first."""
    executed = executed_computations(module)
    return [c for c in executed if all(caller.opcode in ("while", "conditional") for caller in c.callers)]
