"""Finds the meaning of an argument's integers: the numbers that make sense for the ops that they reach.

    i < 0 ? i + 10 : i  →  gather from 10 rows      an index in [0, 10), now and then in [-10, 0)
    i == iota(10)                                   a class in [0, 10)
    iota(12) < i                                    a length in [1, 12]
    i == -100 ? .. : ..                             also -100 now and then
    power(0.9, i)                                   a count in [1, 100]

The values are followed through whatever moves them, and through sums, products and quotients with constants, whose effect on
a bound is undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.records import replace
from hlo_run.reference.arguments.constraints import is_in_condition
from hlo_run.reference.arguments.value_flow import Position, moved_by, moved_out
from hlo_run.reference.arguments.value_ranges import Interval, ValueRanges

# Places that one argument is followed to.
_MOST_PLACES = 2000
# A comparison with a larger constant guards against an overflow and says nothing about the numbers that make sense.
_LARGEST_BOUND = 1 << 24
# Steps that a program has counted, such as those of an optimiser: it computes powers with them.
_LARGEST_COUNT = 100
# Indices that are so far out of bounds.
_STRAYS = 2
# Constants compared with an argument that are drawn on purpose.
_MOST_BOUNDS = 4
# Ops whose result has the elements of their first operand.
_MOVERS = MOVES_ELEMENTS | opcode_set("""broadcast bitcast copy slice dynamic-slice gather reverse pad reduce-window
    all-gather all-to-all collective-permute dynamic-update-slice""")
# Every element of the result is one of an operand at the same place.
_KEEPERS: frozenset[Opcode] = frozenset(("convert", "bitcast-convert", "copy", "opt-barrier"))

# How a number was made of the argument: what was done, and the constant that it was done with.
Step: TypeAlias = tuple[str, int]
# A closed interval, or one without an end.
Handled: TypeAlias = tuple[int, int | None]


ALL_BITS = "of all bits"


class Meaning(Struct, frozen=True):
    """The integers that make sense: all in the closed interval `usual`, and a few in `rare` and of `special`.

    For those in `stray` the result is known, too: ops clamp indices that are out of bounds, or write nothing there. `what` is a
    word for them. `is_sorted` means ascending order; `is_distinct` means that no two are equal; `is_scattered` that they say
    where a scatter writes. `bounds` are usual numbers that a program compares with.
    """

    what: str
    usual: Interval
    rare: Interval | None = None
    stray: Interval | None = None
    special: tuple[int, ...] = ()
    is_sorted: bool = False
    is_distinct: bool = False
    is_scattered: bool = False
    bounds: tuple[int, ...] = ()

    @property
    def beyond(self) -> tuple[Interval, ...]:
        """The numbers of `stray` below and above all others."""
        if self.stray is None:
            return ()
        low, high = min(self.usual, self.rare or self.usual)[0], max(self.usual[1], (self.rare or self.usual)[1])
        ends = (self.stray[0], low - 1), (high + 1, self.stray[1])
        return tuple(end for end in ends if end[0] <= end[1])

    @property
    def edges(self) -> tuple[int, ...]:
        """The numbers at which a comparison or a limit that is off by one makes a difference."""
        is_open = self.what == ALL_BITS or self.is_distinct
        return self.bounds if is_open else tuple(dict.fromkeys((*self.usual, *self.bounds)))

    @property
    def is_index(self) -> bool:
        """True for numbers that an op reads or writes at."""
        return self.what in ("indices", "starts")

    def __str__(self) -> str:
        usual = "" if self.what == ALL_BITS else " in [{}, {}]".format(*self.usual)
        special = f", some {' or '.join(map(str, self.special))}" if self.special else ""
        rare = "" if self.rare is None else ", some in [{}, {}]".format(*self.rare)
        return f"{self.what}{usual}{rare}{special}"


class _Place(Struct, frozen=True):
    """A value that holds the argument's numbers after `steps`, the last one last.

    `part` is (dimension, first element, size) of the piece that they are of a concatenation, and `is_ordered` that an iota before
    them orders its rows, whatever they are. `handled`: the program has
    brought numbers from this interval, which may be open above, into another one.
    """

    position: Position
    steps: tuple[Step, ...] = ()
    part: tuple[int, int, int] | None = None
    is_ordered: bool = False
    handled: Handled | None = None

    def at(self, position: Position, *steps: Step) -> _Place:
        """Return a place with the same elements at the same indices."""
        return replace(self, position=position, steps=(*self.steps, *steps))

    def moved(self, position: Position) -> _Place:
        """Return a place with elements in another order."""
        return replace(self, position=position, part=None, is_ordered=False)


class _Evidence(Struct):
    """The evidence of the ops about an argument: intervals that must hold, with a word each, and constants compared with it."""

    intervals: list[tuple[str, Interval]] = field(default_factory=list[tuple[str, Interval]])
    handled: list[Handled] = field(default_factory=list[Handled])
    equal_to: list[int] = field(default_factory=list[int])
    bounds: list[int] = field(default_factory=list[int])
    is_sorted: bool = False
    is_distinct: bool = False
    is_scattered: bool = False
    # An op takes the numbers as they are, also those out of bounds.
    is_plain: bool = False
    # A number of its own is converted to a float.
    is_counted: bool = False
    # The program promises that the numbers are in bounds.
    is_promised: bool = False


def meaning_of(parameter: HloInstruction, path: tuple[int, ...], ranges: ValueRanges) -> Meaning | None:
    """Return the meaning of the integers at `path` of an entry parameter; None if any integer makes sense."""
    leaf = parameter.shape
    for number in path:
        leaf = leaf.tuple_shapes[number]
    evidence = _Evidence()
    for place in _places(parameter, path, ranges):
        for user in place.position[0].users:
            if not place.position[1]:
                _look(user, place, ranges, evidence)
    lowest = -(1 << (leaf.dtype.bits - 1)) if leaf.dtype.is_signed else 0
    return _judged(evidence, (lowest, lowest + (1 << leaf.dtype.bits) - 1))


def _judged(evidence: _Evidence, of_type: Interval) -> Meaning | None:
    usual, what = of_type, ""
    for word, interval in evidence.intervals:
        both = max(usual[0], interval[0]), min(usual[1], interval[1])
        if both[0] <= both[1]:
            usual, what = both, what or word
    if not what:
        return _between_bounds(evidence, of_type)
    is_free = not (evidence.is_plain or evidence.is_sorted or evidence.is_distinct)
    rare = _beyond(usual, evidence.handled, of_type) if is_free and evidence.handled else None
    special = [c for c in evidence.equal_to if not usual[0] <= c <= usual[1] and of_type[0] <= c <= of_type[1]]
    distinct = tuple(dict.fromkeys(special))
    stray = _strays(usual, evidence, of_type)
    order = evidence.is_sorted, evidence.is_distinct, evidence.is_scattered
    return Meaning(what, usual, rare, stray, distinct[:2], *order, _within(usual, evidence.bounds))


def _within(usual: Interval, bounds: Sequence[int]) -> tuple[int, ...]:
    """Return the first few of the bounds that are inside of an interval, each once."""
    return tuple(dict.fromkeys(bound for bound in bounds if usual[0] < bound < usual[1]))[:_MOST_BOUNDS]


def _strays(usual: Interval, evidence: _Evidence, of_type: Interval) -> Interval | None:
    """Return indices in bounds and beyond, also of those that the program itself brings into bounds."""
    words = {word for word, _ in evidence.intervals}
    is_in_order = evidence.is_distinct or (evidence.is_sorted and bool(evidence.handled))
    if not words & {"indices", "starts"} or words & {"sizes", "branches"} or is_in_order or evidence.is_promised:
        return None
    low = min([usual[0], *(low for low, _ in evidence.handled)])
    return max(of_type[0], low - _STRAYS), min(of_type[1], usual[1] + _STRAYS)


def _between_bounds(evidence: _Evidence, of_type: Interval) -> Meaning | None:
    """Return the numbers around the constants that an argument is compared with, so that comparisons come out both ways."""
    bounds = {*evidence.equal_to, *evidence.bounds}
    if evidence.is_counted and bounds <= {0}:
        return Meaning("counts", (1, min(_LARGEST_COUNT, of_type[1])))
    if not bounds or (bounds == {0} and not evidence.equal_to):
        return None
    if bounds <= {0, 1} and 1 in bounds and evidence.equal_to:
        return Meaning("flags", (0, 1))
    low, high = _around((min(bounds), max(bounds)))
    least = of_type[0] if min(bounds) < 0 or not evidence.is_counted else 1
    near = max(low, least), min(high, of_type[1])
    if bounds == {0}:
        return Meaning(ALL_BITS, of_type, rare=near)
    return Meaning("numbers", near, bounds=_within(near, sorted(bounds)))


def _beyond(usual: Interval, handled: Sequence[Handled], of_type: Interval) -> Interval | None:
    """Return numbers out of an interval that every use handles, if there are any; with those in it if they are at both ends."""
    low = max(of_type[0], *(low for low, _ in handled))
    high = min(of_type[1], *(usual[1] if high is None else high for _, high in handled))
    if low < usual[0]:
        return low, high if high > usual[1] else usual[0] - 1
    return (usual[1] + 1, high) if high > usual[1] else None


def _places(parameter: HloInstruction, path: tuple[int, ...], ranges: ValueRanges) -> Iterator[_Place]:
    """Yield the places that the argument's numbers reach, each once, the nearest first."""
    waiting = deque([_Place((parameter, path))])
    seen: set[Position] = set()
    while waiting and len(seen) < _MOST_PLACES:
        place = waiting.popleft()
        if place.position in seen:
            continue
        seen.add(place.position)
        yield place
        instruction, at = place.position
        for user in instruction.users:
            for number, operand in enumerate(user.operands):
                if operand is instruction:
                    waiting.extend(_next(user, number, place, ranges))
        waiting.extend(place.moved(position) for position in moved_out(instruction, at))


