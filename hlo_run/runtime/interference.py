"""Finds the allocations that are free while some values are live.

A tree over the allocations skips groups of which each has a value that is live at the same time, so a result of many arrays,
which are all live at the end, takes no time per pair. The other allocations compare the live ranges of their values with numpy.
An exact check follows for ranges that meet in one instruction.
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
# No live range begins or ends here.
_BEFORE, _AFTER = -(2**62), 2**62


class _Held:
    """The values of one allocation and their live ranges; `longest` is the longest range."""

    def __init__(self) -> None:
        self.values: list[HloValue] = []
        self.longest = (_AFTER, _BEFORE)
        self._lives: NDArray[np.int64] = np.zeros((2, 4), np.int64)  # start, end

    def add(self, value: HloValue, start: int, end: int) -> None:
        if len(self.values) == self._lives.shape[1]:
            self._lives = np.concatenate((self._lives, np.zeros_like(self._lives)), axis=1)
        self._lives[:, len(self.values)] = start, end
        self.values.append(value)
        if end - start > self.longest[1] - self.longest[0]:
            self.longest = start, end

    def touching(self, start: int, end: int) -> list[HloValue] | None:
        """Return the values whose ranges only touch [start, end], at an end of both; None if another range overlaps it."""
        starts, ends = self._lives[:, : len(self.values)]
        overlapping = (starts <= end) & (ends >= start)
        touching = overlapping & ((starts == end) | (ends == start))
        if (overlapping & ~touching).any():
            return None
        return [self.values[place] for place in np.flatnonzero(touching).tolist()]


class Occupancy:
    """The reusable allocations in order of creation, and the live ranges of their values."""

    def __init__(self, live: LiveRanges, sharing: BufferSharing) -> None:
        self._live = live
        self._sharing = sharing
        self._allocations: list[PlannedAllocation] = []
        self._numbers: dict[PlannedAllocation, int] = {}
        self._held: list[_Held] = []
        # A binary tree: node 1 is the root, 2n and 2n + 1 are the children of n, the last `_capacity` nodes are allocations.
        # A node has the latest start and the earliest end of the longest ranges of its allocations.
        self._capacity = _FIRST_CAPACITY
        self._latest_starts = [_BEFORE] * (2 * _FIRST_CAPACITY)
        self._earliest_ends = [_AFTER] * (2 * _FIRST_CAPACITY)

    def add_allocation(self, allocation: PlannedAllocation, values: Sequence[HloValue]) -> None:
        """Add a reusable allocation with its first values."""
        self._numbers[allocation] = len(self._allocations)
        self._allocations.append(allocation)
        self._held.append(_Held())
        if len(self._allocations) > self._capacity:
            self._grow()
        self.add_values(allocation, values)

    def add_values(self, allocation: PlannedAllocation, values: Sequence[HloValue]) -> None:
        """Record that the allocation holds `values` too."""
        number = self._numbers[allocation]
        for value in values:
            bound = self._live.ranges[value]
            self._held[number].add(value, bound.start, bound.end)
        self._update(number)

    def _grow(self) -> None:
        self._capacity *= 2
        self._latest_starts = [_BEFORE] * (2 * self._capacity)
        self._earliest_ends = [_AFTER] * (2 * self._capacity)
        for number in range(len(self._allocations) - 1):
            self._update(number)

    def _update(self, number: int) -> None:
        """Write the longest range of an allocation into the tree."""
        starts, ends = self._latest_starts, self._earliest_ends
        node = self._capacity + number
        starts[node], ends[node] = self._held[number].longest
        while node > 1:
            node //= 2
            starts[node] = max(starts[2 * node], starts[2 * node + 1])
            ends[node] = min(ends[2 * node], ends[2 * node + 1])

    def free_for(self, values: Sequence[HloValue], preferred: Sequence[PlannedAllocation]) -> Iterator[PlannedAllocation]:
        """Yield the allocations without values that interfere with `values`: preferred ones, then all, the latest first.

        A preferred allocation is yielded twice.
        """
        for allocation in preferred:
            number = self._numbers.get(allocation)
            if number is not None and self._is_free(number, values):
                yield allocation
        bounds = [self._live.ranges[value] for value in values]
        waiting = [1]
        while waiting:
            node = waiting.pop()
            start, end = self._latest_starts[node], self._earliest_ends[node]
            if any(start < bound.end and end > bound.start for bound in bounds):
                continue
            if node < self._capacity:
                waiting += (2 * node, 2 * node + 1)
            elif self._is_free(node - self._capacity, values):
                yield self._allocations[node - self._capacity]

    def _is_free(self, number: int, values: Sequence[HloValue]) -> bool:
        for value in values:
            bound = self._live.ranges[value]
            touching = self._held[number].touching(bound.start, bound.end)
            if touching is None or not all(self._may_follow(value, other) for other in touching):
                return False
        return True

    def _may_follow(self, value: HloValue, other: HloValue) -> bool:
        """True if two values whose live ranges meet in one instruction may share memory: it reads one and writes the other."""
        mine, its = self._live.ranges[value], self._live.ranges[other]
        if mine.end == its.start:
            return self._sharing.may_take_place(other, value)
        return self._sharing.may_take_place(value, other)
