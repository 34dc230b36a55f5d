"""Remove optimization barriers, after the passes that they hold back.

    b = opt-barrier(x)   =>   x

What runs before or after a barrier then runs before or after its operand. Leaves unused operands. XLA's
`OptimizationBarrierExpander`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.topological_order import runs_before
from hlo_run.hlo.edit import bypass
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class CseBarrierExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cse_barrier_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for barrier in module.instructions_of("opt-barrier"):
            _hand_order_on(module, barrier)
            bypass(module, barrier, inherits=False)


def _hand_order_on(module: HloModule, barrier: HloInstruction) -> None:
    """Move the control dependencies of a barrier to its operand, behind the operand's own, if no cycle results."""
    (operand,), computation, first = barrier.operands, barrier.parent, barrier.control_predecessors
    assert computation is not None, "the barrier is in a computation"
    # The order of a schedule stays valid if the users of the barrier wait, which `bypass` does.
    is_scheduled = computation in (module.schedule or {})
    if first and (is_scheduled or any(one is operand or runs_before(operand, one) for one in first)):
        return
    operand.control_predecessors = list(dict.fromkeys((*operand.control_predecessors, *first)))
    barrier.control_predecessors = []
    for other in computation.instructions:
        if barrier in other.control_predecessors:
            kept = (one for one in other.control_predecessors if one is not barrier)
            other.control_predecessors = list(dict.fromkeys((*kept, operand)))
