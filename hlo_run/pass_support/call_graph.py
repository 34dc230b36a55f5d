"""Give every call its own computations: a helper of the passes that flatten the call graph or copy loops."""

from __future__ import annotations

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.edit import clone_computation, clone_with_fusions
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


def give_each_its_own(module: HloModule) -> None:
    """Let every instruction call separate computations, reducers and comparators too."""
    for computation in computation_post_order(module):
        if len(computation.callers) > 1 or any(c.called_computations.count(computation) > 1 for c in computation.callers):
            _clone_for_callers(module, computation)


def _clone_for_callers(module: HloModule, computation: HloComputation) -> None:
    """Let all callers but the first call clones of a computation."""
    parents = {caller.parent for caller in computation.callers}
    callers = [i for c in module.computations if c in parents for i in c.instructions if computation in i.called_computations]
    for number, caller in enumerate(callers):
        if number == 0 and caller.called_computations.count(computation) <= 1:
            continue
        waiting: list[HloComputation] = []
        caller.called = _cloned(module, caller, computation, waiting)
        while waiting:
            for instruction in waiting.pop().instructions:
                if instruction.called:
                    instruction.called = _cloned(module, instruction, None, waiting)


def _cloned(
    module: HloModule, caller: HloInstruction, only: HloComputation | None, clones: list[HloComputation]
) -> dict[str, tuple[HloComputation, ...]]:
    """Return what an instruction calls, with a new clone of each computation, or of `only`; the clones are added to `clones`."""
    called: dict[str, tuple[HloComputation, ...]] = {}
    for name, group in caller.called.items():
        own: list[HloComputation] = []
        for computation in group:
            if only is None or computation is only:
                own.append(clone_computation(module, computation))
                clones.append(own[-1])
            else:
                own.append(computation)
        called[name] = tuple(own)
    return called
