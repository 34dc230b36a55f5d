"""Find copies of a computation without loops and branches that can go, because buffers can hold all their values in turn.

    c = copy(p);  u = dynamic-update-slice(c, ..)   =>   u = dynamic-update-slice(p, ..)   if every reader of p runs before u

A chain lists the values of a buffer in the order in which they are written. To remove a copy joins the chain of its source and
its own. Each live range must then end before the next value is written, in every order that the given relation allows: that of
dependencies, or that of a schedule. Mirrors XLA's `CopyRemover`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from hlo_run.analysis.buffers.alias_pairs import in_place_pairs
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloUse, HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.verify.config import aliases

RunsBefore: TypeAlias = "Callable[[HloInstruction, HloInstruction], bool]"


@dataclass(eq=False)
class _Link:
    """A value in its chain, with the uses that read it from its buffer."""

    value: HloValue
    uses: list[HloUse]
    chain: list[_Link] = field(default_factory=list["_Link"], repr=False)

    @property
    def place(self) -> int:
        return self.chain.index(self)


def value_groups(dataflow: Dataflow, computation: HloComputation) -> list[list[HloValue]]:
    """Return the array values of a computation that must share a buffer, grouped, each group in post-order."""
    group: dict[HloValue, list[HloValue]] = {}
    order = computation.post_order()
    for instruction in order:
        for index, value in dataflow.trees[instruction].walk():
            if value.instruction is instruction and value.index == index and value.shape.is_array:
                group[value] = [value]

    def join(one: HloValue, two: HloValue) -> None:
        first, second = group[one], group[two]
        if first is not second:
            first += second
            for value in second:
                group[value] = first

    for instruction in order:
        for number, place, output in in_place_pairs(instruction):
            written = instruction.shape
            for part in output:
                written = written.tuple_shapes[part]
            for inner, leaf in written.leaves():
                if leaf.is_array:
                    operand = dataflow.value(instruction.operands[number], (*place, *inner))
                    join(operand, dataflow.value(instruction, (*output, *inner)))
    if computation.is_entry:
        for output, number, place, _ in aliases(dataflow.module):
            join(dataflow.value(computation.parameters[number], place), dataflow.value(computation.root, output))
    places = {instruction: number for number, instruction in enumerate(order)}
    found = {id(values): values for values in group.values()}
    return [sorted(values, key=lambda value: places[value.instruction]) for values in found.values()]


def by_dependencies(computation: HloComputation) -> RunsBefore:
    """Return the relation: the first instruction runs before the second in every schedule."""
    numbers: dict[HloInstruction, int] = {}
    before: dict[HloInstruction, int] = {}
    for instruction in computation.post_order():
        bits = 0
        for other in (*instruction.operands, *instruction.control_predecessors):
            bits |= before[other] | 1 << numbers[other]
        numbers[instruction], before[instruction] = len(numbers), bits
    return lambda one, two: bool(before[two] >> numbers[one] & 1)


def by_schedule(order: Sequence[HloInstruction]) -> RunsBefore:
    """Return the relation: the first instruction is before the second in the schedule."""
    places = {instruction: number for number, instruction in enumerate(order)}
    return lambda one, two: places[one] < places[two]


def removable_copies(
    dataflow: Dataflow, computation: HloComputation, runs_before: RunsBefore, kept: Container[HloInstruction] = ()
) -> Iterator[HloInstruction]:
    """Yield copies that can go, except `kept`, in the order of creation, until none is left. The caller removes them later."""
    return _Chains(dataflow, computation, runs_before, kept).remove()


class _Chains:
    def __init__(
        self, dataflow: Dataflow, computation: HloComputation, runs_before: RunsBefore, kept: Container[HloInstruction]
    ) -> None:
        self._computation = computation
        self._runs_before = runs_before
        self._sharing = BufferSharing()
        links: dict[HloValue, _Link] = {}
        for values in value_groups(dataflow, computation):
            chain: list[_Link] = []
            chain += (_Link(value, list(value.uses), chain) for value in values)
            links.update({link.value: link for link in chain})
        self._copies: dict[HloInstruction, tuple[_Link, _Link]] = {
            copy: (links[dataflow.value(copy.operands[0])], links[dataflow.value(copy)])
            for copy in computation.instructions
            if copy.opcode == "copy" and copy.shape == copy.operands[0].shape and copy.shape.is_array and copy not in kept
        }

    def remove(self) -> Iterator[HloInstruction]:
        changed = True
        while changed:
            changed = False
            for copy in list(self._copies):
                if self._join(*self._copies[copy]):
                    source, made = self._copies.pop(copy)
                    self._drop(copy, source, made)
                    changed = True
                    yield copy

    def _join(self, source: _Link, made: _Link) -> bool:
        """Join the chains of a copy's source and of the copy, if live ranges allow it."""
        ours, theirs = source.chain, made.chain
        here, there = source.place, made.place
        if ours is theirs and there == here + 1:
            return True
        if ours is theirs:
            return False
        if there == 0:
            if not self._ends_before(ours[: here + 1], theirs[1:]) or not self._ends_before(theirs, ours[here + 1 :]):
                return False
            joined = [*ours[: here + 1], *theirs, *ours[here + 1 :]]
        elif here == len(ours) - 1:
            if not self._ends_before(theirs[:there], ours) or not self._ends_before(ours, theirs[there + 1 :]):
                return False
            joined = [*theirs[:there], *ours, *theirs[there:]]
        else:
            return False
        for link in joined:
            link.chain = joined
        return True

    def _drop(self, copy: HloInstruction, source: _Link, made: _Link) -> None:
        """Let the source have the uses of a copy that is next to it in the chain."""
        made.chain.remove(made)
        source.uses = [*(use for use in source.uses if use.instruction is not copy), *made.uses]
        source.value.positions.extend(made.value.positions)
        for other, (other_source, other_made) in self._copies.items():
            if other_source is made:
                self._copies[other] = source, other_made

    def _ends_before(self, earlier: Sequence[_Link], later: Sequence[_Link]) -> bool:
        return all(self._is_before(one, two.value) for one, two in product(earlier, later))

    def _is_before(self, one: _Link, later: HloValue) -> bool:
        if not one.uses:
            first = one.value.instruction
            return first.opcode == "parameter" or self._runs_before(first, later.instruction)
        root = self._computation.root
        if any(position.instruction is root for position in one.value.positions):
            return False
        return all(self._reads_before(use, later) for use in one.uses)

    def _reads_before(self, use: HloUse, later: HloValue) -> bool:
        if use.instruction is later.instruction:
            # A copy may be written to its source: it then does nothing.
            return use.instruction.opcode == "copy" or self._sharing.may_share(
                use.instruction, use.operand_number, use.operand_index, later.index
            )
        return self._runs_before(use.instruction, later.instruction)
