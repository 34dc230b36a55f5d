"""Give every executed computation an order: the text's own if the module says it is scheduled, else post-order.

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
        for computation in executed_computations(module):
            if computation not in schedule:
                is_ordered = module.attrs.get("is_scheduled") is True
                schedule[computation] = list(computation.instructions) if is_ordered else computation.post_order()
        if schedule != module.schedule:
            module.schedule = schedule
            module.attrs["is_scheduled"] = True
            module.version += 1
