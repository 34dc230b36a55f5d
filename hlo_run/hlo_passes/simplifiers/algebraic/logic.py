"""Algebraic rules of bitwise operations, comparisons, select and remainder."""

from __future__ import annotations

from typing import Any

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.simplifiers.algebraic.rule import (
    Rewriter,
    Rules,
    either,
    is_all,
    is_integer,
    lowest_and_highest,
    power_of_two,
    splat_value,
)


def and_with_constant(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """p & true => p, A & 0 => 0."""
    for one, two in (i.operands, i.operands[::-1]):
        if _is_true(one):
            return two
        if is_all(one, 0):
            return one
    return None


def or_with_constant(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A | 0 => A, p | true => true."""
    for one, two in (i.operands, i.operands[::-1]):
        if is_all(one, 0):
            return two
        if _is_true(one):
            return one
    return None


def xor_with_zero(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A ^ 0 => A, A ^ A => 0; equal comparisons count as one."""
    one, two = i.operands
    if one is two or _are_same(one, two):
        return rw.splat(0, i.shape)
    return one if is_all(two, 0) else two if is_all(one, 0) else None


def _are_same(one: HloInstruction, two: HloInstruction) -> bool:
    """True for elementwise instructions of the same operands and attributes."""
    if one.opcode != two.opcode or one.opcode not in ELEMENTWISE or list(map(id, one.operands)) != list(map(id, two.operands)):
        return False
    keys = ValueKeys(sees_layouts=True)
    return keys.of(one, ()) == keys.of(two, ())


def and_of_bounds(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A < C1 & A < C2 => A < min(C1, C2) for integers and constants that are not broadcasts."""
    bounds = [_upper_bound(test) for test in i.operands]
    if bounds[0] is None or bounds[1] is None or bounds[0][0] is not bounds[1][0]:
        return None
    value, number = min(bounds[0], bounds[1], key=lambda bound: bound[1])
    return rw.compare(value, rw.splat(number, value.shape), "LT")


def _upper_bound(test: HloInstruction) -> tuple[HloInstruction, int] | None:
    """Return A and C of A < C or C > A, for integers and a constant C."""
    direction = test.comparison_direction if test.opcode == "compare" else ""
    if direction not in ("LT", "GT"):
        return None
    value, limit = test.operands if direction == "LT" else test.operands[::-1]
    number = splat_value(limit) if limit.opcode == "constant" else None
    return None if number is None or not is_integer(value) else (value, int(number))


def not_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """not(not A) => A."""
    return i.operands[0].operands[0] if i.operands[0].opcode == "not" else None


def compare_with_itself(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A == A => true, A < A => false for integers."""
    one, two = i.operands
    if one is not two or not is_integer(one):
        return None
    return rw.splat(i.comparison_direction in ("EQ", "LE", "GE"), i.shape)


def compare_unsigned_with_zero(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A < 0 => false, A >= 0 => true for unsigned integers, also with 0 on the left."""
    one, two = i.operands
    direction = i.comparison_direction
    zero = two if direction in ("LT", "GE") else one if direction in ("GT", "LE") else None
    is_unsigned = is_integer(one) and one.shape.element_type != "pred" and not one.shape.dtype.is_signed
    return rw.splat(direction in ("GE", "LE"), i.shape) if zero is not None and is_unsigned and is_all(zero, 0) else None


def compare_with_extremum(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """max(A, B) > A => B > A, A > min(A, B) => A > B."""
    one, two = i.operands
    if i.comparison_direction != "GT":
        return None
    if one.opcode == "maximum" and two in one.operands:
        other = one.operands[1 if one.operands[0] is two else 0]
        return rw.with_operands(i, [other, two])
    if two.opcode == "minimum" and one in two.operands:
        return rw.with_operands(i, [one, two.operands[1 if two.operands[0] is one else 0]])
    return None


def compare_pred(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """p == true => p, p != false => p."""
    if i.operands[0].shape.element_type != "pred" or i.comparison_direction not in ("EQ", "NE"):
        return None
    for one, two in (i.operands, i.operands[::-1]):
        number = splat_value(two)
        if number is not None and bool(number) == (i.comparison_direction == "EQ"):
            return one
    return None


def compare_chosen_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(A >= B, 1, 0) != 0 => A >= B, the mask of a triangle."""
    value, two = i.operands
    if i.comparison_direction != "NE" or not is_all(two, 0) or value.opcode != "select":
        return None
    test, one, zero = value.operands
    is_mask = test.opcode == "compare" and test.comparison_direction == "GE" and test.shape == i.shape
    return test if is_mask and is_all(one, 1) and is_all(zero, 0) else None


def select_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(p, A, A) => A."""
    return i.operands[1] if i.operands[1] is i.operands[2] else None


def select_by_constant(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(true, A, B) => A, select(false, A, B) => B."""
    number = splat_value(i.operands[0])
    return None if number is None else i.operands[1 if bool(number) else 2]


def select_by_negation(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(not p, A, B) => select(p, B, A)."""
    test, one, two = i.operands
    return rw.select(test.operands[0], two, one) if test.opcode == "not" else None


def select_of_preds(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(p, true, false) => p, (p, false, true) => not p. As in XLA, (p, q, false) and (p, true, q) stay."""
    test, one, two = i.operands
    if i.shape.element_type != "pred" or test.shape.dims != i.shape.dims:
        return None
    if is_all(one, 1) and is_all(two, 0):
        return test
    return rw.unary("not", test) if is_all(one, 0) and is_all(two, 1) else None


def select_by_comparison_of_preds(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(p >= q, p, q) => p or q, select(p < q, p, q) => p and q, select(p == q, p, q) => q, select(p != q, p, q) => p."""
    test, one, two = i.operands
    if i.shape.element_type != "pred" or test.opcode != "compare" or tuple(test.operands) != (one, two):
        return None
    match test.comparison_direction:
        case "GT" | "GE":
            return rw.binary("or", one, two)
        case "LT" | "LE":
            return rw.binary("and", one, two)
        case direction:
            return two if direction == "EQ" else one


def select_of_updated(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """select(p, A, dynamic-update-slice(A, B, at)) => dynamic-update-slice(A, select(p[at], dynamic-slice(A, at), B), at)."""
    test, *arms = i.operands
    for number, (whole, update) in enumerate((arms, arms[::-1])):
        if update.opcode != "dynamic-update-slice" or update.operands[0] is not whole or len(update.users) > 1:
            continue
        view = DynamicSlice.of(update)
        part, at, sizes = view.part, view.starts, view.sizes
        if not view.has_scalar_starts or (rw.sees_layouts and part.shape.minor_to_major != whole.shape.minor_to_major):
            continue
        old = rw.add("dynamic-slice", part.shape, [whole, *at], dynamic_slice_sizes=sizes)
        chosen = test
        if test.shape.dims:
            chosen = rw.add("dynamic-slice", part.shape.with_element_type("pred"), [test, *at], dynamic_slice_sizes=sizes)
        new = rw.select(chosen, part if number else old, old if number else part)
        return rw.add("dynamic-update-slice", i.shape, [whole, new, *at])
    return None


def remainder_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(A % B) % B => A % B."""
    value, divisor = i.operands
    return value if value.opcode == "remainder" and value.operands[1] is divisor else None


def remainder_of_power_of_two(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A % 2^k => A & (2^k - 1) for unsigned integers; for signed ones, with the sign of A."""
    value, k = i.operands[0], power_of_two(i.operands[1])
    if k is None:
        return None
    if i.shape.dtype.is_unsigned:
        return rw.binary("and", value, rw.splat((1 << k) - 1, i.shape))
    is_negative = rw.compare(value, rw.zeros(i.shape), "LT")
    magnitude = rw.select(is_negative, rw.negate(value), value)
    magnitude = rw.binary("and", magnitude, rw.splat((1 << k) - 1, i.shape))
    return rw.select(is_negative, rw.negate(magnitude), magnitude)


def remainder_of_iota(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """iota % N => iota if its maximum is below N, (iota + N) % N => iota % N."""
    value, number = i.operands[0], splat_value(i.operands[1])
    if number is None or not is_integer(i) or int(number) <= 0:
        return None
    if value.opcode == "iota" and _highest_index(value) < int(number):
        return value
    found = either(value, "iota") if value.opcode == "add" else None
    if found is None:
        return None
    added: Any = splat_value(found[1])
    highest = _highest_index(found[0]) + int(number)
    fits = highest <= lowest_and_highest(i.shape.element_type)[1]
    return rw.like(i, [found[0], i.operands[1]]) if added is not None and int(added) == int(number) and fits else None


def _highest_index(iota: HloInstruction) -> int:
    """Return the largest element of an iota of integers."""
    return min(max(iota.shape.dims[iota.iota_dimension] - 1, 0), lowest_and_highest(iota.shape.element_type)[1])


def _is_true(value: HloInstruction) -> bool:
    return value.shape.element_type == "pred" and is_all(value, 1)


RULES: Rules = {
    "and": (and_with_constant, and_of_bounds),
    "compare": (compare_with_itself, compare_unsigned_with_zero, compare_pred, compare_chosen_one, compare_with_extremum),
    "not": (not_twice,),
    "or": (or_with_constant,),
    "remainder": (remainder_twice, remainder_of_power_of_two, remainder_of_iota),
    "select": (
        select_of_one_value,
        select_by_constant,
        select_by_negation,
        select_of_preds,
        select_by_comparison_of_preds,
        select_of_updated,
    ),
    "xor": (xor_with_zero,),
}
