"""Keep the order of independent collectives by control dependencies, so that all devices run them in one order.

    a = all-reduce(p); b = all-reduce(q)   =>   a = all-reduce(p); b = all-reduce(q), control-predecessors={a}

XLA's `CollectivesScheduleLinearizer`. Its pipeline has the pass only for convolutions that it measures on a device, where devices
may choose different algorithms; nothing is measured here.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import is_collective_start
from hlo_run.analysis.topological_order import TopologicalOrder, runs_before
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.pass_support.hlo_pass import PassContext


class CollectivesScheduleLinearizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collectives-schedule-linearizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Add control dependencies."""
        del ctx
        for computation in module.computations:
            if not computation.is_fusion:
                _keep_order(computation)


def _keep_order(computation: HloComputation) -> None:
    last: HloInstruction | None = None
    for collective in computation.post_order():
        if collective.opcode not in COLLECTIVE and not is_collective_start(collective):
            continue
        if last is not None and not runs_before(last, collective) and TopologicalOrder(computation).add_edge(last, collective):
            collective.control_predecessors = [*collective.control_predecessors, last]
            collective.touch()
        last = collective.users[0] if is_collective_start(collective) else collective
