"""Replays the allocations and releases of a schedule into a heap.

Mirrors XLA's `HeapSimulator`. The heap decides what to do with them: `PeakHeap` only counts bytes, `BestFitHeap`
(best_fit_heap.py) finds offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, HloBuffer
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow_values import HloValue, buffer_size_bytes
from hlo_run.analysis.buffers.live_range import LiveRanges, flatten_schedule, live_ranges
from hlo_run.hlo.graph import HloComputation, HloInstruction

SizeOf = Callable[[HloValue], int]


class Heap(Protocol):
    """The receiver of the events. Sizes are in bytes."""

    def allocate(self, value: HloValue, size_bytes: int) -> None:
        """Allocate separate memory for `value`."""
        ...

    def share(self, value: HloValue, with_value: HloValue, size_bytes: int) -> None:
        """Allocate `value` in the memory of `with_value`, which may be free already."""
        ...

    def free(self, value: HloValue, size_bytes: int) -> None:
        """Free the memory of `value`."""
        ...


def simulate(
    heap: Heap,
    values: Collection[HloValue],
    analysis: AliasAnalysis,
    live: LiveRanges,
    size_of: SizeOf,
    sharing: BufferSharing,
) -> None:
    """Replay the live ranges of `values` into `heap` in order of time.

    Values of one buffer share memory. A value may share with an operand whose life ends at the instruction that makes the value.
    """
    simulation = _Simulation(heap, analysis, size_of, sharing)
    times = {value: (live.ranges[value].start, live.ranges[value].end) for value in values if value in live.ranges}
    defined: dict[int, list[HloValue]] = {}
    for value in sorted(times, key=lambda value: (*times[value], value.id)):
        start, end = times[value]
        defined.setdefault(start, []).append(value)
        simulation.freed.setdefault(end, {})[value] = None
    for time in sorted({*defined, *simulation.freed}):
        for value in defined.get(time, ()):
            simulation.define(value, time)
        for value in simulation.freed.get(time, ()):
            heap.free(value, size_of(value))


class _Simulation:
    def __init__(self, heap: Heap, analysis: AliasAnalysis, size_of: SizeOf, sharing: BufferSharing) -> None:
        self._heap = heap
        self._analysis = analysis
        self._size_of = size_of
        self._sharing = sharing
        self._first: dict[HloBuffer, HloValue] = {}
        self.freed: dict[int, dict[HloValue, None]] = {}

    def define(self, value: HloValue, time: int) -> None:
        buffer = self._analysis.buffer_of[value]
        size = self._size_of(value)
        if buffer in self._first:
            self._heap.share(value, self._first[buffer], size)
            return
        operand = self._dying_operand(value, time) if len(buffer.values) == 1 else None
        if operand is not None:
            self._heap.free(operand, self._size_of(operand))
            del self.freed[time][operand]
            self._heap.share(value, operand, size)
        else:
            self._heap.allocate(value, size)
            self._first[buffer] = value

    def _dying_operand(self, value: HloValue, time: int) -> HloValue | None:
        """Return an operand's value whose memory `value` may take: it dies at this time and is alone in its buffer."""
        dying = self.freed.get(time, {})
        for operand in value.instruction.operands:
            tree = self._analysis.dataflow.trees.get(operand)
            if tree is None or tree.value not in dying:
                continue
            found = tree.value
            is_alone = found.instruction is operand and len(self._analysis.buffer_of[found].values) == 1
            if is_alone and self._size_of(found) == self._size_of(value) and self._sharing.may_take_place(value, found):
                return found
        return None


class PeakHeap:
    """Counts the bytes in use, without fragmentation. XLA's `NoFragmentationStatsHeap`.

    Values that share memory count once, until the last of them is free.
    """

    def __init__(self) -> None:
        self._used_bytes = 0
        self._first: dict[HloValue, HloValue] = {}
        self._live: dict[HloValue, int] = {}
        self.peak_bytes = 0

    def allocate(self, value: HloValue, size_bytes: int) -> None:
        """Count the bytes of `value`."""
        self._add(value, value, size_bytes)

    def share(self, value: HloValue, with_value: HloValue, size_bytes: int) -> None:
        """Count the bytes of `value`, unless another value is live in its memory."""
        self._add(value, self._first[with_value], size_bytes)

    def _add(self, value: HloValue, first: HloValue, size_bytes: int) -> None:
        self._first[value] = first
        if not self._live.get(first):
            self._used_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        self._live[first] = self._live.get(first, 0) + 1

    def free(self, value: HloValue, size_bytes: int) -> None:
        """Stop counting the bytes of `value`, unless another value is live in its memory."""
        first = self._first[value]
        self._live[first] -= 1
        if not self._live[first]:
            self._used_bytes -= size_bytes


def peak_bytes(analysis: AliasAnalysis, orders: Mapping[HloComputation, list[HloInstruction]], sharing: BufferSharing) -> int:
    """Return the most bytes that are in use at once, constants left out, if computations run in these orders."""
    live = live_ranges(analysis, flatten_schedule(analysis.dataflow.module.entry, orders.__getitem__))
    heap = PeakHeap()
    values = [value for value in analysis.dataflow.values if value.instruction.opcode != "constant"]
    simulate(heap, values, analysis, live, buffer_size_bytes, sharing)
    return heap.peak_bytes
