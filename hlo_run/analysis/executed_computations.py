"""Finds the computations whose instructions run separately, rather than inside a kernel."""

from __future__ import annotations

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
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
    """Return the entry and the bodies and conditions of its loops and branches, where XLA fuses; callees first, as XLA does.

    Computations that nothing calls any more are among them: names that their fusions take are used up.
    """
    executed = set(executed_computations(module))
    order = (c for c in computation_post_order(module) if c in executed or not c.callers)
    return [c for c in order if all(caller.opcode in ("while", "conditional") for caller in c.callers)]


def constants_in_memory(module: HloModule) -> list[HloInstruction]:
    """Return the constants of the computations that run separately, in the order of the schedule. Kernels have the others."""
    schedule, executed = module.schedule or {}, set(executed_computations(module))
    return [i for c in module.computations if c in executed for i in schedule.get(c, ()) if i.opcode == "constant"]
