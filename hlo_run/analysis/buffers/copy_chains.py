"""Find copies that can go, because buffers can hold all their values in turn.

    c = copy(p);  u = dynamic-update-slice(c, ..)   =>   u = dynamic-update-slice(p, ..)   if every reader of p runs before u

A chain lists the values of a buffer in the order in which they are written. To remove a copy joins the chain of its source and
its own. Each live range must then end before the next value is written, in every order that the module allows. Mirrors XLA's
`CopyRemover` without its analysis of regions, which XLA:GPU leaves off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cmp_to_key

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
    chain: list[_Link] = field(default_factory=list["_Link"])
    # Whether all uses are in the computation of the value; None: not known yet.
    is_local: bool | None = None

    @property
    def place(self) -> int:
        return self.chain.index(self)

    @property
    def own_branch(self) -> tuple[HloInstruction, int] | None:
        """The branch, if all uses are in the value's computation."""
        if self.is_local is None:
            home = self.value.instruction.parent
            self.is_local = all(use.instruction.parent is home for use in self.uses)
        return self.branch if self.is_local else None


class CopyChains:
    """The chains of a module. `removable_copies` yields copies until none can go."""

    def __init__(self, dataflow: Dataflow) -> None:
        self._module = dataflow.module
        self._order = ExecutionOrder(dataflow)
        links: dict[HloValue, _Link] = {}
        for values in self._in_turn(analyze_aliases(dataflow)):
            chain: list[_Link] = []
            chain += (_Link(value, list(value.uses), self._order.branch(value.instruction), chain) for value in values)
            links.update({link.value: link for link in chain})
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
        """Yield copies that can go, in the order of computations and instructions, until none is left.

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
        if ours is theirs and there == here + 1:
            return True
        if ours is theirs:
            return False
        if there == 0:
            if _is_read_by_scatter(source, theirs):
                return False
            if not self._end_before(ours[: here + 1], theirs[1:]) or not self._end_before(theirs, ours[here + 1 :]):
                return False
            joined = [*ours[: here + 1], *theirs, *ours[here + 1 :]]
        elif here == len(ours) - 1:
            if not self._end_before(theirs[:there], ours) or not self._end_before(ours, theirs[there + 1 :]):
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
        source.is_local = None
        source.value.positions.extend(made.value.positions)
        for other in self._readers.pop(made, ()):
            if other in self._copies:
                self._copies[other] = source, self._copies[other][1]
            self._readers.setdefault(source, []).append(other)

    def _end_before(self, earlier: Sequence[_Link], later: Sequence[_Link]) -> bool:
        branches = _branches(later)
        return all(
            self._ends_before(one, two.value)
            for one in earlier
            if branches is None or not _is_read_elsewhere(one, branches)
            for two in _not_in_other_branches(one, later)
        )

    def _ends_before(self, one: _Link, later: HloValue) -> bool:
        if not one.uses:
            return self._order.is_defined_before(one.value, later)
        computation = later.instruction.parent
        if computation is not None and any(position.instruction is computation.root for position in one.value.positions):
            return False
        return self._order.are_read_before(one.uses, later)


def _branches(links: Sequence[_Link]) -> dict[int, HloInstruction] | None:
    """Return the numbers of the branches that the links are in, with their conditional; None if it is not the same for all."""
    found: dict[int, HloInstruction] = {}
    conditional = links[0].branch[0] if links and links[0].branch is not None else None
    for link in links:
        if conditional is None or link.branch is None or link.branch[0] is not conditional:
            return None
        found[link.branch[1]] = conditional
    return found


def _is_read_elsewhere(one: _Link, branches: dict[int, HloInstruction]) -> bool:
    """Return True if the link and all its uses, of which there are some, are in another branch of the same conditional."""
    branch = one.own_branch
    if branch is None or not one.uses or branch[1] in branches:
        return False
    return branch[0] is next(iter(branches.values()), None)


def _not_in_other_branches(one: _Link, later: Sequence[_Link]) -> Sequence[_Link]:
    """Return the links that may be written while `one` is read: not those in other branches, of which there may be thousands."""
    branch = one.own_branch
    if branch is None:
        return later
    conditional, number = branch
    # A value without uses ends where it begins, and later branches begin after it.
    least = -1 if one.uses else number
    return [
        two
        for two in later
        if (place := two.branch) is None or place[0] is not conditional or place[1] == number or place[1] < least
    ]


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
