"""Finds the allocations that are free while some values are live.

One numpy pass compares all live ranges. An exact check follows for ranges that meet in one instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.analysis.buffers.live_range import LiveRanges
from hlo_run.runtime.planned_allocation import PlannedAllocation

_FIRST_CAPACITY = 64


class Occupancy:
    """The reusable allocations in order of creation, and the live ranges of their values."""

    def __init__(self, live: LiveRanges, sharing: BufferSharing) -> None:
        self._live = live
        self._sharing = sharing
        self._allocations: list[PlannedAllocation] = []
        self._numbers: dict[PlannedAllocation, int] = {}
        self._values: list[HloValue] = []
        self._lives: NDArray[np.int64] = np.zeros((3, _FIRST_CAPACITY), np.int64)  # start, end, number of the allocation

    def add_allocation(self, allocation: PlannedAllocation, values: Sequence[HloValue]) -> None:
        """Add a reusable allocation with its first values."""
        self._numbers[allocation] = len(self._allocations)
        self._allocations.append(allocation)
        self.add_values(allocation, values)

    def add_values(self, allocation: PlannedAllocation, values: Sequence[HloValue]) -> None:
        """Record that the allocation holds `values` too."""
        for value in values:
            if len(self._values) == self._lives.shape[1]:
                self._lives = np.concatenate((self._lives, np.zeros_like(self._lives)), axis=1)
            bound = self._live.ranges[value]
            self._lives[:, len(self._values)] = bound.start, bound.end, self._numbers[allocation]
            self._values.append(value)

    def free_for(self, values: Sequence[HloValue], preferred: Sequence[PlannedAllocation]) -> Iterator[PlannedAllocation]:
        """Yield the allocations without values that interfere with `values`: preferred ones, then all, the latest first.

        A preferred allocation is yielded twice.
        """
        if not self._allocations:
            return
        taken: set[int] = set()
        for value in values:
            taken.update(self._interfering(value))
        free = [allocation for allocation in preferred if allocation in self._numbers and self._numbers[allocation] not in taken]
        yield from free
        for number in reversed(range(len(self._allocations))):
            if number not in taken:
                yield self._allocations[number]

    def _interfering(self, value: HloValue) -> set[int]:
        bound = self._live.ranges[value]
        starts, ends, numbers = self._lives[:, : len(self._values)]
        overlapping = (starts <= bound.end) & (ends >= bound.start)
        touching = overlapping & ((starts == bound.end) | (ends == bound.start))
        taken = set(numbers[overlapping & ~touching].tolist())
        for place in np.flatnonzero(touching).tolist():
            if not self._may_follow(value, self._values[place]):
                taken.add(int(numbers[place]))
        return taken

    def _may_follow(self, value: HloValue, other: HloValue) -> bool:
        """True if two values whose live ranges meet in one instruction may share memory: it reads one and writes the other."""
        mine, its = self._live.ranges[value], self._live.ranges[other]
        if mine.end == its.start:
            return self._sharing.may_take_place(other, value)
        return self._sharing.may_take_place(value, other)
