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

_DESCENDING = {"LT": False, "GT": True}
_BITWISE = frozenset(("xor", "and", "or", "not"))
_SAME = frozenset(("compare", "select", "bitcast", "bitcast-convert", "convert")) | _BITWISE
_MOST_OPS = 40

_Side: TypeAlias = "tuple[HloInstruction, HloInstruction]"


def sort_keys(comparator: HloComputation) -> tuple[SortKey, ...] | None:
    """Return the keys of a comparator whose parameters are two elements of each operand; None if it has another form."""
    return _keys(comparator.root)


def _keys(root: HloInstruction) -> tuple[SortKey, ...] | None:
    if root.opcode == "compare":
        key = _key(root)
        return (key,) if key else None
    if root.opcode == "select":
        undecided, following, first = root.operands
        is_undecided = _compares_preds(undecided) and _mirrored(*undecided.operands) and first in undecided.operands
        return _joined(first, following) if is_undecided else None
    if root.opcode == "or":
        for first, rest in (root.operands, root.operands[::-1]):
            for equal, following in _conjunctions(rest):
                if first.opcode == "compare" and _same_sides(first, equal):
                    return _joined(first, following)
    return None


def _joined(first: HloInstruction, following: HloInstruction) -> tuple[SortKey, ...] | None:
    before, after = _keys(first), _keys(following)
    return (*before, *after) if before and after else None


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
    is_total = compare.comparison_type == "TOTALORDER" and compare.operands[0].shape.dtype.is_float
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
    if left.opcode != right.opcode or left.shape.element_type != right.shape.element_type:
        return False
    if left.opcode == "parameter":
        return left.parameter_number ^ 1 == right.parameter_number
    if left.opcode == "constant":
        return _bits(left) == _bits(right)
    if left.opcode not in _SAME or (left.opcode == "compare" and not _alike(left, right)):
        return False
    return all(_mirrored(*pair) for pair in zip(left.operands, right.operands, strict=True))


def _alike(left: HloInstruction, right: HloInstruction) -> bool:
    return all(left.attrs.get(name) == right.attrs.get(name) for name in ("direction", "type"))


def _bits(constant: HloInstruction) -> int:
    item = np.ascontiguousarray(constant.constant_array).reshape(-1)[:1]
    return int.from_bytes(item.tobytes(), "little")


def _write(value: HloInstruction, ops: list[KeyOp], numbers: dict[HloInstruction, int], sides: set[int]) -> bool:
    """Append the steps that compute a value; False for an instruction that no step can express."""
    if value in numbers:
        return True
    dtype = value.shape.element_type
    if len(ops) >= _MOST_OPS or value.shape.rank or not all(_write(o, ops, numbers, sides) for o in value.operands):
        return False
    operands = tuple(numbers[operand] for operand in value.operands)
    match value.opcode:
        case "parameter":
            number = value.parameter_number
            sides.add(number & 1)
            op = KeyOp("parameter", dtype, number=number >> 1)
        case "constant":
            op = KeyOp("constant", dtype, number=_bits(value))
        case "compare" if value.comparison_type != "TOTALORDER":
            op = KeyOp("compare", dtype, operands, direction=value.comparison_direction)
        case "select":
            op = KeyOp("select", dtype, operands)
        case "bitcast" | "bitcast-convert" if value.operands[0].shape.dtype.bits == value.shape.dtype.bits:
            op = KeyOp("bitcast-convert", dtype, operands)
        case "convert" if (value.operands[0].shape.element_type, dtype) == ("bf16", "f32"):
            op = KeyOp("convert", dtype, operands)
        case opcode if opcode in _BITWISE:
            op = KeyOp(opcode, dtype, operands)
        case _:
            return False
    numbers[value] = len(ops)
    ops.append(op)
    return True
