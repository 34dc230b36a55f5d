"""Finds unnecessary copies: buffers can hold all their values in turn.

    c = copy(p);  u = dynamic-update-slice(c, ..)   =>   u = dynamic-update-slice(p, ..)   if every reader of p runs before u

A chain lists the values of a buffer in the order in which they are written. To remove a copy joins the chain of its source and
its own. Each live range must then end before the next value is written, in every order that the module allows. Mirrors XLA's
`CopyRemover` without its analysis of regions, which XLA:GPU leaves off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cmp_to_key
from typing import NamedTuple

from msgspec import Struct, field

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, analyze_aliases
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloUse, HloValue
from hlo_run.analysis.buffers.execution_order import ExecutionOrder
from hlo_run.analysis.computation_order import nested_computations
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule


class _Link(Struct, eq=False):
    """A value in its chain, with the uses that read it from its buffer."""

    value: HloValue
    uses: list[HloUse]
    # The outermost conditional around the value, and the number of the branch.
    branch: tuple[HloInstruction, int] | None
    chain: _Chain
    # Whether all uses are in the computation of the value; None: not known yet.
    is_local: bool | None = None

    @property
    def place(self) -> int:
        return self.chain.links.index(self)

    @property
    def own_branch(self) -> tuple[HloInstruction, int] | None:
        """The branch, if all uses are in the value's computation."""
        if self.is_local is None:
            home = self.value.instruction.parent
            self.is_local = all(use.instruction.parent is home for use in self.uses)
        return self.branch if self.is_local else None


class _Chain(Struct, eq=False):
    """The values of a buffer in turn. A conditional may have thousands of branches, so links are found by their branch."""

    links: list[_Link] = field(default_factory=list[_Link])
    # By conditional, then by the number of the branch; None: in no conditional.
    places: dict[HloInstruction | None, dict[int, dict[_Link, None]]] = field(
        default_factory=dict[HloInstruction | None, dict[int, dict[_Link, None]]]
    )
    # Links in a branch with a use outside of it, or without uses.
    exposed: dict[_Link, None] = field(default_factory=dict[_Link, None])

    def insert(self, place: int, links: Sequence[_Link]) -> None:
        """Insert links, which may be links of another chain."""
        self.links[place:place] = links
        for link in links:
            link.chain = self
            conditional, number = link.branch or (None, 0)
            self.places.setdefault(conditional, {}).setdefault(number, {})[link] = None
            self.use_changed(link)

    def remove(self, link: _Link) -> None:
        self.links.remove(link)
        conditional, number = link.branch or (None, 0)
        numbers = self.places[conditional]
        del numbers[number][link]
        if not numbers[number]:
            del numbers[number]
        if not numbers:
            del self.places[conditional]
        self.exposed.pop(link, None)

    def use_changed(self, link: _Link) -> None:
        """Note whether the link is exposed."""
        if link.branch is not None and (not link.uses or link.own_branch is None):
            self.exposed[link] = None
        else:
            self.exposed.pop(link, None)


class _Part(NamedTuple):
    """The links of a chain from `start` to before `stop`."""

    chain: _Chain
    start: int
    stop: int

    def __bool__(self) -> bool:
        return self.start < self.stop

    def of(self, links: Iterable[_Link]) -> list[_Link]:
        """Return those links of the chain that are in this part."""
        whole = self.start == 0 and self.stop == len(self.chain.links)
        return [link for link in links if whole or self.start <= link.place < self.stop]

    def all(self) -> list[_Link]:
        return self.chain.links[self.start : self.stop]

    def read_beside(self, later: _Part) -> list[_Link]:
        """Return the links that may be read when `later` is written: links of other branches of one conditional are left out."""
        if len(later.chain.places) != 1 or None in later.chain.places:
            return self.all()
        ((other, numbers),) = later.chain.places.items()
        found = dict.fromkeys(link for link in self.chain.exposed if link.branch is not None and link.branch[0] is other)
        for conditional, by_number in self.chain.places.items():
            within = by_number if conditional is not other else by_number.keys() & numbers.keys()
            for number in within:
                found.update(by_number[number])
        return self.of(found)

    def written_beside(self, one: _Link) -> list[_Link]:
        """Return the links that may be written while `one` is read: not those in other branches."""
        branch = one.own_branch
        if branch is None:
            return self.all()
        own, number = branch
        found: list[_Link] = []
        for conditional, by_number in self.chain.places.items():
            if conditional is not own:
                within = list(by_number)
            elif one.uses:
                within = [number] if number in by_number else []
            else:  # a value without uses ends where it begins, and later branches begin after it
                within = [each for each in by_number if each <= number]
            found += (link for each in within for link in by_number[each])
        return self.of(found)


