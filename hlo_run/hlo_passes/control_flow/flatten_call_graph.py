"""Clone computations so that every instruction calls its own; later passes may then change each one separately.

    a = call(p), to_apply=f;  b = call(q), to_apply=f   =>   a = call(p), to_apply=f;  b = call(q), to_apply=f.clone

XLA's `FlattenCallGraph`. With `control_flow_only`, computations embedded in a kernel (reducers, comparators, fusion bodies) may
be shared, but not with control flow.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.edit import clone_computation
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.call_graph import flatten_call_graph


class FlattenCallGraph(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "flatten-call-graph"

    control_flow_only: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if self.control_flow_only:
            flatten_call_graph(module)
            return
        for computation in computation_post_order(module):
            if len(computation.callers) > 1 or any(c.called_computations.count(computation) > 1 for c in computation.callers):
                _give_each_its_own(module, computation)


def _give_each_its_own(module: HloModule, computation: HloComputation) -> None:
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