def _next(user: HloInstruction, number: int, place: _Place, ranges: ValueRanges) -> Iterator[_Place]:
    """Yield the places to which operand `number` of `user` brings the numbers of a place."""
    if user.opcode != "bitcast":  # its dimensions differ
        yield from (place.at(position) for position in moved_by(user, number, place.position[1]))
    if user.opcode == "fusion":
        yield place.at((user.fused_computation.parameters[number], place.position[1]))
    if place.position[1] or not user.shape.is_array or not user.shape.dtype.is_integer:
        return
    result = user, ()
    match user.opcode:
        case opcode if opcode in _KEEPERS:
            yield place.at(result)
        case "custom-call" if "AssumeGatherIndicesInBound" in user.custom_call_target:
            yield place.at(result)
        case "concatenate":
            dim: int = user.dimensions[0]
            first = sum(operand.shape.dims[dim] for operand in user.operands[:number])
            part = dim, first, user.operands[number].shape.dims[dim]
            yield replace(place, position=result, part=part, is_ordered=any(map(_counts_rows, user.operands[:number])))
        case "select" if number:
            handled = place.handled
            if number == 2 and not place.steps and _is_wrapped(user.operands[1], place.position[0], ranges):
                handled = handled or (-_size_added(user.operands[1], place.position[0], ranges), None)
            yield replace(place, position=result, handled=handled)
        case "clamp" if number == 1:
            bounds = _clamped(user, ranges)
            around = None if bounds is None else _undone(place.steps, _around(bounds))
            yield replace(place, position=result, handled=place.handled or around)
        case "maximum" | "minimum":
            if ranges.of(user.operands[1 - number]) is not None:
                yield place.at(result)
        case "reduce" if user.to_apply.root.opcode in ("maximum", "minimum") and not number:
            yield place.moved(result)
        case "sort":
            yield place.moved(result)
        case "scatter" if number != len(user.operands) // 2 and user.to_apply.root.opcode in ("parameter", "maximum", "minimum"):
            yield place.moved(result)
        case "dynamic-update-slice" if number < 2:
            yield place.moved(result)
        case "reshape" | "bitcast":
            yield replace(place, position=result, part=_reshaped(place.part, user))
        case "transpose":
            part = place.part
            yield replace(place, position=result, part=part and (user.dimensions.index(part[0]), *part[1:]))
        case opcode if opcode in _MOVERS and not number:
            yield place.moved(result)
        case "add" | "subtract" | "multiply" | "divide" | "negate":
            if not _is_wrapped(user, place.position[0], ranges):
                yield from _computed(user, number, place, ranges)
        case _:
            return