class CopyChains:
    """The chains of a module. `removable_copies` yields copies until none can go."""

    def __init__(self, dataflow: Dataflow) -> None:
        self._module = dataflow.module
        self._order = ExecutionOrder(dataflow)
        links: dict[HloValue, _Link] = {}
        for values in self._in_turn(analyze_aliases(dataflow)):
            chain = _Chain()
            chain.insert(0, [_Link(value, list(value.uses), self._order.branch(value.instruction), chain) for value in values])
            links.update({link.value: link for link in chain.links})
        self._readers: dict[_Link, list[HloInstruction]] = {}
        self._copies: dict[HloInstruction, tuple[_Link, _Link]] = {
            copy: (links[dataflow.value(copy.operands[0])], links[dataflow.value(copy)])
            for computation in self._module.computations
            for copy in computation.instructions
            if copy.opcode == "copy" and copy.shape == copy.operands[0].shape and self._order.has(copy)
        }
        for copy, (source, _) in self._copies.items():
            self._readers.setdefault(source, []).append(copy)

    def removable_copies(self) -> Iterator[HloInstruction]:
        """Yield unnecessary copies, in the order of computations and instructions, until none is left.

        The caller lets the users of a copy read its operand. Later copies count on that.
        """
        changed = True
        while changed:
            changed = False
            for copy in list(self._copies):
                if self._join(*self._copies[copy]):
                    source, made = self._copies.pop(copy)
                    self._drop(copy, source, made)
                    changed = True
                    yield copy

    def _in_turn(self, analysis: AliasAnalysis) -> Iterator[list[HloValue]]:
        """Yield the values of each buffer in the order in which they are written; values without an order, in post-order."""
        numbers = _numbers(self._module)

        def compare(one: HloValue, two: HloValue) -> int:
            if numbers[one.instruction] > numbers[two.instruction]:
                return -compare(two, one)
            if self._order.is_defined_before(one, two):
                return -1
            if self._order.is_defined_before(two, one):
                return 1
            return -1 if one is not two else 0

        for buffer in analysis.buffers:
            # A reducer, which runs inside a kernel, has no order.
            values = [value for value in buffer.values if self._order.has(value.instruction)]
            yield sorted(values, key=cmp_to_key(compare)) if len(values) > 1 else values

    def _join(self, source: _Link, made: _Link) -> bool:
        """Join the chains of a copy's source and of the copy, if live ranges allow it."""
        ours, theirs = source.chain, made.chain
        here, there = source.place, made.place
        if ours is theirs:
            return there == here + 1
        count, their_count = len(ours.links), len(theirs.links)
        if there == 0:
            if _is_read_by_scatter(source, theirs.links):
                return False
            fits = self._end_before(_Part(ours, 0, here + 1), _Part(theirs, 1, their_count)) and self._end_before(
                _Part(theirs, 0, their_count), _Part(ours, here + 1, count)
            )
            place, into, others = here + 1, ours, theirs
        elif here == count - 1:
            fits = self._end_before(_Part(theirs, 0, there), _Part(ours, 0, count)) and self._end_before(
                _Part(ours, 0, count), _Part(theirs, there + 1, their_count)
            )
            place, into, others = there, theirs, ours
        else:
            return False
        if fits:
            _merge(into, place, others)
        return fits

    def _drop(self, copy: HloInstruction, source: _Link, made: _Link) -> None:
        """Let the source have the uses of a copy that is next to it in the chain."""
        made.chain.remove(made)
        source.uses = [*(use for use in source.uses if use.instruction is not copy), *made.uses]
        source.is_local = None
        source.chain.use_changed(source)
        source.value.positions.extend(made.value.positions)
        for other in self._readers.pop(made, ()):
            if other in self._copies:
                self._copies[other] = source, self._copies[other][1]
            self._readers.setdefault(source, []).append(other)

    def _end_before(self, earlier: _Part, later: _Part) -> bool:
        if not earlier or not later:
            return True
        return all(self._ends_before(one, two.value) for one in earlier.read_beside(later) for two in later.written_beside(one))

    def _ends_before(self, one: _Link, later: HloValue) -> bool:
        if not one.uses:
            return self._order.is_defined_before(one.value, later)
        computation = later.instruction.parent
        if computation is not None and any(position.instruction is computation.root for position in one.value.positions):
            return False
        return self._order.are_read_before(one.uses, later)


def _merge(chain: _Chain, place: int, others: _Chain) -> None:
    """Insert the links of another chain at a place. The larger chain takes in the smaller one."""
    if len(chain.links) >= len(others.links):
        chain.insert(place, others.links)
        return
    before, after = chain.links[:place], chain.links[place:]
    others.insert(0, before)
    others.insert(len(others.links), after)


def _is_read_by_scatter(source: _Link, theirs: Sequence[_Link]) -> bool:
    """Return True if a copy is for a scatter of several arrays that reads the source too: each result needs a buffer."""
    writer = theirs[1].value.instruction if len(theirs) > 1 else None
    if writer is None or not writer.shape.is_tuple:
        return False
    scatter = writer.fused_computation.root if writer.opcode == "fusion" else writer
    return scatter.opcode == "scatter" and any(use.instruction is writer for use in source.uses)


def _numbers(module: HloModule) -> dict[HloInstruction, int]:
    """Number the executed instructions: parameters first, callees before callers, otherwise by schedule or in post-order."""
    numbers: dict[HloInstruction, int] = {}
    schedule = module.schedule or {}

    def visit(computation: HloComputation) -> None:
        for parameter in computation.parameters:
            numbers[parameter] = len(numbers)
        order = schedule.get(computation)
        for instruction in computation.post_order() if order is None else order:
            for inner in nested_computations(instruction):
                visit(inner)
            numbers.setdefault(instruction, len(numbers))

    visit(module.entry)
    return numbers
