"""Joins live ranges into sets that share a buffer, if no two different values of a set are live at once.

Each set has a sorted list of disjoint intervals, so a join examines only the neighbours of the smaller set's intervals. Lives
of the same value (a copy and its source) may overlap and become one interval.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, field

from hlo_run.analysis.buffers.copy_lives import Life


class Interval(NamedTuple):
    """The time in which a set holds one value. `order` sorts intervals; `value` is the first life of the value."""

    start: int
    end: int
    order: int
    value: Life


class _Group(Struct, eq=False):
    intervals: list[Interval] = field(default_factory=list[Interval])
    is_read_only: bool = False
    result_count: int = 0


MayFollow = Callable[[Interval, Interval, "Congruence"], bool]


class Congruence:
    """The sets. `may_follow` decides whether a value may begin in the buffer of another at the time of the other's last read."""

    def __init__(self, may_follow: MayFollow) -> None:
        self._may_follow = may_follow
        self._parents: dict[Life, Life] = {}
        self._groups: dict[Life, _Group] = {}
        self._values: dict[Life, Life] = {}
        self._numbers: dict[Life, int] = {}

    def add(self, life: Life, same_value_as: Life | None, is_read_only: bool = False, is_result: bool = False) -> None:
        """Add a life in a set of its own. `same_value_as`, a life with the same value, must be added before."""
        self._values[life] = life if same_value_as is None else self._values[same_value_as]
        value = self._values[life]
        number = self._numbers.setdefault(value, len(self._numbers))
        self._parents[life] = life
        self._groups[life] = _Group([Interval(life.start, life.end, number, value)], is_read_only, int(is_result))

    def find(self, life: Life) -> Life:
        """Return the life that represents the set."""
        root = life
        while self._parents[root] is not root:
            root = self._parents[root]
        while self._parents[life] is not root:
            self._parents[life], life = root, self._parents[life]
        return root

    def value(self, life: Life) -> Life:
        """Return the first life of the same value."""
        return self._values[life]

    def intervals(self, life: Life) -> list[Interval]:
        """Return the intervals of the set that holds `life`."""
        return self._groups[self.find(life)].intervals

    def force(self, one: Life, other: Life) -> None:
        """Join two sets that must share a buffer."""
        self._unite(self.find(one), self.find(other))

    def join(self, one: Life, other: Life) -> bool:
        """Join two sets unless their values interfere; return True if they are one set afterwards."""
        first, second = self.find(one), self.find(other)
        if first is second:
            return True
        mine, its = self._groups[first], self._groups[second]
        if mine.result_count + its.result_count > 1 or not self._may_be_read_only(mine, its):
            return False
        small, large = (mine, its) if len(mine.intervals) < len(its.intervals) else (its, mine)
        if not all(self._is_free(interval, large.intervals) for interval in small.intervals):
            return False
        self._unite(first, second)
        return True

    def _may_be_read_only(self, one: _Group, other: _Group) -> bool:
        """False if a read-only buffer would hold a second value or leave the module."""
        if not (one.is_read_only or other.is_read_only):
            return True
        values = {interval.value for interval in (*one.intervals, *other.intervals)}
        return len(values) == 1 and not (one.result_count or other.result_count)

    def _is_free(self, interval: Interval, others: list[Interval]) -> bool:
        """True if no other value is live in the interval. Where two intervals meet, `may_follow` decides."""
        return all(
            other.value is interval.value or self._may_meet(*sorted((interval, other))) for other in _neighbours(interval, others)
        )

    def _may_meet(self, earlier: Interval, later: Interval) -> bool:
        if earlier.end > later.start:
            return False
        return self._may_follow(earlier, later, self)

    def _unite(self, first: Life, second: Life) -> None:
        if first is second:
            return
        mine, its = self._groups[first], self._groups[second]
        if len(mine.intervals) < len(its.intervals):
            first, second, mine, its = second, first, its, mine
        for interval in its.intervals:
            _insert(interval, mine.intervals)
        mine.is_read_only |= its.is_read_only
        mine.result_count += its.result_count
        self._parents[second] = first
        del self._groups[second]


def _neighbours(interval: Interval, others: list[Interval]) -> list[Interval]:
    """Return the intervals that overlap or touch `interval`. `others` are sorted by start and at most touch each other."""
    place = bisect_left(others, (interval.end + 1,))
    found: list[Interval] = []
    while place and others[place - 1].end >= interval.start:
        place -= 1
        found.append(others[place])
    return found


def _insert(interval: Interval, others: list[Interval]) -> None:
    """Insert an interval into a sorted list and merge it with overlapping intervals of its value."""
    same = [other for other in _neighbours(interval, others) if other.value is interval.value]
    for other in same:
        others.remove(other)
        interval = interval._replace(start=min(interval.start, other.start), end=max(interval.end, other.end))
    insort(others, interval)
