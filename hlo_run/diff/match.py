"""Matches the instructions of two modules by their graphs; names count only where the graphs leave a choice.

First instructions are matched whose whole history is equal (a number for everything that they are computed from), users before
operands. Then the matching spreads from matched instructions to their operands and users: first to instructions that are equal
but for their operands, then to those of equal opcode and shape, then of equal opcode, then to a changed opcode in the same place.
Each step looks at every edge once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from msgspec import Struct, field

from hlo_run.diff.keys import Keys
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COMMUTATIVE

# Callers whose operands are the parameters of the body, one by one.
_PASSES_OPERANDS: frozenset[Opcode] = frozenset(("fusion", "call", "async-start"))


class Matching(Struct):
    """The matched instructions and computations of two modules: `partner` from the first to the second, `back` the other way."""

    keys: Keys
    partner: dict[HloInstruction, HloInstruction] = field(default_factory=dict[HloInstruction, HloInstruction])
    back: dict[HloInstruction, HloInstruction] = field(default_factory=dict[HloInstruction, HloInstruction])
    computations: list[tuple[HloComputation, HloComputation]] = field(default_factory=list[tuple[HloComputation, HloComputation]])


def match_modules(one: HloModule, two: HloModule) -> Matching:
    """Match the entries, and from there the bodies of matched instructions."""
    keys = Keys()
    keys.read(one)
    keys.read(two)
    matching = Matching(keys)
    waiting = [(one.entry, two.entry, _entry_parameters(one.entry, two.entry))]
    done_one, done_two = {one.entry}, {two.entry}
    while waiting:
        first, second, parameters = waiting.pop()
        matching.computations.append((first, second))
        pairs = _Pairs(matching, first, second, parameters).match()
        bodies: list[tuple[HloComputation, HloComputation, list[tuple[HloInstruction, HloInstruction]]]] = []
        for caller, other in pairs:
            for name in caller.called:
                for body, other_body in zip(caller.called[name], other.called.get(name, ()), strict=False):
                    if body not in done_one and other_body not in done_two:
                        done_one.add(body)
                        done_two.add(other_body)
                        bodies.append((body, other_body, _body_parameters(matching, caller, other, body, other_body)))
        waiting += reversed(bodies)
    return matching


def _entry_parameters(one: HloComputation, two: HloComputation) -> list[tuple[HloInstruction, HloInstruction]]:
    """Match parameters by number; if the counts differ, by name, then by shape in order."""
    if len(one.parameters) == len(two.parameters):
        return list(zip(one.parameters, two.parameters, strict=True))
    pairs = _in_order(one.parameters, two.parameters, lambda p: (p.name, p.shape))
    taken = {p for pair in pairs for p in pair}
    rest_one, rest_two = ([p for p in side.parameters if p not in taken] for side in (one, two))
    return pairs + _in_order(rest_one, rest_two, lambda p: p.shape)


def _body_parameters(
    matching: Matching, caller: HloInstruction, other: HloInstruction, body: HloComputation, other_body: HloComputation
) -> list[tuple[HloInstruction, HloInstruction]]:
    """Match the parameters of bodies: by the callers' operands if those are passed on, else by number."""
    if caller.opcode not in _PASSES_OPERANDS or len(body.parameters) != len(caller.operands):
        return list(zip(body.parameters, other_body.parameters, strict=False))
    places: dict[HloInstruction, list[HloInstruction]] = defaultdict(list)
    for operand, parameter in zip(other.operands, other_body.parameters, strict=False):
        places[operand].append(parameter)
    pairs: list[tuple[HloInstruction, HloInstruction]] = []
    for operand, parameter in zip(caller.operands, body.parameters, strict=True):
        found = places.get(matching.partner[operand]) if operand in matching.partner else None
        if found:
            pairs.append((parameter, found.pop(0)))
    return pairs


def _in_order(
    ones: Iterable[HloInstruction], twos: Iterable[HloInstruction], key: Callable[[HloInstruction], Hashable]
) -> list[tuple[HloInstruction, HloInstruction]]:
    """Pair instructions with equal keys, in the order of both sides."""
    found: dict[Hashable, list[HloInstruction]] = defaultdict(list)
    for two in reversed(list(twos)):
        found[key(two)].append(two)
    return [(one, others.pop()) for one in ones if (others := found.get(key(one)))]


