"""Finds the keys by which a comparator sorts, for comparators whose form proves that they are an order.

    compare(f(a), f(b)), direction=LT                               by f(a), descending if it is GT
    select(less(a, b) == less(b, a), next(a, b), less(a, b))        by less, then by next
    or(less(a, b), and(f(a) == f(b), next(a, b)))                   the same, if less compares f(a) with f(b)

`f` is the same function of one element on both sides, so comparing its values is an order for every `f`. The
second form comes from `stable-sort-expander`, the third from JAX's sorts by several keys.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from hlo_run.artifact import KeyOp, SortKey
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set

_DESCENDING = {"LT": False, "GT": True}
_BITWISE: frozenset[Opcode] = frozenset(("xor", "and", "or", "not"))
_SAME = opcode_set("compare select bitcast bitcast-convert convert") | _BITWISE
_MOST_OPS = 40
_MOST_KEYS = 1000

_Side: TypeAlias = "tuple[HloInstruction, HloInstruction]"


def sort_keys(comparator: HloComputation) -> tuple[SortKey, ...] | None:
    """Return the keys of a comparator whose parameters are two elements of each operand; None if it has another form."""
    return _keys(comparator.root)


def _keys(root: HloInstruction) -> tuple[SortKey, ...] | None:
    found: list[SortKey] = []
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if value.opcode == "compare":
            key = _key(value)
            # Shared values can repeat keys exponentially often.
            if key is None or len(found) >= _MOST_KEYS:
                return None
            found.append(key)
            continue
        both = _first_and_following(value)
        if both is None:
            return None
        waiting += reversed(both)
    return tuple(found)


def _first_and_following(value: HloInstruction) -> _Side | None:
    """Return the comparison that decides first, and the one that decides if the first finds the elements equal."""
    if value.opcode == "select":
        undecided, following, first = value.operands
        is_undecided = _compares_preds(undecided) and _mirrored(*undecided.operands) and first in undecided.operands
        return (first, following) if is_undecided else None
    if value.opcode == "or":
        for first, rest in (value.operands, value.operands[::-1]):
            for equal, following in _conjunctions(rest):
                if first.opcode == "compare" and _same_sides(first, equal):
                    return first, following
    return None


def _conjunctions(value: HloInstruction) -> tuple[_Side, ...]:
    if value.opcode != "and":
        return ()
    one, other = value.operands
    return (one, other), (other, one)


def _compares_preds(value: HloInstruction) -> bool:
    is_equal = value.opcode == "compare" and value.comparison_direction == "EQ"
    return is_equal and value.operands[0].shape.element_type == "pred"


def _same_sides(less: HloInstruction, equal: HloInstruction) -> bool:
    """True if `equal` tests the operands of `less` for equality. Only for integers: equal floats may have different bits."""
    if equal.opcode != "compare" or equal.comparison_direction != "EQ" or less.operands[0].shape.dtype.is_float:
        return False
    return tuple(equal.operands) in (tuple(less.operands), tuple(less.operands)[::-1])


def _key(compare: HloInstruction) -> SortKey | None:
    """Return the key of a strict comparison whose sides are one function of the two elements of an operand."""
    descending = _DESCENDING.get(compare.comparison_direction)
    is_total = compare.comparison_order == "TOTAL" and compare.operands[0].shape.dtype.is_float
    left, right = compare.operands
    if descending is None or is_total or not _mirrored(left, right):
        return None
    ops: list[KeyOp] = []
    numbers: dict[HloInstruction, int] = {}
    sides: set[int] = set()
    if not _write(left, ops, numbers, sides) or len(sides) != 1:
        return None
    return SortKey(tuple(ops), descending != (sides == {1}))


def _mirrored(left: HloInstruction, right: HloInstruction) -> bool:
    """True if `right` is `left` with the two elements of every operand exchanged."""
    waiting = [(left, right)]
    seen = set(waiting)
    for one, two in waiting:
        if one.opcode != two.opcode or one.shape.element_type != two.shape.element_type:
            return False
        if one.opcode == "parameter":
            if one.parameter_number ^ 1 != two.parameter_number:
                return False
        elif one.opcode == "constant":
            if _bits(one) != _bits(two):
                return False
        elif one.opcode not in _SAME or (one.opcode == "compare" and not _alike(one, two)):
            return False
        else:
            fresh = [pair for pair in zip(one.operands, two.operands, strict=True) if pair not in seen]
            seen.update(fresh)
            waiting += fresh
    return True


def _alike(left: HloInstruction, right: HloInstruction) -> bool:
    return all(left.attrs.get(name) == right.attrs.get(name) for name in ("direction", "order"))


def _bits(constant: HloInstruction) -> int:
    item = np.ascontiguousarray(constant.constant_array).reshape(-1)[:1]
    return int.from_bytes(item.tobytes(), "little")


def _write(root: HloInstruction, ops: list[KeyOp], numbers: dict[HloInstruction, int], sides: set[int]) -> bool:
    """Append the steps that compute a value; False for an instruction that no step can express, or for too many steps."""
    waiting = [root]
    while waiting:
        value = waiting[-1]
        if value in numbers:
            waiting.pop()
            continue
        if len(ops) + len(waiting) > _MOST_OPS or value.shape.rank:
            return False
        missing = [operand for operand in value.operands if operand not in numbers]
        if missing:
            waiting.append(missing[0])
            continue
        waiting.pop()
        op = _step(value, numbers, sides)
        if op is None:
            return False
        numbers[value] = len(ops)
        ops.append(op)
    return True


def _step(value: HloInstruction, numbers: dict[HloInstruction, int], sides: set[int]) -> KeyOp | None:
    """Return the step of an instruction whose operands have steps; None if no step can express it."""
    dtype = value.shape.element_type
    operands = tuple(numbers[operand] for operand in value.operands)
    match value.opcode:
        case "parameter":
            number = value.parameter_number
            sides.add(number & 1)
            return KeyOp("parameter", dtype, number=number >> 1)
        case "constant":
            return KeyOp("constant", dtype, number=_bits(value))
        case "compare" if value.comparison_order != "TOTAL":
            return KeyOp("compare", dtype, operands, direction=value.comparison_direction)
        case "select":
            return KeyOp("select", dtype, operands)
        case "bitcast" | "bitcast-convert" if value.operands[0].shape.dtype.bits == value.shape.dtype.bits:
            return KeyOp("bitcast-convert", dtype, operands)
        case "convert" if (value.operands[0].shape.element_type, dtype) == ("bf16", "f32"):
            return KeyOp("convert", dtype, operands)
        case opcode if opcode in _BITWISE:
            return KeyOp(opcode, dtype, operands)
        case _:
            return None
