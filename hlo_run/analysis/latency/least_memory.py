"""Find the orders of a module's computations that need the least memory, of three: list scheduler, depth first, and post-order.

XLA's `DefaultMemoryScheduler` with its `PostProcessSchedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, analyze_aliases
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import buffer_size_bytes
from hlo_run.analysis.buffers.heap_simulator import PeakHeap, simulate
from hlo_run.analysis.buffers.live_range import flatten_schedule, live_ranges
from hlo_run.analysis.buffers.schedulers import ComputationMemory, dfs_order, list_order
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.early_and_late import early_and_late
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule

Orders = dict[HloComputation, list[HloInstruction]]
_Scheduler = Callable[[HloComputation, ComputationMemory], list[HloInstruction]]


def _post_order(computation: HloComputation, memory: ComputationMemory) -> list[HloInstruction]:
    del memory
    return computation.post_order()


_SCHEDULERS: tuple[_Scheduler, ...] = (list_order, dfs_order, _post_order)


def least_memory_orders(
    module: HloModule, missing: set[HloComputation], given: Mapping[HloComputation, list[HloInstruction]]
) -> tuple[Orders, int]:
    """Return the orders of `missing` and of reducers with the smallest peak memory, the first of equals, and that peak in bytes.

    `given` are the orders of the other executed computations. Constants take no memory.
    """
    analysis = analyze_aliases(analyze_dataflow(module))
    wanted = missing | set(analysis.dataflow.embedded) - given.keys()
    callees_first = [computation for computation in computation_post_order(module) if computation in wanted]
    sharing = BufferSharing()
    tried: list[tuple[Orders, int]] = []
    for scheduler in _SCHEDULERS:
        memory = ComputationMemory(analysis.dataflow, buffer_size_bytes)
        orders: Orders = {}
        for computation in callees_first:
            orders[computation] = early_and_late(computation, scheduler(computation, memory))
            memory.note(computation, orders[computation])
        tried.append((orders, _peak_bytes(analysis, {**given, **orders}, sharing)))
    return min(tried, key=lambda one: one[1])


def _peak_bytes(analysis: AliasAnalysis, orders: Orders, sharing: BufferSharing) -> int:
    live = live_ranges(analysis, flatten_schedule(analysis.dataflow.module.entry, orders.__getitem__))
    heap = PeakHeap()
    values = [value for value in analysis.dataflow.values if value.instruction.opcode != "constant"]
    simulate(heap, values, analysis, live, buffer_size_bytes, sharing)
    return heap.peak_bytes
