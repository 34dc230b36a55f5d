"""Finds the trip count of a loop from a counter in its state that starts and ends at constants."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.walks import walk

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}
# The search for a counter looks through these if they move one element.
_MOVES: frozenset[Opcode] = frozenset(("copy", "bitcast", "reshape", "transpose", "broadcast"))
_INTEGERS = ("signed", "unsigned")
_MAX_STEPS = 256
# The search does not evaluate these, nor what a computation that they call computes.
_OPAQUE = COLLECTIVE | opcode_set("send send-done recv recv-done custom-call parameter fusion call")


class LoopCounter(Struct, frozen=True):
    """Element `index` of the state: `init`, `init + step`, .. The loop runs while `value direction limit`."""

    index: int
    init: int
    step: int
    direction: str
    limit: int
    bits: int
    is_signed: bool

    @property
    def trip_count(self) -> int | None:
        """The number of times that the body runs; None if the counter wraps around first."""
        match self.direction:
            case "LT" | "LE" if self.step > 0:
                last = self.limit if self.direction == "LT" else self.limit + 1
                count = max(-(-(last - self.init) // self.step), 0)
            case "GT" | "GE" if self.step < 0:
                last = self.limit if self.direction == "GT" else self.limit - 1
                count = max(-(-(self.init - last) // -self.step), 0)
            case "NE" if self.step and (self.limit - self.init) % self.step == 0 and (self.limit - self.init) // self.step >= 0:
                count = (self.limit - self.init) // self.step
            case _:
                return None
        lowest = -(1 << (self.bits - 1)) if self.is_signed else 0
        return count if lowest <= self.init + count * self.step < lowest + (1 << self.bits) else None


class _Place(Struct, frozen=True):
    """A value, and the fusion that contains it, if any."""

    value: HloInstruction
    fusion: _Place | None = None


class _Linear(Struct, frozen=True):
    """A scalar integer: element `index` of the state times `scale` plus `offset`, or `offset` alone if `index` is None."""

    index: int | None
    offset: int
    scale: int = 1


def find_counter(loop: HloInstruction) -> LoopCounter | None:
    """Return the counter of a loop; None if no element of the state is recognised as one.

    Looks through copies and into fusions, so it also finds the counter of a compiled loop. Returns None if the condition has a
    side effect, since such a condition must run. As in XLA, the condition compares the element itself.
    """
    tested = _tested(loop)
    return tested[0] if tested is not None and tested[1] == _Linear(tested[0].index, 0) else None


def find_trip_count(loop: HloInstruction) -> int | None:
    """Return how often the body runs; None if not known. The condition may compare `offset + counter * scale`."""
    tested = _tested(loop)
    return tested[0].trip_count if tested is not None else None


def _tested(loop: HloInstruction) -> tuple[LoopCounter, _Linear] | None:
    """Return what the condition compares, as a counter and as a function of the element that counts."""
    body, condition, state = loop.while_body, loop.while_condition, loop.operands[0]
    if body.root.opcode != "tuple" or state.opcode != "tuple" or any(map(has_side_effect, condition.instructions)):
        return None
    search = _Search()
    place = search.source(_Place(condition.root))
    test = place.value
    if test.opcode != "compare" or test.operands[0].shape.dims or test.operands[0].shape.dtype.kind not in _INTEGERS:
        return None
    value, limit = (search.linear(_Place(operand, place.fusion)) for operand in test.operands)
    direction = test.comparison_direction
    if value is not None and value.index is None:
        value, limit, direction = limit, value, _MIRRORED.get(direction, "")
    value, limit = (_constant_if_unchanged(loop, search, one) for one in (value, limit))
    if value is not None and value.index is None:
        value, limit, direction = limit, value, _MIRRORED.get(direction, "")
    if value is None or value.index is None or limit is None or limit.index is not None:
        return None
    init, step = (search.linear(_Place(whole.operands[value.index])) for whole in (state, body.root))
    if init is None or init.index is not None or step is None or step.index != value.index or step.scale != 1:
        return None
    dtype = test.operands[0].shape.dtype
    counter = LoopCounter(
        value.index,
        _wrapped(value.offset + value.scale * init.offset, dtype.bits, dtype.is_signed),
        value.scale * step.offset,
        direction,
        _wrapped(limit.offset, dtype.bits, dtype.is_signed),
        dtype.bits,
        dtype.is_signed,
    )
    return counter, value


def find_steering_element(loop: HloInstruction) -> int | None:
    """Return the number of the only element of the state that the condition depends on, if its next value depends on it alone.

    Both must be functions of scalars. Looks through copies, but not into fusions and calls.
    """
    body, condition = loop.while_body, loop.while_condition
    tested = _elements_read(condition, [condition.root])
    if loop.operands[0].opcode != "tuple" or body.root.opcode != "tuple" or tested is None or len(tested) != 1:
        return None
    (number,) = tested
    return number if _elements_read(body, [body.root.operands[number]]) == tested else None


def _elements_read(computation: HloComputation, values: Iterable[HloInstruction]) -> set[int] | None:
    """Return the elements of the state that scalars are functions of; None if they depend on something else, or on nothing."""
    (state,) = computation.parameters
    found: set[int] = set()
    for value in walk(values, _sources):
        if not value.shape.is_array or value.shape.dims or value.opcode in _OPAQUE:
            return None
        whole = value.operands[0] if value.opcode == "get-tuple-element" else None
        if whole is state:
            found.add(value.tuple_index)
        elif whole is not None and whole.opcode != "tuple":
            return None
    return found or None


def _sources(value: HloInstruction) -> tuple[HloInstruction, ...]:
    """Return what a scalar is computed from; it looks through the elements of tuples."""
    if value.opcode != "get-tuple-element":
        return value.operands
    whole = value.operands[0]
    return whole.operands if whole.opcode == "tuple" else ()


def _constant_if_unchanged(loop: HloInstruction, search: _Search, value: _Linear | None) -> _Linear | None:
    """Return an element that begins as a constant, and that the body does not change, as that constant."""
    if value is None or value.index is None:
        return value
    init, new = (search.linear(_Place(whole.operands[value.index])) for whole in (loop.operands[0], loop.while_body.root))
    is_constant = init is not None and init.index is None and new == _Linear(value.index, 0)
    return _Linear(None, init.offset * value.scale + value.offset) if init is not None and is_constant else value


def _wrapped(value: int, bits: int, is_signed: bool) -> int:
    lowest = -(1 << (bits - 1)) if is_signed else 0
    return (value - lowest) % (1 << bits) + lowest


class _Search:
    """Follows values to their sources. Gives up after `_MAX_STEPS` steps, since shared operands make exponentially many paths."""

    def __init__(self) -> None:
        self._steps = 0

    def source(self, place: _Place) -> _Place:
        """Return the source that a scalar is a copy of."""
        while (before := self._before(place)) is not None:
            place = before
        return place

    def linear(self, place: _Place) -> _Linear | None:
        """Return a scalar integer as element of the state plus offset. The offset is right modulo the range of its type."""
        place = self.source(place)
        value = place.value
        self._steps += 1
        if self._steps > _MAX_STEPS or not value.shape.is_array or value.shape.dtype.kind not in _INTEGERS:
            return None
        if value.opcode == "constant":
            return None if value.shape.dims else _Linear(None, int(value.constant_array))
        if value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter" and place.fusion is None:
            return _Linear(value.tuple_index, 0)
        if value.opcode not in ("add", "subtract", "multiply"):
            return None
        one, other = (self.linear(_Place(operand, place.fusion)) for operand in value.operands)
        if one is None or other is None or (one.index is not None and other.index is not None):
            return None
        whole, constant = (other, one) if one.index is None else (one, other)
        if value.opcode == "multiply":
            return _Linear(whole.index, whole.offset * constant.offset, whole.scale * constant.offset)
        sign = -1 if value.opcode == "subtract" else 1
        scale = sign * other.scale if one.index is None else one.scale
        return _Linear(whole.index, one.offset + sign * other.offset, scale)

    def _before(self, place: _Place) -> _Place | None:
        """Return the value that a copy copies, one step back; None if the value is computed here."""
        value, fusion = place.value, place.fusion
        if value.opcode == "parameter":
            # The parameter of a loop's computation, outside of fusions, is the state.
            return _Place(fusion.value.operands[value.parameter_number], fusion.fusion) if fusion else None
        if value.opcode == "fusion":
            return _Place(value.fused_computation.root, place)
        if value.opcode == "get-tuple-element":
            whole = _Place(value.operands[0], fusion)
            if whole.value.opcode == "fusion":
                whole = _Place(whole.value.fused_computation.root, whole)
            is_tuple = whole.value.opcode == "tuple"
            return _Place(whole.value.operands[value.tuple_index], whole.fusion) if is_tuple else None
        if value.opcode in _MOVES and _is_one_element(value) and _is_one_element(value.operands[0]):
            same_type = value.shape.element_type == value.operands[0].shape.element_type
            return _Place(value.operands[0], fusion) if same_type else None
        return None


def _is_one_element(value: HloInstruction) -> bool:
    return value.shape.is_array and all(size == 1 for size in value.shape.dims)