def _reshaped(part: tuple[int, int, int] | None, reshape: HloInstruction) -> tuple[int, int, int] | None:
    """Return the piece of a concatenation after a reshape that keeps its dimension as the last one, or None."""
    before, after = reshape.operands[0].shape, reshape.shape
    if part is None or part[0] != before.rank - 1 or not after.rank or before.dims[-1] != after.dims[-1]:
        return None
    return (after.rank - 1, *part[1:])


def _counts_rows(piece: HloInstruction) -> bool:
    """True if a piece of a concatenation is the number of each row: an iota, in another shape perhaps."""
    while piece.opcode in ("reshape", "bitcast", "copy", "convert", "broadcast"):
        if piece.shape.element_count != piece.operands[0].shape.element_count:
            return False
        piece = piece.operands[0]
    return piece.opcode == "iota" and max(piece.shape.dims) == piece.shape.element_count


def _computed(user: HloInstruction, number: int, place: _Place, ranges: ValueRanges) -> Iterator[_Place]:
    """Yield the result of arithmetic with a constant."""
    if user.opcode == "negate":
        yield place.at((user, ()), ("negate", 0))
        return
    other = ranges.of(user.operands[1 - number])
    if other is None or other[0] != other[1] or (user.opcode == "divide" and number) or user.operands[0] is user.operands[1]:
        return
    constant = other[0]
    if user.opcode == "subtract" and not number:
        step = "add", -constant
    elif user.opcode in ("multiply", "divide") and constant <= 0:
        return
    else:
        step = user.opcode, constant
    yield place.at((user, ()), step)


