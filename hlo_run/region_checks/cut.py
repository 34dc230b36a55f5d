"""Finds the rewritten part of a computation, and cuts it out: the smallest regions between unchanged values.

    before: n = negate(p)  a = add(n, p)       t = tanh(a)
    after:  n = negate(p)  s = subtract(p, n)  t = tanh(s)      ⇒  the region add(n, p) => subtract(p, n), with inputs n and p

An instruction that the row left as it is, but gave another operand, relies on both operands being equal: that is a claim.
So does the root. The region of a claim reaches up to values that are equal on both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_values
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COMMUTATIVE, NO_CODE
from hlo_run.region_checks.effects import OF_DEVICES, called_instructions, reason_against_all
from hlo_run.region_checks.numbering import Numbering, Numbers, shape_key
from hlo_run.walks import walk

# They hold values and compute none: what reads their elements makes the claims.
_HOLDERS: frozenset[Opcode] = frozenset(("tuple", "get-tuple-element"))
# A one-sided input is taken into the region up to so many times.
_MOST_ROUNDS = 8
# An input is near another one if it is computed from it in so few steps.
_NEAR = 3
# A value that a row changed on purpose is used in another way after so many steps.
_STEPS_TO_CHANGE = 2


class Claim(Struct, frozen=True):
    """A value before a row and the value that took its place."""

    old: HloInstruction
    new: HloInstruction


class Side(Struct, frozen=True):
    """One side of a region: its results, its instructions, and its inputs: by number, all that are this value.

    `work` are the instructions that compute something from an input.
    """

    outputs: tuple[HloInstruction, ...]
    inside: tuple[HloInstruction, ...]
    work: tuple[HloInstruction, ...]
    inputs: dict[int, list[HloInstruction]]


class Region(Struct, frozen=True):
    """Some values before and after a row: the instructions that computed them, and the instructions that compute them now."""

    claims: tuple[Claim, ...]
    old: Side
    new: Side

    def claims_at(self, outputs: Iterable[int]) -> list[Claim]:
        """Return the claims on leaves of the results, by their numbers."""
        owners = [claim for claim in self.claims for _, leaf in claim.old.shape.leaves() if leaf.is_array]
        return list(dict.fromkeys(owners[number] for number in outputs))

    @property
    def is_balanced(self) -> bool:
        """True if both sides have the same inputs."""
        return self.old.inputs.keys() == self.new.inputs.keys()

    @property
    def inputs(self) -> list[int]:
        """The numbers of the inputs of both sides."""
        return list(dict.fromkeys((*self.old.inputs, *self.new.inputs)))

    def modules(self, name: str) -> tuple[HloModule, HloModule]:
        """Return the two sides as modules with the same parameters, for as many devices as the whole module if need be."""
        one, two = self._sides()
        modules = isolate_values([one], self._given(), name), isolate_values([two], self._given(), name)
        whole = self.claims[0].new.parent
        if whole is not None and whole.module is not None and self.needs_devices:
            counts = {key: value for key, value in whole.module.attrs.items() if key in ("replica_count", "num_partitions")}
            for module in modules:
                module.attrs.update(counts)
        return modules

    @property
    def needs_devices(self) -> bool:
        """True if a side has collectives or reads the number of its device."""
        inside = walk((*self.old.inside, *self.new.inside), called_instructions)
        return any(instruction.opcode in OF_DEVICES for instruction in inside)

    def both(self, name: str) -> HloModule:
        """Return one module that computes both sides from the same parameters."""
        return isolate_values(self._sides(), self._given(), name)

    def _given(self) -> list[HloInstruction]:
        return [(self.old.inputs.get(number) or self.new.inputs[number])[0] for number in self.inputs]

    def _sides(self) -> list[tuple[tuple[HloInstruction, ...], dict[HloInstruction, int]]]:
        places = {number: place for place, number in enumerate(self.inputs)}
        return [
            (side.outputs, {i: places[number] for number, same in side.inputs.items() for i in same})
            for side in (self.old, self.new)
        ]


class Cutter:
    """Cuts regions out of a computation before and after a row.

    `partner` maps instructions after the row to those before it. `changed` are kept ones that count as changed all the same.
    """

    def __init__(
        self,
        before: Numbering,
        after: Numbering,
        old: HloComputation,
        new: HloComputation,
        partner: Mapping[HloInstruction, HloInstruction],
        changed: Collection[HloInstruction] = (),
    ) -> None:
        self._changed = changed
        self._before, self._after, self.old, self.new = before, after, old, new
        self._partner = partner
        self._numbers: tuple[Numbers, Numbers] = (before.values(old), after.values(new))
        self._live = (needed(old), needed(new))
        self._constant: dict[HloInstruction, bool] = {}
        # The numbers of constants; a tuple or a loop may hold one.
        sides = zip(self._numbers, (old, new), strict=True)
        self._constants = {n[i] for n, side in sides for i in side.post_order() if self._is_constant(i)}
        # The numbers of values that are there before and after the row, and of those that count as such by the claims.
        self._there = tuple({side[i] for i in live} for side, live in zip(self._numbers, self._live, strict=True))
        self._kept = self._there[0] & self._there[1]
        self._own = self._numbers[1]
        # The claims, and the kept instructions that make each.
        self._makers: dict[Claim, list[HloInstruction]] = {}
        # The numbers of new values by the claims: each is judged with the others as inputs.
        self._assumed: Numbers = {}
        if self.fits:
            self._find_claims()
        self.claims = list(self._makers)
        # Rewrites of the same row may rely on a value that is constant on both sides, so it is inside.
        constant = {c.new for c in self.claims if {self._numbers[0][c.old], self._own[c.new]} <= self._constants}
        self._claimed = {number for value, number in self._assumed.items() if value not in constant}
        if self._assumed:
            self._numbers = self._numbers[0], after.numbers(new, self._parameters(), self._assumed)
        self._common = self._there[0] & {self._numbers[1][i] for i in self._live[1]}

    @property
    def fits(self) -> bool:
        """True if both computations take the same parameters and return the same shape."""
        one, two = self.old, self.new
        shapes = [[shape_key(p.shape) for p in side.parameters] for side in (one, two)]
        return shapes[0] == shapes[1] and shape_key(one.root.shape) == shape_key(two.root.shape)

    # ---- claims

    def _parameters(self) -> list[int]:
        return [self._before.table.parameter(number, p.shape) for number, p in enumerate(self.new.parameters)]

    def _find_claims(self) -> None:
        """Find what kept instructions and the root claim, operands first. The numbers of users follow from the claims."""
        old_live, new_live = self._live
        parameters = self._parameters()
        numbers: Numbers = {}
        for two in self.new.post_order():
            one = self._partner.get(two)
            is_known = one is not None and one in old_live and one.parent is self.old and two in new_live
            if one is not None and is_known and two.opcode not in _HOLDERS and two not in self._changed:
                for claim in self._kept_operands(one, two, numbers):
                    self._add(claim, numbers).append(two)
            if two.opcode == "parameter":
                numbers[two] = parameters[two.parameter_number]
            else:
                numbers[two] = self._after.value(two, [self._present(operand, numbers) for operand in two.operands])
        for claim in self._leaves(self.old.root, self.new.root, numbers):
            self._add(claim, numbers)

    def _add(self, claim: Claim, numbers: Numbers) -> list[HloInstruction]:
        """Add a claim, let the new value have the number of the old one, and return the makers of the claim."""
        if claim not in self._makers and self._own[claim.new] not in self._kept:
            number = self._assumed.setdefault(claim.new, self._numbers[0][claim.old])
            numbers[claim.new] = number
        return self._makers.setdefault(claim, [])

    def _present(self, instruction: HloInstruction, numbers: Numbers) -> int:
        """Return the number of a new value; what holds other values has the number that follows from theirs now."""
        if instruction.opcode in _HOLDERS and instruction not in self._assumed:
            parts = [self._present(operand, numbers) for operand in instruction.operands]
            return self._after.value(instruction, parts)
        return numbers[instruction]

    def misled(self, claims: Iterable[Claim]) -> set[HloInstruction]:
        """Return the kept instructions that may make wrong claims, because the row changed them or their use on purpose.

        A pass may move a negation from an operand to the users, and keep the instructions between. Or it gives an instruction
        another operand which the module has already.
        """
        found: set[HloInstruction] = set()
        for claim in claims:
            makers = self._makers[claim]
            known = self._partner.get(claim.new)
            is_given = self._own[claim.new] in self._kept or (known in self._live[0] and known is not claim.old)
            if makers and (is_given or all(self._leads_to_change(maker) for maker in makers)):
                found.update(makers)
        return found

    def _leads_to_change(self, start: HloInstruction) -> bool:
        """True if the value, or what kept instructions compute from it in few steps, has other users than before the row."""
        level = [start]
        for _ in range(_STEPS_TO_CHANGE):
            for two in level:
                one = self._partner.get(two)
                if one is None or one.parent is not self.old or self._uses(0, one) != self._uses(1, two):
                    return True
            level = list(dict.fromkeys(user for two in level for user in two.users if user in self._live[1]))
        return False

    def _uses(self, side: int, instruction: HloInstruction) -> set[tuple[HloInstruction, int]]:
        """Return (user before the row, operand number) of the uses that count; a user that is new is itself."""
        users = [user for user in instruction.users if user in self._live[side]]
        mapped = users if side == 0 else [self._partner.get(user, user) for user in users]
        pairs = zip(users, mapped, strict=True)
        return {(known, n) for user, known in pairs for n, operand in enumerate(user.operands) if operand is instruction}

    def _kept_operands(self, one: HloInstruction, two: HloInstruction, numbers: Numbers) -> list[Claim]:
        """Return what an instruction claims that is as it was, but for operands of which one side is new; else nothing."""
        if one.opcode != two.opcode or len(one.operands) != len(two.operands):
            return []
        if self._before.local(one) != self._after.local(two):
            return []
        claims = list(self._operands(one, two, numbers))
        for claim in claims:
            if shape_key(claim.old.shape) != shape_key(claim.new.shape):
                return []
            if self._numbers[0][claim.old] in self._kept and self._own[claim.new] in self._kept:
                return []  # it was given another of the values there are
        return claims

    def _operands(self, one: HloInstruction, two: HloInstruction, numbers: Numbers) -> Iterator[Claim]:
        """Yield the pairs of operands of a kept instruction that are not known to be equal."""
        ones, twos = list(one.operands), list(two.operands)
        if one.opcode in COMMUTATIVE:
            for operand in list(ones):
                number = self._numbers[0][operand]
                other = next((o for o in twos if self._present(o, numbers) == number), None)
                if other is not None:
                    ones.remove(operand)
                    twos.remove(other)
        for operand, other in zip(ones, twos, strict=True):
            yield from self._leaves(operand, other, numbers)

    def _leaves(self, one: HloInstruction, two: HloInstruction, numbers: Numbers) -> Iterator[Claim]:
        """Yield the claim that two values are equal, or one claim per element of two tuples."""
        if self._numbers[0][one] == self._present(two, numbers):
            return
        if one.opcode == two.opcode == "tuple" and len(one.operands) == len(two.operands):
            for part, other in zip(one.operands, two.operands, strict=True):
                yield from self._leaves(part, other, numbers)
        else:
            yield Claim(one, two)

    # ---- regions

    def regions(self) -> list[Region]:
        """Return the smallest regions of the claims; claims that share instructions are in one region."""
        groups = self._grouped()
        return [self._balanced(claims) for claims in groups]

    def _grouped(self) -> list[list[Claim]]:
        owner: dict[HloInstruction, int] = {}
        parent = list(range(len(self.claims)))

        def find(number: int) -> int:
            while parent[number] != number:
                number = parent[number]
            return number

        for number, claim in enumerate(self.claims):
            region = self.region([claim], ())
            for instruction in (*region.old.inside, *region.new.inside):
                if self._is_constant(instruction):
                    continue
                other = owner.setdefault(instruction, number)
                if find(other) != find(number):
                    parent[find(number)] = find(other)
        groups: dict[int, list[Claim]] = {}
        for number, claim in enumerate(self.claims):
            groups.setdefault(find(number), []).append(claim)
        return list(groups.values())

    def region(self, claims: Sequence[Claim], opened: Collection[int]) -> Region:
        """Return the region of claims; values with the numbers `opened` are inside, with their inputs."""
        sides = [self._side(number, tuple(c.old if number == 0 else c.new for c in claims), opened) for number in (0, 1)]
        return Region(tuple(claims), sides[0], sides[1])

    def _side(self, side: int, outputs: tuple[HloInstruction, ...], opened: Collection[int]) -> Side:
        numbers, own = self._numbers[side], (self._numbers[0], self._own)[side]
        # A result may hold itself in a tuple, under another name.
        roots = {numbers[output] for output in outputs}
        inputs: dict[int, list[HloInstruction]] = {}
        inside: dict[HloInstruction, None] = {}
        for instruction in walk(outputs, lambda i: i.operands if i in inside else ()):
            number = numbers[instruction]
            is_equal = own[instruction] in self._kept if number in roots else number in self._common
            is_cut = is_equal and number not in opened
            # Elements are inputs, not tuples: others of their elements may be large, and are not read.
            is_cut = is_cut and not instruction.shape.is_tuple
            is_cut = is_cut and (number in self._claimed - roots or number not in self._constants)
            if is_cut or instruction.opcode == "parameter":
                if instruction not in inputs.setdefault(number, []):
                    inputs[number].append(instruction)
                continue
            inside[instruction] = None
        order = [i for i in (self.old, self.new)[side].post_order() if i in inside]
        work = tuple(i for i in order if i.opcode not in NO_CODE and not self._is_constant(i))
        return Side(outputs, tuple(order), work, inputs)

    def _balanced(self, claims: Sequence[Claim]) -> Region:
        """Return the region, in which inputs that only one side has are opened, if both sides then have the same."""
        first = region = self.region(claims, ())
        opened: set[int] = set()
        for _ in range(_MOST_ROUNDS):
            alone = region.old.inputs.keys() ^ region.new.inputs.keys()
            if not alone:
                return region
            if not (grown := self._to_balance(region, alone)):
                break
            opened |= grown
            region = self.region(claims, opened)
        return first

    def grown(self, region: Region, opened: set[int]) -> Region | None:
        """Return the region grown by the operands of its inputs; None at the parameters. Adds to `opened`.

        Inputs that depend on one which only one side has come first, then the latter.
        """
        alone = region.old.inputs.keys() ^ region.new.inputs.keys()
        dependent = self._dependent(alone) if alone else set[int]()
        more = dependent & set(region.inputs) or self._openable(region, alone) or self._openable(region, region.inputs)
        if not more:
            return None
        opened |= more | dependent
        grown = self.region(region.claims, opened)
        for _ in range(_MOST_ROUNDS):
            # An input that is computed from another one in few steps is not independent of it: x + transpose(x) is symmetric.
            near = self._openable(grown, self._near(grown, grown.inputs))
            if not near:
                break
            opened |= near
            grown = self.region(region.claims, opened)
        return grown

    def _dependent(self, wanted: Collection[int]) -> set[int]:
        """Return the numbers of all values that are computed from the wanted ones; results of effects count as independent."""
        found: set[int] = set()
        for computation, numbers in zip((self.old, self.new), self._numbers, strict=True):
            for instruction in computation.post_order():
                operands = (numbers[operand] for operand in instruction.operands)
                if any(number in wanted or number in found for number in operands) and not reason_against_all(instruction):
                    found.add(numbers[instruction])
        return found - set(wanted)

    def _to_balance(self, region: Region, alone: Collection[int]) -> set[int]:
        """Return the inputs to open so that both sides may have the same: those that depend on one of one side, or the latter."""
        near = self._near(region, alone)
        return self._openable(region, near - set(alone)) or self._openable(region, alone)

    def _near(self, region: Region, wanted: Collection[int]) -> set[int]:
        """Return the inputs that are computed from one of the wanted ones in few steps."""
        sides = zip((region.old, region.new), self._numbers, strict=True)
        return {n for side, numbers in sides for n, same in side.inputs.items() if _depends(same, wanted, numbers)}

    def _openable(self, region: Region, numbers: Collection[int]) -> set[int]:
        sides = (region.old.inputs, region.new.inputs)
        return {n for n in numbers if any(_can_open(i) for side in sides for i in side.get(n, ()))}

    def _is_constant(self, instruction: HloInstruction) -> bool:
        """True for a value that is computed from constants alone, without much work."""
        known = self._constant.get(instruction)
        if known is None:
            is_plain = instruction.opcode == "fusion" or not instruction.called_computations
            known = instruction.opcode not in ("parameter", "tuple") and is_plain
            known = known and not has_side_effect(instruction) and instruction.shape.is_array
            if known and instruction.operands:
                known = all(map(self._is_constant, instruction.operands))
            elif known:
                known = instruction.opcode in ("constant", "iota", "fusion")
            self._constant[instruction] = known
        return known


def _can_open(instruction: HloInstruction) -> bool:
    """True if a region may compute the instruction instead of taking it as an input."""
    return instruction.opcode != "parameter" and not reason_against_all(instruction)


def _depends(same: Collection[HloInstruction], wanted: Collection[int], numbers: Numbers) -> bool:
    """True if a value is computed from one of the wanted ones in few steps. `same` are the instructions that return it."""
    level = set(same)
    for _ in range(_NEAR if wanted else 0):
        level = {operand for each in level for operand in each.operands}
        if any(numbers[each] in wanted for each in level):
            return True
    return False


def needed(computation: HloComputation) -> set[HloInstruction]:
    """Return the instructions that the root or an effect needs."""
    starts = [computation.root, *(i for i in computation.instructions if has_side_effect(i))]
    return set(walk(starts, lambda i: i.operands))
