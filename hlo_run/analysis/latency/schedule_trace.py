"""Records when each instruction of a schedule that hides latencies runs, what memory it needs, and the time lost in waiting.

What XLA's `--xla_dump_latency_hiding_schedule` shows. Times are in the estimator's cycles, one a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import async_kind, overlaps_from, overlaps_until
from hlo_run.analysis.latency.estimator import LatencyEstimator
from hlo_run.analysis.latency.memory_pressure import MemoryPressure, pressure_states
from hlo_run.analysis.latency.schedule_graph import ScheduleNode
from hlo_run.hlo.graph import HloComputation, HloInstruction


class TracedInstruction(Struct, frozen=True):
    """An instruction by name, its time from the beginning of the computation, and the bytes in use before it and after it.

    The schedule grows from the end: `peak_bytes` is the most that this instruction and those after it need.
    """

    name: str
    start: float
    end: float
    in_use_bytes: int
    peak_bytes: int


class ScheduleTrace(Struct, frozen=True):
    """The new order of a computation with its time and memory, and the time that the old order waits, by opcode."""

    computation: str
    instructions: tuple[TracedInstruction, ...]
    waits: dict[str, float]
    total: float
    peak_bytes: int


def schedule_trace(
    computation: HloComputation,
    order: Sequence[HloInstruction],
    nodes: Sequence[ScheduleNode],
    pressure: MemoryPressure,
    estimator: LatencyEstimator,
) -> ScheduleTrace:
    """Return the trace of a new order. The module still has the old order, and `nodes` have the times of the new one."""
    by_instruction = {node.instruction: node for node in nodes}
    total = by_instruction[order[0]].ready_time + by_instruction[order[0]].cost
    traced: list[TracedInstruction] = []
    for instruction in order:
        node = by_instruction[instruction]
        start = total - (node.ready_time + node.cost)
        traced.append(TracedInstruction(instruction.name, start, start + node.cost, *pressure.history[instruction]))
    waits, time = _waits(computation, estimator)
    state = pressure_states(pressure.origins).get(computation)
    peak = state.peak_bytes + pressure.outside_bytes if state is not None else 0
    return ScheduleTrace(computation.name, tuple(traced), waits, time, peak)


def _waits(computation: HloComputation, estimator: LatencyEstimator) -> tuple[dict[str, float], float]:
    """Return the time that the module's order of a computation waits, by opcode, and all its time."""
    module = computation.module
    assert module is not None, "the computation is in a module"
    assert module.schedule is not None, "the module is scheduled"
    waits: dict[str, float] = {}
    begun: dict[HloInstruction, int] = {}
    time = 0.0
    for instruction in module.schedule[computation]:
        time += estimator.cost(instruction)
        if overlaps_from(instruction):
            begun[instruction] = int(time)  # whole cycles, like XLA
        elif overlaps_until(instruction) and (start := instruction.operands[0]) in begun:
            wait = max(0.0, estimator.latency(start, instruction) - (time - begun[start]))
            inner = async_kind(start).inner
            waits[inner] = waits.get(inner, 0.0) + wait
            time += wait
    return waits, time


def traces_to_json(traces: Sequence[ScheduleTrace]) -> str:
    """Return the traces as JSON."""
    return msgspec.json.encode(traces).decode()


def traces_from_json(text: str) -> list[ScheduleTrace]:
    """Return the traces of `traces_to_json`."""
    return msgspec.json.decode(text, type=list[ScheduleTrace])
