"""Schedule every executed computation and every reducer, unless the module came with a schedule (`is_scheduled=true`).

Computes three orders: list scheduler, depth first, and post-order. The one with the smallest peak memory is used, the first
of equals. Asynchronous work starts as early and ends as late as the order allows. Respects control dependencies. Leaves
`HloModule.schedule`. Mirrors XLA's `DefaultMemoryScheduler` with its `PostProcessSchedule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import buffer_size_bytes
from hlo_run.analysis.buffers.heap_simulator import peak_bytes
from hlo_run.analysis.buffers.schedulers import ComputationMemory, dfs_order, list_order
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.latency.early_and_late import early_and_late
from hlo_run.hlo.attributes.table import FrontendAttributes
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.xla_fingerprint import xla_fingerprint
from hlo_run.hlo_passes.hlo_pass import PassContext

_Orders = dict[HloComputation, list[HloInstruction]]
_Scheduler = Callable[[HloComputation, ComputationMemory], list[HloInstruction]]


def _post_order(computation: HloComputation, memory: ComputationMemory) -> list[HloInstruction]:
    del memory
    return computation.post_order()


_SCHEDULERS: tuple[_Scheduler, ...] = (list_order, dfs_order, _post_order)


class Schedule(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "schedule"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Set the schedule of computations without one."""
        if ctx.options.xla_gpu_pgle_profile_file_or_directory_path or any(o.reads_hlo for o in ctx.observers):
            _tag(module)
        given = dict(module.schedule or {})
        missing = {computation for computation in executed_computations(module) if computation not in given}
        if missing:
            module.schedule = given | _best_orders(module, missing, given)
            module.attrs["is_scheduled"] = True
            module.version += 1


def _tag(module: HloModule) -> None:
    """Write XLA's fingerprint of the module into its header. Takes long for large modules, so only for texts that show it."""
    old = module.attrs.get("frontend_attributes")
    entries = dict(old.entries) if isinstance(old, FrontendAttributes) else {}
    entries["fingerprint_before_lhs"] = xla_fingerprint(module)
    module.attrs["frontend_attributes"] = FrontendAttributes(tuple(sorted(entries.items())))
    module.version += 1


def _best_orders(module: HloModule, missing: set[HloComputation], given: _Orders) -> _Orders:
    """Return the orders of `missing` and of reducers with the smallest peak memory."""
    analysis = analyze_aliases(analyze_dataflow(module))
    wanted = missing | set(analysis.dataflow.embedded) - given.keys()
    callees_first = [computation for computation in computation_post_order(module) if computation in wanted]
    sharing = BufferSharing()
    best: _Orders = {}
    least_bytes: int | None = None
    for scheduler in _SCHEDULERS:
        memory = ComputationMemory(analysis.dataflow, buffer_size_bytes)
        orders: _Orders = {}
        for computation in callees_first:
            orders[computation] = early_and_late(computation, scheduler(computation, memory))
            memory.note(computation, orders[computation])
        used_bytes = peak_bytes(analysis, given | orders, sharing)
        if least_bytes is None or used_bytes < least_bytes:
            best, least_bytes = orders, used_bytes
    return best
