"""Give every call its own computations: a helper of the passes that flatten the call graph or copy loops."""

from __future__ import annotations

from hlo_run.hlo.edit import clone_with_fusions
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW


def flatten_call_graph(module: HloModule) -> None:
    """Let instructions of control flow share no computation.

    Callers come before callees, so that the calls in a clone are seen too. Computations embedded in a kernel (reducers,
    comparators, fusion bodies) may be shared, but not with control flow.
    """
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
            own.append(clone_with_fusions(module, computation) if is_shared else computation)
            taken.add(own[-1])
        called[name] = tuple(own)
    if called != instruction.called:
        instruction.called = called
    return list(instruction.called_computations)
