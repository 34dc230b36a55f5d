"""Computes the time in which each value is in memory, for instructions in the order of a schedule.

    0:p  1:a = f(p)  2:b = g(a)  3:c = h(a, b)          a lives from 1 to 3

Times count the instructions of all executed computations. The instructions that a loop, branch or call runs come before the
loop, branch or call. A value lives from its definition to its last use. A value that leaves its computation lives to the
computation's end. A parameter of the entry that no result may overwrite lives throughout. Mirrors XLA's `HloLiveRange`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from msgspec import Struct

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.verify.config import aliases

Order = Callable[[HloComputation], list[HloInstruction]]


class TimeBound(Struct):
    """The first and the last time at which a value is in memory, both included."""

    start: int
    end: int


class FlatSchedule(Struct, frozen=True, eq=False):
    """All instructions in execution order, their times, and the begin and end of each computation."""

    order: list[HloInstruction]
    times: dict[HloInstruction, int]
    spans: dict[HloComputation, TimeBound]
    async_ends: dict[HloComputation, int]

    @property
    def end(self) -> int:
        """The time after the last instruction."""
        return len(self.order)


def flatten_schedule(entry: HloComputation, order_of: Order) -> FlatSchedule:
    """Return the flat schedule of a module; `order_of` gives the order of a computation."""
    order: list[HloInstruction] = []
    spans: dict[HloComputation, TimeBound] = {}
    waiting: list[tuple[HloComputation, Iterator[HloInstruction], HloInstruction | None]] = []

    def enter(computation: HloComputation, after: HloInstruction | None) -> None:
        # The start is set later: the computations of one caller are pushed together, the last first.
        waiting.append((computation, iter(order_of(computation)), after))

    enter(entry, None)
    while waiting:
        computation, rest, caller = waiting[-1]
        spans.setdefault(computation, TimeBound(len(order), -1))
        instruction = next(rest, None)
        if instruction is None:
            waiting.pop()
            spans[computation].end = len(order)
            if caller is not None:
                order.append(caller)
            continue
        inner = nested_computations(instruction)
        for number in reversed(range(len(inner))):
            enter(inner[number], instruction if number == len(inner) - 1 else None)
        if not inner:
            order.append(instruction)
    times = {instruction: time for time, instruction in enumerate(order)}
    return FlatSchedule(order, times, spans, _async_ends(order, times))


def _async_ends(order: list[HloInstruction], times: dict[HloInstruction, int]) -> dict[HloComputation, int]:
    """Return for each asynchronous computation the time of its async-done."""
    ends: dict[HloComputation, int] = {}
    for start in order:
        if start.opcode != "async-start":
            continue
        last = start
        while last.opcode != "async-done" and last.users:
            last = last.users[0]
        inner = list(nested_computations(start))
        for computation in inner:
            ends[computation] = times[last]
            inner += [c for i in computation.instructions for c in nested_computations(i)]
    return ends


class LiveRanges(Struct, frozen=True, eq=False):
    """The flat schedule and the live range of each value in it."""

    schedule: FlatSchedule
    ranges: dict[HloValue, TimeBound]


def live_ranges(analysis: AliasAnalysis, schedule: FlatSchedule) -> LiveRanges:
    """Return the live ranges. If values of one buffer would overlap, the earlier range ends earlier."""
    ranges = value_ranges(analysis.dataflow, schedule)
    for buffer in analysis.buffers:
        bounds = [(ranges[v].start, ranges[v].end, v.id, ranges[v]) for v in buffer.values if v in ranges]
        if len(bounds) > 1:
            _part([bound for *_, bound in sorted(bounds, key=lambda b: b[:3])])
    return LiveRanges(schedule, ranges)


def value_ranges(dataflow: Dataflow, schedule: FlatSchedule) -> dict[HloValue, TimeBound]:
    """Return the live range of every value, regardless of shared buffers."""
    module = dataflow.module
    aliased = {(module.entry.parameters[number], index) for _, number, index, _ in aliases(module)}
    found: dict[HloValue, TimeBound] = {}
    for value in dataflow.values:
        instruction, computation = value.instruction, value.instruction.parent
        if instruction not in schedule.times or computation is None:
            continue
        start = schedule.times[instruction]
        end = max(start, schedule.async_ends.get(computation, 0), _last_use(value, schedule))
        if instruction.opcode == "parameter":
            start = schedule.spans[computation].start
            if computation is module.entry and (instruction, value.index) not in aliased:
                end = schedule.end
        for position in value.positions:
            home = position.instruction.parent
            if position.instruction.is_root and home is not None and home in schedule.spans:
                end = max(end, schedule.spans[home].end)
        found[value] = TimeBound(start, end)
    return found


def _last_use(value: HloValue, schedule: FlatSchedule) -> int:
    last = -1
    for use in value.uses:
        user = use.instruction
        if user.opcode == "while":
            # The initial value of a loop is not read after the body has its parameter.
            user = user.while_body.parameters[0]
        elif user.opcode == "call":
            # The callee's instructions read the operands of a call.
            user = user.to_apply.parameters[use.operand_number]
        last = max(last, schedule.times.get(user, -1))
    return last


def _part(bounds: list[TimeBound]) -> None:
    """End each of the ranges, sorted by their starts, before the next begins."""
    for one, following in pairwise(bounds):
        following.end = max(following.end, one.end)
        one.end = min(one.end, following.start)
