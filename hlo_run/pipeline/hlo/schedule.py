"""Give every executed computation an order, unless the module came with one (`is_scheduled=true`): post-order.

Needs nothing, leaves `HloModule.schedule`. XLA chooses among several list schedulers by peak memory; post-order is the
one of them that is here. Control predecessors are respected by both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloModule
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class Schedule:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "schedule"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Set the schedule of computations that have none."""
        del ctx
        schedule = dict(module.schedule or {})
        missing = [c for c in executed_computations(module) if c not in schedule]
        if missing:
            module.schedule = schedule | {computation: computation.post_order() for computation in missing}
            module.attrs["is_scheduled"] = True
            module.version += 1
