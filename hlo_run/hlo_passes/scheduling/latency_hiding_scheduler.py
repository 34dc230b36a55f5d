"""Reorder computations that have asynchronous instructions: other work runs while a collective or a copy is under way.

    s = all-gather-start(p); d = all-gather-done(s); c = fusion(q)   =>   s = all-gather-start(p); c = fusion(q); d = ..

Needs a schedule that saves memory, which decides between equals. Instructions with the same `_scheduling_group_id` stay together.
XLA's `LatencyHidingScheduler`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import buffer_size_bytes
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.latency.async_kinds import overlaps_from, overlaps_until
from hlo_run.analysis.latency.choice import hides_latency, latency_estimator
from hlo_run.analysis.latency.latency_order import latency_order
from hlo_run.analysis.latency.memory_pressure import MemoryPressure, buffer_origins, pressure_states
from hlo_run.analysis.latency.resources import Streams
from hlo_run.analysis.latency.schedule_graph import build_graph
from hlo_run.analysis.latency.schedule_trace import ScheduleTrace, schedule_trace, traces_to_json
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ASYNC, ASYNC_START
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.config import aliases
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import LATENCY_SCHEDULE

_UNLIMITED_BYTES = 1 << 63
_USABLE_PERCENT = 80


class LatencyHidingScheduler(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "latency-hiding-scheduler"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Change the schedule of `module`."""
        if not module.instructions_of("custom-call", *ASYNC_START):
            return
        schedule = module.schedule
        if schedule is None or not hides_latency(ctx.options, ctx.target, module):
            return
        computations = [c for c in computation_post_order(module) if c in schedule and any(map(_asks_for_it, c.instructions))]
        if not computations:
            return
        options = ctx.options
        streams = Streams(
            options.xla_gpu_experimental_parallel_collective_overlap_limit,
            options.xla_gpu_experimental_parallel_async_compute_limit,
        )
        starts_early = (
            options.xla_gpu_experimental_collective_start_as_early_as_possible
            and options.xla_gpu_experimental_parallel_collective_overlap_limit > 1
        )
        estimator = latency_estimator(ctx.options, ctx.target, module)
        analysis = analyze_aliases(analyze_dataflow(module))
        limit = _limit_bytes(ctx, module)
        follows_memory = sum(buffer_size_bytes(buffer.values[0]) for buffer in analysis.buffers) > limit // 2
        is_traced = ctx.wants(LATENCY_SCHEDULE)
        origins = buffer_origins(analysis) if follows_memory or is_traced else None
        states = pressure_states(origins) if origins is not None else {}
        peaks = {computation: state.peak_bytes for computation, state in states.items()}
        traces: list[ScheduleTrace] = []
        for computation in computations:
            pressure = None
            if origins is not None and computation in states:
                pressure = MemoryPressure(origins, limit, peaks, states[computation].live_after)
            nodes = build_graph(schedule[computation], estimator, streams, analysis)
            order = latency_order(nodes, streams.limits, pressure, starts_early)
            if is_traced and pressure is not None:
                traces.append(schedule_trace(computation, order, nodes, pressure, estimator))
            if pressure is not None:
                peaks[computation] = pressure.peak_bytes
            streams.forget(computation)
            schedule[computation] = order
        module.version += 1  # XLA reports a change even if the order is the same
        if is_traced:
            ctx.note(LATENCY_SCHEDULE, lambda: traces_to_json(traces), if_wanted=True)


def _asks_for_it(instruction: HloInstruction) -> bool:
    if overlaps_from(instruction) or overlaps_until(instruction):
        return True
    return instruction.opcode in ("custom-call", *ASYNC) and frontend_attribute(instruction, "scheduler_hint") == "force_delay"


def _limit_bytes(ctx: PassContext, module: HloModule) -> int:
    """Return the memory for temporaries: four fifths of the device's, without parameters and results, and a reserve.

    XLA's limit is an unsigned number, so a negative factor is none.
    """
    base = ctx.target.device_memory_size_bytes * _USABLE_PERCENT // 100
    shapes = [parameter.shape for parameter in module.entry.parameters] + [module.entry.root.shape]
    used = sum(map(_bytes, shapes))
    for output, _number, _place, _must in aliases(module):
        used -= _bytes(_part(module.entry.root.shape, output))
    limit = max(base - used, 0) * ctx.options.xla_gpu_memory_limit_slop_factor // 100
    return limit if limit >= 0 else _UNLIMITED_BYTES


def _part(shape: Shape, index: tuple[int, ...]) -> Shape:
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape


def _bytes(shape: Shape) -> int:
    return sum(leaf.size_bytes for _, leaf in shape.leaves() if leaf.is_array)
