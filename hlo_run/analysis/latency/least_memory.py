"""Find the orders of a module's computations that need the least memory, of three: list scheduler, depth first, and post-order.

XLA's `DefaultMemoryScheduler` with its `PostProcessSchedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import Dataflow, analyze_dataflow
from hlo_run.analysis.buffers.heap_simulator import peak_bytes
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.early_and_late import early_and_late
from hlo_run.analysis.latency.memory_schedulers import dfs_order, list_order
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule

Orders = dict[HloComputation, list[HloInstruction]]


def _post_order(computation: HloComputation, dataflow: Dataflow) -> list[HloInstruction]:
    del dataflow
    return computation.post_order()


_SCHEDULERS: tuple[Callable[[HloComputation, Dataflow], list[HloInstruction]], ...] = (list_order, dfs_order, _post_order)


def least_memory_orders(
    module: HloModule, missing: set[HloComputation], given: Mapping[HloComputation, list[HloInstruction]]
) -> tuple[Orders, int]:
    """Return the orders of `missing` and of reducers with the smallest peak memory, the first of equals, and that peak in bytes.

    `given` are the orders of the other executed computations. Constants take no memory.
    """
    analysis = analyze_aliases(analyze_dataflow(module))
    wanted = missing | set(analysis.dataflow.embedded) - given.keys()
    computations = [computation for computation in computation_post_order(module) if computation in wanted]
    sharing = BufferSharing()
    tried: list[tuple[Orders, int]] = []
    for scheduler in _SCHEDULERS:
        orders = {
            computation: early_and_late(computation, scheduler(computation, analysis.dataflow)) for computation in computations
        }
        tried.append((orders, peak_bytes(analysis, {**given, **orders}, sharing)))
    return min(tried, key=lambda one: one[1])
