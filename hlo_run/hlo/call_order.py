"""Keeps the computations of a module in an order, callers before callees, while computations and calls are added.

XLA keeps such an order, and passes walk computations in it: the online topological sort for sparse graphs of M. A. Bender,
J. T. Fineman, S. Gilbert and R. E. Tarjan (A new approach to incremental cycle detection and related problems, 2015).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Caller(Protocol):
    """An instruction that calls computations."""

    @property
    def parent(self) -> Called | None:
        """The computation of the instruction."""
        ...

    @property
    def called_computations(self) -> tuple[Called, ...]:
        """The computations that the instruction calls."""
        ...


class Called(Protocol):
    """A computation."""

    @property
    def callers(self) -> Iterable[Caller]:
        """The instructions that call the computation."""
        ...

    @property
    def instructions(self) -> Iterable[Caller]:
        """The instructions of the computation."""
        ...


class CallOrder:
    """The order: each computation has a level and a place in it. A new computation comes first in the first level.

    If a call leads backwards, the caller moves before the callee, with those that reach it on its level. If these are too many,
    the callee moves to the next level, with those that it reaches.
    """

    def __init__(self) -> None:
        self._places: dict[Called, tuple[int, int]] = {}
        self._numbers: dict[Called, int] = {}
        self._added = self._calls = self._reach = self._moves = 0

    def place(self, computation: Called) -> tuple[int, int]:
        """Return the level of a computation, and a number that orders the computations of the level."""
        return self._places[computation]

    def add(self, computation: Called) -> None:
        """Add a computation, with the calls between it and the computations in the order."""
        self._added += 1
        self._numbers[computation] = self._added
        self._place(computation, 0)
        self._grow()
        for caller in self._callers(computation):
            self.call(caller, computation)
        for callee in self._callees(computation):
            self.call(computation, callee)

    def remove(self, computation: Called) -> None:
        """Remove a computation; the others keep their places."""
        del self._places[computation], self._numbers[computation]

    def call(self, caller: Called, callee: Called) -> None:
        """Record a call, unless a computation of another module is concerned."""
        if caller not in self._places or callee not in self._places or caller is callee:
            return
        self._calls += 1
        self._grow()
        if self._places[caller] < self._places[callee]:
            return
        level = self._places[caller][0]
        before = self._search_back(caller)
        if before is None:
            moved = self._raise(callee, level + 1)
        else:
            after = self._raise(callee, level) if self._places[callee][0] < level else []
            moved = [*after, *reversed(before)]
        for computation in moved:
            self._place(computation, self._places[computation][0])

    def follow(self, other: CallOrder, copies: Mapping[Any, Called]) -> None:
        """Order copies of computations as their originals in another module, if that has an order of them."""
        if other._places:
            self._places = {copies[old]: place for old, place in other._places.items()}
            self._numbers = {copies[old]: number for old, number in other._numbers.items()}
            self._added, self._calls, self._reach, self._moves = other._added, other._calls, other._reach, other._moves

    def _place(self, computation: Called, level: int) -> None:
        self._moves -= 1
        self._places[computation] = (level, self._moves)

    def _grow(self) -> None:
        while self._reach**2 < self._calls and self._reach**3 < len(self._places) ** 2:
            self._reach += 1

    def _callers(self, computation: Called) -> list[Called]:
        found = {caller.parent for caller in computation.callers}
        return sorted([c for c in found if c is not None and c in self._numbers], key=self._numbers.__getitem__)

    def _callees(self, computation: Called) -> list[Called]:
        found = {callee for instruction in computation.instructions for callee in instruction.called_computations}
        return sorted([c for c in found if c in self._numbers], key=self._numbers.__getitem__)

    def _search_back(self, start: Called) -> list[Called] | None:
        """Return those that reach a computation on its level, it last; None if that takes as many steps as the reach allows."""
        level, steps = self._places[start][0], 0
        order: list[Called] = []
        waiting, visited = [(start, False)], set[Called]()
        while waiting:
            computation, is_done = waiting.pop()
            if is_done:
                order.append(computation)
            elif computation not in visited:
                visited.add(computation)
                waiting.append((computation, True))
                for caller in self._callers(computation):
                    if self._places[caller][0] == level:
                        steps += 1
                        if steps >= self._reach:
                            return None
                        waiting.append((caller, False))
        return order

    def _raise(self, start: Called, level: int) -> list[Called]:
        """Raise a computation and all that it reaches to a level, unless they have it; return the raised, callees first."""
        order: list[Called] = []
        raised, waiting, visited = {start}, [(start, False)], set[Called]()
        self._places[start] = (level, self._places[start][1])
        while waiting:
            computation, is_done = waiting.pop()
            if is_done:
                order.append(computation)
            elif computation not in visited and computation in raised:
                visited.add(computation)
                waiting.append((computation, True))
                for callee in self._callees(computation):
                    waiting.append((callee, False))
                    if self._places[callee][0] < level:
                        self._places[callee] = (level, self._places[callee][1])
                        raised.add(callee)
        return order