def _undone(steps: Sequence[Step], interval: Interval) -> Interval | None:
    """Return the numbers that the steps bring into an interval; None if there are none."""
    low, high = interval
    for what, constant in reversed(steps):
        match what:
            case "add":
                low, high = low - constant, high - constant
            case "subtract":
                low, high = constant - high, constant - low
            case "negate":
                low, high = -high, -low
            case "multiply":
                low, high = -(-low // constant), high // constant
            case _:
                low, high = low * constant if low > 0 else (low - 1) * constant + 1, high * constant + constant - 1
    return (low, high) if low <= high else None


def _is_wrapped(add: HloInstruction, value: HloInstruction, ranges: ValueRanges) -> bool:
    """True if a sum is the index of a program that counts negative ones from the end: `select(i < 0, i + n, i)`."""
    if add.opcode != "add" or value not in add.operands:
        return False
    size = ranges.of(add.operands[add.operands[0] is value])
    if size is None or size[0] != size[1] or size[0] <= 0:
        return False
    return bool(add.users) and all(
        user.opcode == "select"
        and user.operands[1] is add
        and user.operands[2] is value
        and _is_negative(user.operands[0], value, ranges)
        for user in add.users
    )


def _size_added(add: HloInstruction, value: HloInstruction, ranges: ValueRanges) -> int:
    """Return the constant of a sum that `_is_wrapped` has found."""
    size = ranges.of(add.operands[add.operands[0] is value])
    assert size is not None, "a constant was found before"
    return size[0]


def _clamped(clamp: HloInstruction, ranges: ValueRanges) -> Interval | None:
    """Return the constants that bound a clamp."""
    low, high = ranges.of(clamp.operands[0]), ranges.of(clamp.operands[2])
    return None if low is None or high is None or low[0] != low[1] or high[0] != high[1] else (low[0], high[0])


def _around(interval: Interval) -> Interval:
    """Return an interval with some numbers more at both ends."""
    low, high = interval
    more = max(2, (high - low) // 4)
    return low - more, high + more


def _is_negative(condition: HloInstruction, value: HloInstruction, ranges: ValueRanges) -> bool:
    """True if a condition is `value < 0`."""
    if condition.opcode != "compare" or condition.comparison_direction != "LT" or condition.operands[0] is not value:
        return False
    return ranges.of(condition.operands[1]) == (0, 0)


# ---- what an op says --------------------------------------------------------------------------------------------


def _look(user: HloInstruction, place: _Place, ranges: ValueRanges, evidence: _Evidence) -> None:
    """Add what a user of a place says about the argument."""
    value = place.position[0]
    for number, operand in enumerate(user.operands):
        if operand is not value:
            continue
        found = _demand(user, number, place, ranges)
        if found is not None and (interval := _undone(place.steps, found[1])) is not None:
            evidence.intervals.append((found[0], interval))
            if place.handled is None:
                evidence.is_plain = True
            else:
                evidence.handled.append(place.handled)
        match user.opcode:
            case "compare":
                _compared(user, number, place, ranges, evidence)
            case "add" if _is_wrapped(user, place.position[0], ranges) and not place.steps:
                evidence.intervals.append(("indices", (0, _size_added(user, value, ranges) - 1)))
            case "clamp" if number == 1 and (bounds := _clamped(user, ranges)) is not None:
                for bound in bounds:
                    _bound(bound, place, evidence.bounds)
            case "maximum" | "minimum":
                other = ranges.of(user.operands[1 - number])
                if other is not None and other[0] == other[1]:
                    _bound(other[0], place, evidence.bounds)
            case "scatter" if number == len(user.operands) // 2:
                evidence.is_scattered = True
                evidence.is_sorted = evidence.is_sorted or (user.indices_are_sorted and not place.is_ordered)
                evidence.is_distinct = evidence.is_distinct or (user.unique_indices and not place.is_ordered)
            case "convert" if user.shape.dtype.is_float and user.shape.rank == 0:
                evidence.is_counted = True
            case "gather" if number == 1:
                evidence.is_sorted = evidence.is_sorted or (user.indices_are_sorted and not place.is_ordered)
            case "custom-call" if "AssumeGatherIndicesInBound" in user.custom_call_target:
                evidence.is_promised = True
            case _:
                pass


def _demand(user: HloInstruction, number: int, place: _Place, ranges: ValueRanges) -> tuple[str, Interval] | None:
    """Return the interval in which an op wants its operand, and a word for it."""
    operands = user.operands
    match user.opcode:
        case "dynamic-slice" if number >= 1:
            return "starts", _starts(user, number - 1, user.shape.dims)
        case "dynamic-update-slice" if number >= 2:
            return "starts", _starts(user, number - 2, operands[1].shape.dims)
        case "gather" if number == 1:
            return "indices", _indices(user, user.start_index_map, user.gather_slice_sizes, place)
        case "scatter" if number == len(operands) // 2:
            return "indices", _indices(user, user.scatter_dims_to_operand_dims, Indexed.of(user).slice_sizes, place)
        case "set-dimension-size" if number == 1:
            return "sizes", (0, user.shape.dims[user.dimensions[0]])
        case "conditional" if number == 0:
            return "branches", (0, len(user.called_computations) - 1)
        case _:
            return None


def _starts(user: HloInstruction, dim: int, sizes: tuple[int, ...]) -> Interval:
    room = [size - window for size, window in zip(user.operands[0].shape.dims, sizes, strict=True)]
    starts_are_scalars = user.operands[-1].shape.rank == 0
    return 0, max(0, room[dim] if starts_are_scalars else min(room))


def _indices(user: HloInstruction, indexed: Sequence[int], sizes: Sequence[int], place: _Place) -> Interval:
    """Return the interval of the indices of a gather or scatter; for a piece of them, of its dimension."""
    operand, of_vector = user.operands[0].shape.dims, user.index_vector_dim
    if place.part is not None and place.part[0] == of_vector:
        _, first, size = place.part
        indexed = indexed[first : first + size]
    return 0, max(0, min((operand[dim] - sizes[dim] for dim in indexed), default=0))


def _compared(compare: HloInstruction, number: int, place: _Place, ranges: ValueRanges, evidence: _Evidence) -> None:
    """Add what a comparison says: with an iota a class or a length, with a constant a bound."""
    other = ranges.of(compare.operands[1 - number])
    if other is None or compare.operands[0] is compare.operands[1] or is_in_condition(compare):
        return
    direction = compare.comparison_direction
    if other[0] == other[1]:
        _bound(other[0], place, evidence.equal_to if direction in ("EQ", "NE") else evidence.bounds)
        return
    if direction in ("EQ", "NE"):
        what, interval = "classes", other
    else:
        # `iota < length` and `length > iota` are true for the elements of a sequence.
        ends_before = direction in (("GT", "LE") if number == 0 else ("LT", "GE"))
        what, interval = "lengths", (other[0] + 1, other[1] + 1) if ends_before else other
    if (undone := _undone(place.steps, interval)) is not None:
        evidence.intervals.append((what, undone))
        evidence.is_plain = True


def _bound(constant: int, place: _Place, bounds: list[int]) -> None:
    if abs(constant) <= _LARGEST_BOUND and (undone := _undone(place.steps, (constant, constant))) is not None:
        bounds.append(undone[0])
