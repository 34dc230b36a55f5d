"""The structural diff of two modules: what moved, was added, was removed, and which attributes changed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from hlo_run.diff.match import Matching, match_modules
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COMMUTATIVE, NO_CODE
from hlo_run.hlo.print_options import DEFAULT, PrintOptions
from hlo_run.hlo.printer import header_to_string, instruction_to_string
from hlo_run.pipeline.observers.line_diff import longest_increasing

MOVED, ADDED, REMOVED, CHANGED = KINDS = ("moved", "added", "removed", "changed")
_FINGERPRINT = re.compile(r'fingerprint_before_lhs="[^"]*"(?:, ?)?|, ?fingerprint_before_lhs="[^"]*"(?=\})')
_LINE = PrintOptions(percent=False, operand_index_interval=0, metadata=False, compact_operands=True, async_sugar=False)
# Instructions that follow from others: the parameters of a body follow from the operands of its caller.
_PLUMBING: frozenset[Opcode] = frozenset(("parameter", "tuple", "get-tuple-element"))


class Detail(Struct, frozen=True):
    """One changed property of a matched instruction."""

    what: str
    before: str
    after: str


class Change(Struct, frozen=True):
    """One difference.

    `before` and `after` are the instruction as text in each module, empty if it has none there. `computation` is where it is
    (of a moved one: where it was and where it is now). `details` are the properties that changed.
    """

    kind: str
    computation: str
    before: str
    after: str
    details: tuple[Detail, ...] = ()


class ModuleDiff(Struct, frozen=True):
    """All differences of two modules, by kind, then in the order of the modules. `renamed` counts instructions."""

    changes: tuple[Change, ...]
    instructions: tuple[int, int]
    matched: int
    renamed: int

    @property
    def counts(self) -> dict[str, int]:
        """The number of changes of each kind that occurs."""
        counts = {kind: sum(change.kind == kind for change in self.changes) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}


def diff_modules(one: HloModule, two: HloModule) -> ModuleDiff:
    """Compare two modules. Names, metadata and the order of commutative operands do not count, schedules do."""
    return ModuleComparison(one, two).diff


class ModuleComparison:
    """The comparison of two modules: the matching, and the differences that follow from it."""

    def __init__(self, one: HloModule, two: HloModule) -> None:
        self._one, self._two = one, two
        self.matching: Matching = match_modules(one, two)
        self._entries = (one.entry, two.entry)
        changes = [*self._header(), *self._added_and_removed(), *self._moved_in_schedules(), *self._changed()]
        partner = self.matching.partner
        self.diff = ModuleDiff(
            tuple(sorted(changes, key=lambda change: KINDS.index(change.kind))),
            (sum(len(c.instructions) for c in one.computations), sum(len(c.instructions) for c in two.computations)),
            len(partner),
            sum(first.name != second.name for first, second in partner.items()),
        )

    def _header(self) -> Iterator[Change]:
        before, after = (_header_parts(module) for module in (self._one, self._two))
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if names:
            details = tuple(Detail(name, before.get(name, ""), after.get(name, "")) for name in names)
            yield Change(CHANGED, "", "HloModule", "HloModule", details)

    def _added_and_removed(self) -> Iterator[Change]:
        """Yield what only one module has. What left one computation and came into another has moved."""
        removed = [i for one, _ in self.matching.computations for i in one.instructions if i not in self.matching.partner]
        added = [i for _, two in self.matching.computations for i in two.instructions if i not in self.matching.back]
        came: dict[int, list[HloInstruction]] = defaultdict(list)
        for instruction in reversed(list(_with_bodies(added))):
            came[self.matching.keys.local(instruction)].append(instruction)
        moved: set[HloInstruction] = set()
        for instruction in _with_bodies(removed):
            found = came.get(self.matching.keys.local(instruction))
            if found and instruction.opcode not in _PLUMBING:
                other = found.pop()
                moved |= {instruction, other}
                place = f"{_place(instruction)} -> {_place(other)}"
                yield Change(MOVED, place, _line(instruction), _line(other))
        for instruction in removed:
            if instruction not in moved and not self._follows(instruction):
                yield Change(REMOVED, _place(instruction), _line(instruction), "")
        for instruction in added:
            if instruction not in moved and not self._follows(instruction):
                yield Change(ADDED, _place(instruction), "", _line(instruction))

    def _follows(self, instruction: HloInstruction) -> bool:
        """True for a parameter of a body, which follows from the operands of the caller."""
        return instruction.opcode == "parameter" and instruction.parent not in self._entries

    def _moved_in_schedules(self) -> Iterator[Change]:
        """Yield the fewest instructions that must move to make one schedule the other."""
        for one, two in self.matching.computations:
            orders = [_schedule(module, computation) for module, computation in ((self._one, one), (self._two, two))]
            if not orders[0] or not orders[1]:
                continue
            where, places = ({instruction: place for place, instruction in enumerate(order)} for order in orders)
            pairs = [(i, places[other]) for i in orders[0] if (other := self.matching.partner.get(i)) in places]
            stay = set(longest_increasing([place for _, place in pairs]))
            for number, (instruction, place) in enumerate(pairs):
                if number not in stay:
                    other = orders[1][place]
                    detail = Detail("after", _previous(orders[0], where[instruction]), _previous(orders[1], place))
                    yield Change(MOVED, two.name, _line(instruction), _line(other), (detail,))

    def _changed(self) -> Iterator[Change]:
        for one, two in self.matching.computations:
            for instruction in one.instructions:
                other = self.matching.partner.get(instruction)
                if other is not None and (details := tuple(self._details(instruction, other))):
                    yield Change(CHANGED, two.name, _line(instruction), _line(other), details)
            root = self.matching.partner.get(one.root)
            if root is not two.root and root is not None and two.root in self.matching.back:
                yield Change(CHANGED, two.name, _line(one.root), _line(two.root), (Detail("root", one.root.name, two.root.name),))

    def _details(self, one: HloInstruction, two: HloInstruction) -> Iterator[Detail]:
        keys = self.matching.keys
        if one.opcode != two.opcode:
            yield Detail("opcode", one.opcode, two.opcode)
        if keys.shape(one) != keys.shape(two):
            yield Detail("shape", keys.shape(one), keys.shape(two))
        before, after = dict(keys.attributes(one)), dict(keys.attributes(two))
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                yield Detail(name, before.get(name, ""), after.get(name, ""))
        if one.opcode == "parameter" and one.parent is self._entries[0] and one.parameter_number != two.parameter_number:
            yield Detail("number", str(one.parameter_number), str(two.parameter_number))
        if self._has_other_operands(one, two):
            yield self._other_operands(one, two)
        waits, waits_now = ([self._mark(i) for i in side.control_predecessors] for side in (one, two))
        if sorted(waits) != sorted(waits_now):
            yield Detail("control-predecessors", _names(one.control_predecessors), _names(two.control_predecessors))

    def _other_operands(self, one: HloInstruction, two: HloInstruction) -> Detail:
        """Name the operands that differ, with their places if both have as many."""
        if len(one.operands) != len(two.operands):
            return Detail("operands", _names(one.operands), _names(two.operands))
        pairs = list(zip(one.operands, two.operands, strict=True))
        places = [place for place, (before, after) in enumerate(pairs) if self.matching.partner.get(before) is not after]
        before, after = ([pairs[place][side] for place in places] for side in (0, 1))
        return Detail("operands " + ", ".join(map(str, places)), _names(before), _names(after))

    def _mark(self, instruction: HloInstruction) -> str:
        """Return a text that is the same for matched instructions."""
        partner = self.matching.partner.get(instruction, instruction)
        return f"{partner.name} {instruction in self.matching.partner or instruction in self.matching.back}"

    def _has_other_operands(self, one: HloInstruction, two: HloInstruction) -> bool:
        """True if operands changed. A removed or added operand does not count, because it is a separate change."""
        partner, back = self.matching.partner, self.matching.back
        if any(operand not in partner for operand in one.operands) or any(operand not in back for operand in two.operands):
            one_left = [partner[operand] for operand in one.operands if operand in partner]
            two_left = [operand for operand in two.operands if operand in back]
            if len(one.operands) == len(two.operands):
                pairs = zip(one.operands, two.operands, strict=True)
                return any(a in partner and b in back and partner[a] is not b for a, b in pairs) and one_left != two_left
            return False
        before = [partner[operand] for operand in one.operands]
        if before == list(two.operands):
            return False
        # The matching of parameters takes the order of a fusion's operands into its body.
        in_any_order = one.opcode in COMMUTATIVE or (one.opcode == "fusion" and len(before) == len(set(before)))
        return not in_any_order or sorted(i.name for i in before) != sorted(i.name for i in two.operands)


def _header_parts(module: HloModule) -> dict[str, str]:
    """Return the attributes of the header by name, without what follows from the module: entry layouts and fingerprint."""
    line = _FINGERPRINT.sub("", header_to_string(module, DEFAULT).strip())
    parts: list[str] = []
    depth, start = 0, 0
    for place, char in enumerate(line + ","):
        depth += (char in "{([") - (char in "})]" and line[place - 1] != "-")
        if char == "," and depth <= 0:
            parts.append(line[start:place].strip())
            start = place + 1
    named = [part.partition("=") for part in parts[1:]]
    return {name: value for name, _, value in named if name != "entry_computation_layout" and value != "{}"}


def _with_bodies(instructions: Sequence[HloInstruction]) -> Iterator[HloInstruction]:
    """Yield instructions, and those in the bodies of fusions and calls among them."""
    for instruction in instructions:
        yield instruction
        if instruction.opcode in ("fusion", "call"):
            for computation in instruction.called_computations:
                yield from _with_bodies(computation.instructions)


def _schedule(module: HloModule, computation: HloComputation) -> list[HloInstruction]:
    """Return the instructions that do something, in the order of the schedule; none without a schedule."""
    order = module.schedule.get(computation, []) if module.schedule is not None else []
    return [instruction for instruction in order if instruction.opcode not in NO_CODE]


def _previous(order: Sequence[HloInstruction], place: int) -> str:
    return order[place - 1].name if place else "the start"


def _place(instruction: HloInstruction) -> str:
    return instruction.parent.name if instruction.parent is not None else ""


def _names(instructions: Sequence[HloInstruction]) -> str:
    return ", ".join(instruction.name for instruction in instructions)


def _line(instruction: HloInstruction) -> str:
    return instruction_to_string(instruction, _LINE)
