"""Replaces phis that always equal one value.

    p = phi(init, p)        the state of a loop that returns it unchanged   =>   init

Mirrors XLA's `PhiGraph::Optimize`: a phi whose inputs, apart from itself, are one value is replaced by that value. So is a
cycle of phis with only one input value from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_run.analysis.buffers.dataflow_values import HloValue


def replaceable_phis(inputs: Mapping[HloValue, Sequence[HloValue]]) -> dict[HloValue, HloValue]:
    """Return the replacement of each superfluous phi. `inputs` has the inputs of every phi."""
    graph = _Graph(inputs)
    graph.merge_equal_inputs()
    graph.merge_rings()
    graph.merge_equal_inputs()
    return {phi: found for phi in inputs if (found := graph.find(phi)) is not phi}


class _Graph:
    def __init__(self, inputs: Mapping[HloValue, Sequence[HloValue]]) -> None:
        self._inputs = inputs
        self._replaced: dict[HloValue, HloValue] = {}
        self._users: dict[HloValue, list[HloValue]] = {}
        for phi, values in inputs.items():
            for value in values:
                self._users.setdefault(value, []).append(phi)

    def find(self, value: HloValue) -> HloValue:
        end = value
        while end in self._replaced:
            end = self._replaced[end]
        while value is not end:
            self._replaced[value], value = end, self._replaced[value]
        return end

    def merge_equal_inputs(self) -> None:
        waiting = list(self._inputs)
        while waiting:
            phi = waiting.pop()
            if phi in self._replaced:
                continue
            others = {self.find(value) for value in self._inputs[phi]} - {phi}
            if len(others) == 1:
                self._replaced[phi] = others.pop()
                waiting += self._users.get(phi, ())

    def merge_rings(self) -> None:
        for ring in self._rings():
            entering = {self.find(value) for phi in ring for value in self._inputs[phi]} - set(ring)
            if len(entering) == 1:
                target = entering.pop()
                self._replaced.update(dict.fromkeys(ring, target))

    def _rings(self) -> list[list[HloValue]]:
        """Return the strongly connected sets of the remaining phis, inputs before users (Tarjan's algorithm)."""
        numbers: dict[HloValue, int] = {}
        lowest: dict[HloValue, int] = {}
        open_phis: dict[HloValue, None] = {}
        rings: list[list[HloValue]] = []
        for start in self._inputs:
            if start in self._replaced or start in numbers:
                continue
            waiting = [(start, iter(self._live_inputs(start)))]
            numbers[start] = lowest[start] = len(numbers)
            open_phis[start] = None
            while waiting:
                phi, rest = waiting[-1]
                following = next(rest, None)
                if following is None:
                    waiting.pop()
                    if waiting:
                        lowest[waiting[-1][0]] = min(lowest[waiting[-1][0]], lowest[phi])
                    if lowest[phi] == numbers[phi]:
                        rings.append(_pop_until(open_phis, phi))
                elif following not in numbers:
                    numbers[following] = lowest[following] = len(numbers)
                    open_phis[following] = None
                    waiting.append((following, iter(self._live_inputs(following))))
                elif following in open_phis:
                    lowest[phi] = min(lowest[phi], numbers[following])
        return rings

    def _live_inputs(self, phi: HloValue) -> list[HloValue]:
        found = [self.find(value) for value in self._inputs[phi]]
        return [value for value in found if value in self._inputs]


def _pop_until(open_phis: dict[HloValue, None], last: HloValue) -> list[HloValue]:
    ring: list[HloValue] = []
    while True:
        phi, _ = open_phis.popitem()
        ring.append(phi)
        if phi is last:
            return ring
