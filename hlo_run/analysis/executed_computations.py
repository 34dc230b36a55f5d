"""Which computations run as instructions of their own, and which are embedded in a kernel?"""

from __future__ import annotations

from hlo_run.hlo.graph import HloComputation, HloModule

# Opcodes whose called computations run instruction by instruction.
CONTROL_FLOW = frozenset(("call", "while", "conditional", "async-start"))


def executed_computations(module: HloModule) -> list[HloComputation]:
    """Return the entry and every computation reached from it through control flow, callers first."""
    found = [module.entry]
    reached = set(found)
    for computation in found:  # grows while we walk
        for instruction in computation.instructions:
            if instruction.opcode in CONTROL_FLOW:
                fresh = [c for c in dict.fromkeys(instruction.called_computations) if c not in reached]
                reached.update(fresh)
                found += fresh
    return found
