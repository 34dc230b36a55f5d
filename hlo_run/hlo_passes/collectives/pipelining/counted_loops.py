"""Loops that a known number of iterations runs, and the values that an index takes in them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from hlo_run.analysis.loop_counter import LoopCounter, find_counter
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule

_DIRECTIONS = ("LT", "LE", "GT", "GE")


class CountedLoop(Struct, frozen=True):
    """A loop whose body runs `count` times, at least twice. Its state and its body's root are tuples."""

    loop: HloInstruction
    counter: LoopCounter
    count: int

    @property
    def body(self) -> HloComputation:
        """The computation of one iteration."""
        return self.loop.while_body

    @property
    def parameter(self) -> HloInstruction:
        """The state at the beginning of an iteration."""
        return self.body.parameters[0]

    @property
    def unchanged(self) -> set[int]:
        """The elements of the state that the body returns as they are."""
        return {n for n, new in enumerate(self.body.root.operands) if is_element(new) and new.tuple_index == n}

    @property
    def last(self) -> int:
        """The counter's value in the last iteration."""
        return self.counter.init + (self.count - 1) * self.counter.step

    def is_counter(self, value: HloInstruction) -> bool:
        """True if the value is the counter, as an iteration begins with it."""
        return is_element(value) and value.tuple_index == self.counter.index


def is_element(value: HloInstruction) -> bool:
    """True for an element of a parameter."""
    return value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter"


def counted_loops(module: HloModule, chosen: Callable[[HloInstruction], bool]) -> list[HloInstruction]:
    """Return the loops whose body has a chosen instruction, inner loops first."""
    done: dict[HloComputation, None] = {}
    found: list[HloInstruction] = []

    def visit(computation: HloComputation) -> None:
        done[computation] = None
        order = computation.post_order()
        for called in (c for i in order for c in i.called_computations):
            if called not in done:
                visit(called)
        found.extend(i for i in order if i.opcode == "while" and any(map(chosen, i.while_body.instructions)))

    visit(module.entry)
    return found


def counted(loop: HloInstruction) -> CountedLoop | None:
    """Return the loop with its counter; None unless all readers of its state, inside and behind it, name one element."""
    counter = find_counter(loop)
    if counter is None or counter.direction not in _DIRECTIONS or (counter.trip_count or 0) < 2:
        return None
    readers = (*loop.while_body.parameters[0].users, *loop.users)
    if any(user.opcode != "get-tuple-element" for user in readers):
        return None
    return CountedLoop(loop, counter, counter.trip_count or 0)


class Range(Struct, frozen=True):
    """The first and the last value of an integer of `bits` bits, which changes by equal steps. A pred is 0 or 1."""

    low: int
    high: int
    bits: int = 1
    is_signed: bool = False

    def moved(self, low: int, high: int) -> Range | None:
        """Return another range of this type; None if it wraps around."""
        low, high = self._wrapped(low), self._wrapped(high)
        return None if high < low else Range(low, high, self.bits, self.is_signed)

    def _wrapped(self, value: int) -> int:
        lowest = -(1 << (self.bits - 1)) if self.is_signed else 0
        return (value - lowest) % (1 << self.bits) + lowest


def index_range(value: HloInstruction, loop: CountedLoop) -> Range | None:
    """Return the range of a scalar integer of the body that depends on the counter, if that is element 0, and on constants."""
    if not value.shape.is_array or value.shape.dims:
        return None
    if loop.is_counter(value):
        counter = loop.counter
        return Range(counter.init, loop.last, counter.bits, counter.is_signed) if counter.index == 0 else None
    if is_element(value) and value.tuple_index in loop.unchanged:
        value = loop.loop.operands[0].operands[value.tuple_index]
    if value.opcode == "constant":
        return _constant(value)
    if value.opcode == "get-tuple-element" and value.operands[0].opcode == "tuple":
        return index_range(value.operands[0].operands[value.tuple_index], loop)
    if value.opcode not in ("add", "subtract", "multiply", "negate", "compare", "select"):
        return None
    if value.opcode == "select":
        chosen = index_range(value.operands[0], loop)
        one_way = chosen is not None and chosen.low == chosen.high
        return index_range(value.operands[1 if chosen.low else 2], loop) if chosen is not None and one_way else None
    ranges = [found for operand in value.operands if (found := index_range(operand, loop)) is not None]
    if len(ranges) < len(value.operands):
        return None
    return _negated(ranges[0]) if value.opcode == "negate" else _combined(value, *ranges)


def _constant(value: HloInstruction) -> Range | None:
    dtype, number = value.shape.dtype, value.constant_array
    if dtype.name == "pred":
        return Range(int(number), int(number))
    if dtype.kind not in ("signed", "unsigned"):
        return None
    return Range(int(number), int(number), dtype.bits, dtype.is_signed)


def _negated(one: Range) -> Range | None:
    return one.moved(-one.high, -one.low)


def _combined(value: HloInstruction, one: Range, two: Range) -> Range | None:
    match value.opcode:
        case "add":
            return one.moved(one.low + two.low, one.high + two.high)
        case "subtract":
            return one.moved(one.low - two.high, one.high - two.low)
        case "multiply":
            if two.low != two.high:
                one, two = two, one
            return one.moved(one.low * two.low, one.high * two.low) if two.low == two.high else None
        case _:
            if value.comparison_direction != "LT":
                return None
            is_less, is_not = one.high < two.low, one.low >= two.high
            return Range(int(is_less), int(is_less)) if is_less or is_not else None
