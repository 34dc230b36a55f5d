"""Packs values into one block: the largest (or longest-lived) first, each into the smallest gap that fits it.

    time  ->             a 400 bytes   b 400 bytes          c fits where a was: a and c do not live at once
    a |----|             c
    b    |-----|
    c        |---|

Mirrors XLA's `GlobalDecreasingSizeBestFitHeap`, both orders, and `ChooseBestHeapAlgorithm`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.errors import Unsupported

_Column: TypeAlias = "NDArray[np.int64]"
# Offsets are 64-bit numbers. A dimension without a bound (`?`) has a negative size.
_MOST_BYTES = np.iinfo(np.int64).max


class _Interval(Struct):
    """The live range of one value, from event to event. `colocated` are the values that share its offset later."""

    value: HloValue
    size_bytes: int
    start: int
    end: int = -1
    is_owner: bool = True
    colocated: list[HloValue] = field(default_factory=list[HloValue])


class Packing(Struct, frozen=True):
    """The offset of each value in the block, a multiple of the alignment, and the size of the block in bytes."""

    offsets: dict[HloValue, int]
    size_bytes: int


class BestFitHeap:
    """A heap that records live ranges. `pack` assigns the offsets."""

    def __init__(self) -> None:
        self._intervals: dict[HloValue, _Interval] = {}
        self._empty: dict[HloValue, int] = {}
        self._now = 0

    def allocate(self, value: HloValue, size_bytes: int) -> None:
        """Begin the live range of a value with its own memory."""
        self._begin(value, size_bytes, is_owner=True)

    def share(self, value: HloValue, with_value: HloValue, size_bytes: int) -> None:
        """Begin the live range of a value in the memory of `with_value`."""
        if size_bytes:
            self._intervals[with_value].colocated.append(value)
        self._begin(value, size_bytes, is_owner=False)

    def _begin(self, value: HloValue, size_bytes: int, is_owner: bool) -> None:
        if size_bytes == 0:
            self._empty[value] = 0
            return
        self._intervals[value] = _Interval(value, size_bytes, self._now, is_owner=is_owner)
        self._now += 1

    def free(self, value: HloValue, size_bytes: int) -> None:
        """End the live range of a value."""
        if size_bytes and self._intervals[value].end < 0:
            self._intervals[value].end = self._now
            self._now += 1

    def pack(self, alignment_bytes: int, most_bytes: int = _MOST_BYTES) -> list[Packing]:
        """Return the packings, one per block, that are smaller in sum: by size or by lifetime; by size if they are equal.

        A block has at most `most_bytes`, or one group of values that is larger.
        """
        groups = [self._group(interval) for interval in self._intervals.values() if interval.is_owner]
        packings = [self._pack(sorted(groups, key=order), alignment_bytes, most_bytes) for order in (_by_size, _by_time)]
        return min(packings, key=lambda blocks: sum(block.size_bytes for block in blocks))

    def _group(self, owner: _Interval) -> list[_Interval]:
        """Return the interval and all that share its offset, directly or not."""
        group = [owner]
        for interval in group:
            group += [self._intervals[value] for value in interval.colocated]
        return group

    def _pack(self, groups: list[list[_Interval]], alignment_bytes: int, most_bytes: int) -> list[Packing]:
        blocks: list[Packing] = []
        while groups or not blocks:
            offsets = {} if blocks else dict(self._empty)
            space = _Space(len(self._intervals), alignment_bytes, most_bytes)
            left: list[list[_Interval]] = []
            for group in groups:
                offset = space.place(group)
                if offset is None:
                    left.append(group)
                else:
                    offsets.update((interval.value, offset) for interval in group)
            groups = left
            blocks.append(Packing(offsets, space.size_bytes))
        return blocks


def _lifetime(group: list[_Interval]) -> int:
    return max(interval.end for interval in group) - group[0].start


def _by_size(group: list[_Interval]) -> tuple[int, int, int]:
    """Return the key of an order by size; only the owner's own lifetime counts, as in XLA."""
    return -group[0].size_bytes, group[0].start - group[0].end, group[0].value.id


def _by_time(group: list[_Interval]) -> tuple[int, int, int]:
    return -_lifetime(group), -group[0].size_bytes, group[0].value.id


class _Space:
    """The placed intervals, as numpy columns of start, end, offset and size, so that one sweep finds all neighbours."""

    def __init__(self, capacity: int, alignment_bytes: int, most_bytes: int) -> None:
        self._starts: _Column = np.zeros(capacity, np.int64)
        self._ends: _Column = np.zeros(capacity, np.int64)
        self._offsets: _Column = np.zeros(capacity, np.int64)
        self._limits: _Column = np.zeros(capacity, np.int64)
        self._count = 0
        self._alignment_bytes = alignment_bytes
        self._most_bytes = most_bytes
        self.size_bytes = 0

    def place(self, group: list[_Interval]) -> int | None:
        """Reserve memory for intervals that share one offset. Return the offset; None if the block would become too large."""
        size = group[0].size_bytes
        offset = self._find(group, size)
        if not 0 <= offset + size <= _MOST_BYTES:
            instruction = group[0].value.instruction
            raise Unsupported(f"no device can hold the buffer of {instruction.name}, or all buffers together", instruction.where)
        if self.size_bytes and offset + size > self._most_bytes:
            return None
        first = self._count
        for number, interval in enumerate(group, first):
            self._starts[number], self._ends[number] = interval.start, interval.end
        self._count += len(group)
        self._offsets[first : self._count] = offset
        self._limits[first : self._count] = offset + size
        self.size_bytes = max(self.size_bytes, offset + size)
        return offset

    def _find(self, group: list[_Interval], size: int) -> int:
        """Return the offset of the smallest sufficient gap between intervals that overlap in time, or of the end of all."""
        starts, ends = self._starts[: self._count], self._ends[: self._count]
        near: NDArray[np.bool_] = np.zeros(self._count, np.bool_)
        for interval in group:
            near |= (starts <= interval.end) & (ends >= interval.start)
        taken = np.flatnonzero(near)
        if not taken.size:
            return 0
        taken = taken[np.argsort(self._offsets[taken], kind="stable")]
        begins = self._offsets[taken]
        aligned = -(-self._limits[taken] // self._alignment_bytes) * self._alignment_bytes
        frees = np.concatenate(([0], np.maximum.accumulate(aligned)))
        gaps = begins - frees[:-1]
        fitting = np.flatnonzero(gaps >= size)
        return int(frees[fitting[np.argmin(gaps[fitting])]]) if fitting.size else int(frees[-1])
