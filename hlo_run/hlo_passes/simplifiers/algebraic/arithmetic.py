"""Algebraic rules of sums, differences, products and quotients. They may change the last bits of floats where XLA does."""

from __future__ import annotations

import math

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.simplifiers.algebraic.rule import (
    Rewriter,
    Rules,
    constant_of,
    either,
    is_all,
    is_constant,
    is_float,
    is_integer,
    power_of_two,
    splat_value,
)


def add_zero(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A + 0 => A, 0 + A => A."""
    one, two = i.operands
    return one if is_all(two, 0) else two if is_all(one, 0) else None


def constant_to_the_right(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """C + A => A + C for a constant that is not a broadcast."""
    one, two = i.operands
    return rw.like(i, [two, one]) if one.opcode == "constant" and two.opcode != "constant" else None


def add_two_constants(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(A + C1) + C2 => A + (C1 + C2) for integers."""
    return _join_constants(rw, i, "add")


def add_to_difference(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(C1 - A) + C2 => (C1 + C2) - A for integers."""
    difference, two = i.operands
    if not is_integer(i) or difference.opcode != "subtract" or is_constant(difference.operands[1]):
        return None
    joined = _joined(rw, i, "add", difference.operands[0], two)
    return rw.binary("subtract", joined, difference.operands[1]) if joined else None


def add_what_is_subtracted(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A + (B - A) => B for integers."""
    if not is_integer(i):
        return None
    for one, two in (i.operands, i.operands[::-1]):
        if two.opcode == "subtract" and two.operands[1] is one:
            return two.operands[0]
    return None


def add_products_of_one_factor(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A*C + B*C => (A + B)*C for integers, and for floats if C is a power of two."""
    one, two = i.operands
    if one is two or one.opcode != "multiply" or two.opcode != "multiply" or len(one.users) > 1 or len(two.users) > 1:
        return None
    shared = next((f for f in reversed(one.operands) if f in two.operands), None)
    if shared is None or not (is_integer(i) or (is_float(i) and _is_float_power_of_two(shared))):
        return None
    rest = [p.operands[1] if p.operands[0] is shared else p.operands[0] for p in (one, two)]
    return rw.mul(rw.at(one).binary("add", rest[0], rest[1]), shared)


def add_to_updated_zeros(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A + dynamic-update-slice(0, u, at) => dynamic-update-slice(A, dynamic-slice(A, at) + u, at)."""
    found = either(i, "dynamic-update-slice")
    if found is None or len(found[0].users) > 1 or not is_all(found[0].operands[0], 0):
        return None
    update, value = found
    view = DynamicSlice.of(update)
    part, at = view.part, view.starts
    if rw.sees_layouts and part.shape.minor_to_major != value.shape.minor_to_major:
        return None
    old = rw.at(value).add("dynamic-slice", part.shape, [value, *at], dynamic_slice_sizes=part.shape.dims)
    return rw.add("dynamic-update-slice", i.shape, [value, rw.at(update).binary("add", old, part), *at])


def subtract_zero(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A - 0 => A."""
    return i.operands[0] if is_all(i.operands[1], 0) else None


def subtract_itself(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A - A => 0 for integers."""
    return rw.splat(0, i.shape) if is_integer(i) and i.operands[0] is i.operands[1] else None


def subtract_constant(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A - C => A + (-C)."""
    one, two = i.operands
    if not is_constant(two) or is_constant(one) or not (is_integer(i) or is_float(i) or i.shape.dtype.is_complex):
        return None
    constant = two if two.opcode == "constant" else two.operands[0]
    made = rw.at(constant).negate(constant)
    if two is not constant:
        made = rw.at(constant).add("broadcast", two.shape, [made], dimensions=two.dimensions)
    return rw.binary("add", one, made)


def subtract_part(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A - (A - B) => B, A - (A + B) => -B, (A + B) - A => B for integers."""
    if not is_integer(i):
        return None
    one, two = i.operands
    if two.opcode == "subtract" and two.operands[0] is one:
        return two.operands[1]
    if two.opcode == "add" and one in two.operands:
        return rw.negate(two.operands[1] if two.operands[0] is one else two.operands[0])
    if one.opcode == "add" and two in one.operands:
        return one.operands[1] if one.operands[0] is two else one.operands[0]
    return None


def multiply_by_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A * 1 => A, 1 * A => A."""
    one, two = i.operands
    return one if is_all(two, 1) else two if is_all(one, 1) else None


def multiply_by_zero(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A * 0 => 0 for integers."""
    if not is_integer(i):
        return None
    return next((value for value in i.operands if is_all(value, 0)), None)


def multiply_negated(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """-A * -B => A * B."""
    one, two = i.operands
    if one.opcode != "negate" or two.opcode != "negate":
        return None
    return rw.with_operands(i, [one.operands[0], two.operands[0]])


def square_of_abs(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """|A| * |A| => A * A."""
    one, two = i.operands
    if one.opcode != "abs" or two.opcode != "abs" or one.operands[0] is not two.operands[0]:
        return None
    value = one.operands[0]
    return None if value.shape.dtype.is_complex else rw.with_operands(i, [value, value])


def multiply_two_constants(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(A * C1) * C2 => A * (C1 * C2) for integers; plain constants may be on either side, broadcast ones are on the right."""
    if not is_integer(i):
        return None
    inner, two = i.operands
    if inner.opcode == "multiply" and inner.operands[0].opcode == "constant" and inner.operands[1].opcode == "broadcast":
        joined = _joined(rw, i, "multiply", inner.operands[1], two)
        return rw.mul(inner.operands[0], joined) if joined is not None and two.opcode == "broadcast" else None
    for inner, two in (i.operands, i.operands[::-1]):
        if inner.opcode != "multiply" or two.opcode != "constant":
            continue
        for value, one in (inner.operands, inner.operands[::-1]):
            if one.opcode == "constant" and value.opcode != "constant":
                return rw.mul(value, rw.bare.mul(one, two))
    return _join_constants(rw, i, "multiply")


def multiply_scaled(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(A * C1) * (B * C2) => (A * B) * (C1 * C2) for integers and constants that are not broadcasts."""
    one, two = i.operands
    if not is_integer(i) or one.opcode != "multiply" or two.opcode != "multiply":
        return None
    found = either(one, "constant"), either(two, "constant")
    if found[0] is None or found[1] is None or "constant" in (found[0][1].opcode, found[1][1].opcode):
        return None
    constants = rw.bare.mul(found[0][0], found[1][0])
    return rw.mul(rw.mul(found[0][1], found[1][1]), constants)


def multiply_by_scaled_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(A * c) * broadcast(B) => A * broadcast(B * c) for integers and a scalar constant c."""
    if not is_integer(i):
        return None
    for scaled, wide in (i.operands, i.operands[::-1]):
        if scaled.opcode != "multiply" or wide.opcode != "broadcast" or wide.operands[0].opcode == "constant":
            continue
        for value, factor in (scaled.operands, scaled.operands[::-1]):
            scalar = constant_of(factor)
            if scalar is None or is_constant(value):
                continue
            narrow = wide.operands[0]
            product = rw.mul(narrow, rw.spread(scalar, narrow.shape))
            return rw.mul(value, rw.add("broadcast", wide.shape, [product], dimensions=wide.dimensions))
    return None


def multiply_by_converted_pred(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convert(p) * A => select(p, A, 0)."""
    found = either(i, "convert")
    if found is None or found[0].operands[0].shape.element_type != "pred":
        return None
    return rw.select(found[0].operands[0], found[1], rw.zeros(i.shape))


def divide_by_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A / 1 => A."""
    return i.operands[0] if is_all(i.operands[1], 1) else None


def divide_by_power_of_two(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A / 2^k => A >> k for unsigned integers; for signed ones, the magnitude is shifted and the sign restored."""
    value, k = i.operands[0], power_of_two(i.operands[1])
    if k is None:
        return None
    # XLA gives a constant that is like a value the metadata of the value.
    if i.shape.dtype.is_unsigned:
        return rw.binary("shift-right-logical", value, rw.at(value).splat(k, i.shape))
    is_negative = rw.compare(value, rw.at(value).splat(0, i.shape), "LT")
    magnitude = rw.select(is_negative, rw.negate(value), value)
    quotient = rw.binary("shift-right-logical", magnitude, rw.splat(k, i.shape))
    return rw.select(is_negative, rw.negate(quotient), quotient)


def divide_by_power(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A / pow(B, C) => A * pow(B, -C) for floats and complex numbers."""
    one, two = i.operands
    if two.opcode != "power" or is_integer(i):
        return None
    other = rw.at(two)
    return rw.mul(one, other.binary("power", two.operands[0], other.negate(two.operands[1])))


_OPPOSITE_ROOTS: dict[Opcode, Opcode] = {"sqrt": "rsqrt", "rsqrt": "sqrt"}


def divide_by_root(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A / sqrt(B) => A * rsqrt(B), A / rsqrt(B) => A * sqrt(B), if the root has no other users."""
    one, two = i.operands
    opposite = _OPPOSITE_ROOTS.get(two.opcode)
    return rw.mul(one, rw.at(two).unary(opposite, two.operands[0])) if opposite and len(two.users) == 1 else None


def divide_by_constant(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A / C => A * (1 / C) for floats and complex numbers."""
    one, two = i.operands
    if not is_constant(two) or is_constant(one) or not (is_float(i) or i.shape.dtype.is_complex):
        return None
    constant = two if two.opcode == "constant" else two.operands[0]
    literal = constant.constant_array
    with np.errstate(all="ignore"):
        inverse = rw.at(constant).constant(np.ones_like(literal) / literal, i.shape.element_type)
    inverse.shape = constant.shape
    if two is not constant:
        inverse = rw.at(two).add("broadcast", two.shape, [inverse], dimensions=two.dimensions)
    return rw.bare.mul(one, inverse)


def divide_quotients(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """(A/B) / (C/D) => (A*D) / (B*C), (A/B) / C => A / (B*C), A / (B/C) => (A*C) / B for floats and complex numbers."""
    if not (is_float(i) or i.shape.dtype.is_complex):
        return None
    one, two = i.operands
    bare = rw.bare
    if one.opcode == two.opcode == "divide":
        (a, b), (c, d) = one.operands, two.operands
        return bare.binary("divide", bare.mul(a, d), bare.mul(b, c))
    if one.opcode == "divide":
        return bare.binary("divide", one.operands[0], bare.mul(one.operands[1], two))
    if two.opcode == "divide":
        return bare.binary("divide", bare.mul(one, two.operands[1]), two.operands[0])
    return None


def divide_converted_pred(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convert(p) / broadcast(scalar) => broadcast(1 / scalar) * convert(p) for floats."""
    one, two = i.operands
    is_pred = one.opcode == "convert" and one.operands[0].shape.element_type == "pred"
    if not is_pred or not is_float(i) or two.opcode != "broadcast" or two.operands[0].shape.dims:
        return None
    scalar = two.operands[0]
    inverse = rw.bare.binary("divide", rw.at(scalar).constant(1, i.shape.element_type), scalar)
    return rw.bare.mul(rw.at(two).spread(inverse, i.shape), one)


def negate_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """-(-A) => A."""
    return i.operands[0].operands[0] if i.operands[0].opcode == "negate" else None


def part_of_complex(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """real(complex(A, B)) => A, imag(complex(A, B)) => B; of a real number: real(A) => A, imag(A) => 0."""
    value = i.operands[0]
    if not value.shape.dtype.is_complex:
        return value if i.opcode == "real" else rw.zeros(i.shape)
    return value.operands[0 if i.opcode == "real" else 1] if value.opcode == "complex" else None


def complex_of_parts(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """complex(real(C), imag(C)) => C."""
    one, two = i.operands
    is_whole = one.opcode == "real" and two.opcode == "imag" and one.operands[0] is two.operands[0]
    return one.operands[0] if is_whole and one.operands[0].shape.dtype.is_complex else None


def _joined(rw: Rewriter, i: HloInstruction, opcode: Opcode, one: HloInstruction, two: HloInstruction) -> HloInstruction | None:
    """Return the sum or product of two constants, for folding, in the layout of `i`; None unless both are plain or broadcast."""
    if one.opcode == two.opcode == "constant":
        return rw.bare.binary(opcode, one, two)
    scalars = constant_of(one), constant_of(two)
    if scalars[0] is None or scalars[1] is None:
        return None
    return rw.spread(rw.bare.binary(opcode, scalars[0], scalars[1]), i.shape)


def _join_constants(rw: Rewriter, i: HloInstruction, opcode: Opcode) -> HloInstruction | None:
    inner, two = i.operands
    if not is_integer(i) or inner.opcode != opcode or is_constant(inner.operands[0]):
        return None
    joined = _joined(rw, i, opcode, inner.operands[1], two)
    return rw.binary(opcode, inner.operands[0], joined) if joined else None


def _is_float_power_of_two(value: HloInstruction) -> bool:
    number = splat_value(value)
    return number is not None and math.frexp(abs(float(number)))[0] == 0.5


RULES: Rules = {
    "add": (
        add_zero,
        constant_to_the_right,
        add_two_constants,
        add_to_difference,
        add_what_is_subtracted,
        add_products_of_one_factor,
        add_to_updated_zeros,
    ),
    "complex": (complex_of_parts,),
    "divide": (
        divide_by_one,
        divide_by_power_of_two,
        divide_by_power,
        divide_by_root,
        divide_by_constant,
        divide_quotients,
        divide_converted_pred,
    ),
    "imag": (part_of_complex,),
    "multiply": (
        multiply_by_one,
        multiply_by_zero,
        multiply_negated,
        square_of_abs,
        multiply_two_constants,
        multiply_by_converted_pred,
        multiply_scaled,
        multiply_by_scaled_broadcast,
    ),
    "negate": (negate_twice,),
    "real": (part_of_complex,),
    "subtract": (subtract_zero, subtract_itself, subtract_constant, subtract_part),
}
