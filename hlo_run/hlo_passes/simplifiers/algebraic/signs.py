"""Algebraic rules of values that are known to be non-negative: absolute value, roots, and comparisons with 0."""

from __future__ import annotations

import math

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules, is_all, is_float, is_integer, splat_value

# The maximum depth of the analysis of operands.
_DEPTH = 8
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def is_non_negative(value: HloInstruction, depth: int = _DEPTH) -> bool:
    """Return True if all elements are known to be >= +0.0; NaN is allowed, -0.0 is not."""
    dtype = value.shape.dtype
    if not depth or not value.shape.is_array or any(_is_complex(part) for part in (value, *value.operands)):
        return False
    match value.opcode:
        case "constant":
            number = splat_value(value)
            return number is not None and math.copysign(1, float(number)) > 0 and not math.isnan(float(number))
        case "exponential":
            return True
        case "iota":
            dim = value.iota_dimension
            return not dtype.is_signed or value.shape.dims[dim] <= 1 << min(dtype.bits - 1, 62)
        case "multiply":
            return value.operands[0] is value.operands[1] and not (dtype.is_integer and dtype.is_signed)
        case "abs":
            return not dtype.is_integer or is_non_negative(value.operands[0], depth - 1)
        case "broadcast":
            return is_non_negative(value.operands[0], depth - 1)
        case "minimum":
            return all(is_non_negative(operand, depth - 1) for operand in value.operands)
        case "maximum":
            return any(is_non_negative(operand, depth - 1) for operand in value.operands)
        case "select":
            return all(is_non_negative(operand, depth - 1) for operand in value.operands[1:])
        case "power":
            return is_float(value) and is_non_negative(value.operands[0], depth - 1)
        case _:
            return False


def _is_complex(value: HloInstruction) -> bool:
    return value.shape.is_array and value.shape.dtype.is_complex


def abs_of_what_is_positive(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """|A| => A if A is non-negative: an absolute value, a square, an exponential, .."""
    value = i.operands[0]
    return value if value.shape == i.shape and is_non_negative(value) else None


def compare_what_is_positive(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """A < 0 => false, 0 > A => false if A is non-negative; for integers A >= 0 => true, 0 <= A => true."""
    one, two = i.operands
    mirrored = _MIRRORED.get(i.comparison_direction)
    for value, zero, direction in ((one, two, i.comparison_direction), (two, one, mirrored)):
        # NaN >= 0 is false, so >= is known for integers only.
        is_known = direction == "LT" or (direction == "GE" and is_integer(value))
        if is_known and is_all(zero, 0) and is_non_negative(value):
            return rw.splat(direction == "GE", i.shape)
    return None


def multiply_roots(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """sqrt(A) * sqrt(A) => A, rsqrt(A) * rsqrt(A) => 1 / A if A is non-negative."""
    one, two = i.operands
    if one.opcode != two.opcode or one.opcode not in ("sqrt", "rsqrt") or one.operands != two.operands:
        return None
    value = one.operands[0]
    if not is_non_negative(value):
        return None
    return value if one.opcode == "sqrt" else rw.binary("divide", rw.at(value).splat(1, i.shape), value)


def power_of_one_half(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """pow(A, 0.5) => sqrt(A) if A is non-negative."""
    value, exponent = i.operands
    return rw.unary("sqrt", value) if is_float(i) and is_all(exponent, 0.5) and is_non_negative(value) else None


def rsqrt_of_inverse(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """rsqrt(pow(A, -2)) => A, rsqrt(1 / A) => sqrt(A) if A is non-negative."""
    value = i.operands[0]
    if value.opcode == "power" and is_all(value.operands[1], -2) and is_non_negative(value.operands[0]):
        return value.operands[0]
    if value.opcode == "divide" and is_all(value.operands[0], 1) and is_non_negative(value.operands[1]):
        return rw.unary("sqrt", value.operands[1])
    return None


RULES: Rules = {
    "abs": (abs_of_what_is_positive,),
    "compare": (compare_what_is_positive,),
    "multiply": (multiply_roots,),
    "power": (power_of_one_half,),
    "rsqrt": (rsqrt_of_inverse,),
}
