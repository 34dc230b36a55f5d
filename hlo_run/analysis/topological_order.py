"""An order of a computation's instructions that takes new edges as long as they close no circle."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.hlo.graph import HloComputation, HloInstruction


class TopologicalOrder:
    """Predecessors before successors: operands and control predecessors at first, and what `add_edge` adds.

    Keeps the order up to date as Pearce and Kelly do: an edge against it moves only what lies between its ends.
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
        """Let `first` come before `second`; False, and nothing changes, if it comes after it already."""
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
        """Yield what edges lead to from `start`, itself too, within a range of places."""
        seen, waiting = {start}, [start]
        while waiting:
            instruction = waiting.pop()
            yield instruction
            fresh = {i for i in edges[instruction] if low <= self._place[i] <= high} - seen
            seen |= fresh
            waiting += fresh
