"""Keeps a topological order of a computation's instructions up to date while edges are added."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.walks import reaches, walk


class TopologicalOrder:
    """An order with predecessors before successors: operands, control predecessors, and the edges of `add_edge`.

    Uses the algorithm of Pearce and Kelly: an edge against the order moves only instructions between its ends.
    """

    def __init__(self, computation: HloComputation) -> None:
        order = computation.post_order()
        self._place = {instruction: number for number, instruction in enumerate(order)}
        self._before = {i: {*i.operands, *i.control_predecessors} for i in order}
        self._after: dict[HloInstruction, set[HloInstruction]] = {i: set() for i in order}
        for instruction, before in self._before.items():
            for earlier in before:
                self._after[earlier].add(instruction)

    def add_edge(self, first: HloInstruction, second: HloInstruction) -> bool:
        """Add the edge `first` -> `second`. Returns False without a change if it would close a cycle."""
        low, high = self._place[second], self._place[first]
        if low < high:
            later = list(self._reached(second, self._after, low, high))
            if first in later:
                return False
            earlier = list(self._reached(first, self._before, low, high))
            moved = [*sorted(earlier, key=self._place.__getitem__), *sorted(later, key=self._place.__getitem__)]
            places = sorted(self._place[instruction] for instruction in moved)
            self._place.update(zip(moved, places, strict=True))
        self._after[first].add(second)
        self._before[second].add(first)
        return True

    @property
    def instructions(self) -> list[HloInstruction]:
        """The instructions in this order."""
        return sorted(self._place, key=self._place.__getitem__)

    def _reached(
        self, start: HloInstruction, edges: dict[HloInstruction, set[HloInstruction]], low: int, high: int
    ) -> Iterator[HloInstruction]:
        """Return `start` and the instructions that edges reach from it, within positions `low` to `high`, both included."""
        return walk([start], lambda instruction: [i for i in edges[instruction] if low <= self._place[i] <= high])


def runs_before(first: HloInstruction, then: HloInstruction) -> bool:
    """Return True if `then` runs after `first` in every order."""
    return reaches(then, (first,), lambda instruction: (*instruction.operands, *instruction.control_predecessors))
