"""Schedule every executed computation and every reducer, unless the module came with a schedule (`is_scheduled=true`).

Computes three orders: list scheduler, depth first, and post-order. The one with the smallest peak memory is used, the first
of equals. Asynchronous work starts as early and ends as late as the order allows. Respects control dependencies. Leaves
`HloModule.schedule`. Mirrors XLA's `DefaultMemoryScheduler` with its `PostProcessSchedule`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.latency.least_memory import least_memory_orders
from hlo_run.hlo.frontend_attributes import set_late_attribute
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.module_state import ModuleState
from hlo_run.hlo.xla_fingerprint import xla_fingerprint
from hlo_run.pass_support.hlo_pass import PassContext


class Schedule(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "schedule"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Set the schedule of computations without one."""
        del ctx
        _tag(module)
        given = dict(module.schedule or {})
        missing = {computation for computation in executed_computations(module) if computation not in given}
        if missing:
            orders, _ = least_memory_orders(module, missing, given)
            module.schedule = given | orders
            module.attrs["is_scheduled"] = True
            module.version += 1


def _tag(module: HloModule) -> None:
    """Write XLA's fingerprint of the module into its header. It takes long, so it is computed when the header is first read."""
    state = ModuleState(module)
    set_late_attribute(module, "fingerprint_before_lhs", lambda: xla_fingerprint(state.module()))
    module.version += 1