class _Pairs:
    """The matching of two computations. `parameters` are matched in advance."""

    def __init__(
        self,
        matching: Matching,
        one: HloComputation,
        two: HloComputation,
        parameters: Sequence[tuple[HloInstruction, HloInstruction]],
    ) -> None:
        self._keys, self._partner, self._back = matching.keys, matching.partner, matching.back
        self._one, self._two = one, two
        self._pairs: list[tuple[HloInstruction, HloInstruction]] = []
        # Of matched instructions on both sides: the number of their pair.
        self._number: dict[HloInstruction, int] = {}
        for first, second in parameters:
            self._link(first, second)

    def match(self) -> list[tuple[HloInstruction, HloInstruction]]:
        """Match everything that can be matched, and return the pairs."""
        self._match_equal_histories()
        for alike in (self._same_local, self._same_shape, self._same_opcode):
            self._spread(alike)
            if alike != self._same_opcode:
                self._match_near(lambda i, alike=alike: (i.name, *alike(i)))
                self._spread(alike)
            if alike == self._same_local:
                self._match_rest()
                self._spread(alike)
        self._match_changed_opcodes()
        self._spread(self._same_opcode)
        self._match_near(self._same_local)
        return self._pairs

    def _link(self, one: HloInstruction, two: HloInstruction) -> None:
        self._partner[one], self._back[two] = two, one
        self._number[one] = self._number[two] = len(self._pairs)
        self._pairs.append((one, two))

    def _is_free(self, one: HloInstruction, two: HloInstruction) -> bool:
        return one not in self._number and two not in self._number

    def _free(self) -> tuple[list[HloInstruction], list[HloInstruction]]:
        ones = [i for i in self._one.instructions if i not in self._number]
        return ones, [i for i in self._two.instructions if i not in self._number]

    def _match_equal_histories(self) -> None:
        """Match instructions with equal histories: roots, then those that are unique, each with all that it is computed from."""
        known: list[dict[HloInstruction, int]] = [{}, {}]
        for side, computation in enumerate((self._one, self._two)):
            for parameter in computation.parameters:
                pair = self._number.get(parameter)
                key = ("parameter", pair) if pair is not None else ("free parameter", side, parameter.parameter_number)
                known[side][parameter] = self._keys.number(key)
        ones = self._keys.structure(self._one, known[0])
        twos = self._keys.structure(self._two, known[1])
        places: dict[int, list[HloInstruction]] = defaultdict(list)
        for two, number in twos.items():
            places[number].append(two)
        counts: dict[int, int] = defaultdict(int)
        for number in ones.values():
            counts[number] += 1
        starts = [(self._one.root, self._two.root)] if ones[self._one.root] == twos[self._two.root] else []
        for one in reversed(self._one.post_order()):
            others = places.get(ones[one])
            if others is not None and len(others) == counts[ones[one]] == 1:
                starts.append((one, others[0]))
        for start in starts:
            stack = [start]
            while stack:
                one, two = stack.pop()
                if not self._is_free(one, two):
                    continue
                self._link(one, two)
                operands, others = list(one.operands), list(two.operands)
                if one.opcode in COMMUTATIVE:
                    operands.sort(key=ones.__getitem__)
                    others.sort(key=twos.__getitem__)
                stack += reversed(list(zip(operands, others, strict=True)))
        self._match_by(lambda i: (i.name, ones.get(i, twos.get(i))))

    def _match_by(self, key: Callable[[HloInstruction], Hashable]) -> None:
        """Match the remaining instructions that have equal keys, in order."""
        for one, two in _in_order(*self._free(), key):
            self._link(one, two)

    def _match_near(self, key: Callable[[HloInstruction], Hashable]) -> None:
        """Match the rest that has equal keys, if an operand or a user is matched too: numbers in names are often chance."""
        for one, two in _in_order(*self._free(), key):
            around = {self._number.get(i, -1) for i in (*one.operands, *one.users)} - {-1}
            if not one.operands or any(self._number.get(i, -1) in around for i in (*two.operands, *two.users)):
                self._link(one, two)

    def _match_rest(self) -> None:
        """Match the rest that is equal but for its operands, where both sides have as many: nothing tells them apart."""
        groups: dict[int, tuple[list[HloInstruction], list[HloInstruction]]] = defaultdict(lambda: ([], []))
        for side, free in enumerate(self._free()):
            for instruction in free:
                groups[self._keys.local(instruction)][side].append(instruction)
        for ones, twos in groups.values():
            if len(ones) == len(twos):
                for one, two in zip(ones, twos, strict=True):
                    self._link(one, two)

    def _same_local(self, instruction: HloInstruction) -> tuple[Hashable, ...]:
        return (self._keys.local(instruction),)

    def _same_shape(self, instruction: HloInstruction) -> tuple[Hashable, ...]:
        return instruction.opcode, self._keys.shape(instruction)

    def _same_opcode(self, instruction: HloInstruction) -> tuple[Hashable, ...]:
        return (instruction.opcode,)

    def _spread(self, alike: Callable[[HloInstruction], tuple[Hashable, ...]]) -> None:
        """Match operands and users of matched pairs for which `alike` gives equal keys, until no pair gives another one."""
        if self._is_free(self._one.root, self._two.root) and alike(self._one.root) == alike(self._two.root):
            self._link(self._one.root, self._two.root)
        place = 0
        while place < len(self._pairs):  # grows meanwhile
            one, two = self._pairs[place]
            place += 1
            self._spread_to_operands(one, two, alike)
            self._spread_to_users(one, two, alike)

    def _spread_to_operands(
        self, one: HloInstruction, two: HloInstruction, alike: Callable[[HloInstruction], tuple[Hashable, ...]]
    ) -> None:
        if one.opcode == "parameter" or (one.opcode not in COMMUTATIVE and len(one.operands) == len(two.operands)):
            for operand, other in zip(one.operands, two.operands, strict=False):
                if self._is_free(operand, other) and alike(operand) == alike(other):
                    self._link(operand, other)
            return
        operands = [i for i in dict.fromkeys(one.operands) if i not in self._number]
        others = [i for i in dict.fromkeys(two.operands) if i not in self._number]
        self._link_unique(operands, others, alike)

    def _spread_to_users(
        self, one: HloInstruction, two: HloInstruction, alike: Callable[[HloInstruction], tuple[Hashable, ...]]
    ) -> None:
        users = [i for i in one.users if i not in self._number]
        if not users:
            return
        others = [i for i in two.users if i not in self._number]

        def key(user: HloInstruction) -> tuple[Hashable, ...]:
            """Add what the user's operands are matched with."""
            known = [self._number.get(operand, -1) for operand in user.operands]
            if user.opcode in COMMUTATIVE:
                known.sort()
            return (*alike(user), *known)

        self._link_unique(users, others, key)

    def _link_unique(
        self,
        ones: Sequence[HloInstruction],
        twos: Sequence[HloInstruction],
        key: Callable[[HloInstruction], tuple[Hashable, ...]],
    ) -> None:
        """Match instructions whose key only one of each side has."""
        if not ones or not twos:
            return
        found: dict[Hashable, tuple[list[HloInstruction], list[HloInstruction]]] = defaultdict(lambda: ([], []))
        for side, group in enumerate((ones, twos)):
            for instruction in group:
                found[key(instruction)][side].append(instruction)
        for first, second in found.values():
            if len(first) == len(second) == 1:
                self._link(first[0], second[0])

    def _match_changed_opcodes(self) -> None:
        """Match the remaining instructions that have another opcode, but the same shape and the same operands."""

        def key(instruction: HloInstruction) -> Hashable:
            known = tuple(self._number.get(operand, -1) for operand in instruction.operands)
            if not known or -1 in known:
                return instruction  # unlike all others
            return (self._keys.shape(instruction), known)

        self._link_unique(*self._free(), lambda i: (key(i),))
