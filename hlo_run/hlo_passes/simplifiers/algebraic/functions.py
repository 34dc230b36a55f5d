"""Algebraic rules of powers, exponentials, logarithms, extrema, clamp and reduce-precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import DEVICE_ID
from hlo_run.hlo.values.literal import float_info
from hlo_run.hlo_passes.simplifiers.algebraic.rule import (
    Rewriter,
    Rules,
    is_all,
    is_constant,
    is_float,
    lowest_and_highest,
    splat_value,
)
from hlo_run.ops.groups import device_counts


def power_of_small_number(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """pow(A, 0) => 1, pow(A, 1) => A, pow(A, 2) => A * A, pow(A, 3) => A * (A * A), pow(A, -1) => 1 / A."""
    value, exponent = i.operands
    if is_all(exponent, 0):
        return rw.splat(1, i.shape)
    if is_all(exponent, 1):
        return value
    if is_all(exponent, 2):
        return rw.mul(value, value)
    if is_all(exponent, 3):
        return rw.mul(value, rw.mul(value, value))
    if is_float(i) and is_all(exponent, -1):
        return rw.binary("divide", rw.at(value).splat(1, i.shape), value)
    return None


def log_of_power(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """log(pow(A, B)) => select(B == 0, 0, log|A| * B) for floats."""
    power = i.operands[0]
    if power.opcode != "power" or not is_float(i):
        return None
    base, exponent = power.operands
    product = rw.mul(rw.unary("log", rw.unary("abs", base)), exponent)
    return rw.select(rw.compare(exponent, rw.splat(0, i.shape), "EQ"), rw.splat(0, i.shape), product)


def log_of_root(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """log(sqrt(A)) => 0.5 * log(A), log(rsqrt(A)) => -0.5 * log(A)."""
    factor = {"sqrt": 0.5, "rsqrt": -0.5}.get(i.operands[0].opcode)
    if factor is None or not is_float(i):
        return None
    return rw.mul(rw.unary("log", i.operands[0].operands[0]), rw.splat(factor, i.shape))


def extremum_of_itself(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """max(A, A) => A, min(A, A) => A."""
    return i.operands[0] if i.operands[0] is i.operands[1] else None


def extremum_of_limit(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """max(A, lowest) => A, min(A, highest) => A."""
    if i.shape.dtype.is_complex or i.shape.element_type == "pred":
        return None
    for limit, value in (i.operands, i.operands[::-1]):
        number = splat_value(limit)
        if number is not None and _is_limit(number, i, -1 if i.opcode == "maximum" else 1):
            return value
    return None


def _is_limit(number: Any, i: HloInstruction, sign: int) -> bool:
    if is_float(i):
        # The limit of a type without infinities is its largest number.
        has_infinity = not np.isfinite(np.asarray(np.inf).astype(i.shape.dtype.numpy))
        limit = np.inf if has_infinity else float(float_info(i.shape.dtype).max)
        return float(number) == sign * limit
    return int(number) == lowest_and_highest(i.shape.element_type)[sign > 0]


def extremum_of_its_part(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """max(max(A, B), B) => max(A, B), max(clamp(B, A, C), B) => clamp(B, A, C); also for min.

    max(B, max(A, B)) => max(B, A).
    """
    for whole, part in (i.operands, i.operands[::-1]):
        if whole.opcode == i.opcode and part in whole.operands:
            is_last = part is i.operands[0] and part is whole.operands[1]
            return rw.with_operands(i, [part, whole.operands[0]]) if is_last else whole
        if whole.opcode == "clamp" and whole.operands[0 if i.opcode == "maximum" else 2] is part and part.shape == i.shape:
            return whole
    return None


def extremum_of_flat_functions(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """max(tanh(A), tanh(B)) => tanh(max(A, B)); also for the other functions in `_FLAT`."""
    one, two = i.operands
    if i.opcode != "maximum" or one.opcode != two.opcode or one.opcode not in _FLAT or not is_float(i):
        return None
    return rw.unary(one.opcode, rw.binary("maximum", one.operands[0], two.operands[0]))


def clamp_of_extrema(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """min(max(A, C1), C2) => clamp(C1, A, C2), and max(min(A, C2), C1), for broadcast constants if C1 < C2."""
    opposite = "minimum" if i.opcode == "maximum" else "maximum"
    for inner, outer_bound in (i.operands, i.operands[::-1]):
        if inner.opcode != opposite or outer_bound.opcode != "broadcast" or i.shape.dtype.is_complex:
            continue
        for value, inner_bound in (inner.operands, inner.operands[::-1]):
            if inner_bound.opcode != "broadcast":
                continue
            low, high = (inner_bound, outer_bound) if i.opcode == "minimum" else (outer_bound, inner_bound)
            numbers = splat_value(low), splat_value(high)
            if numbers[0] is not None and numbers[1] is not None and not is_constant(value) and bool(numbers[0] < numbers[1]):
                return rw.add("clamp", value.shape, [low, value, high])
    return None


def clamp_of_clamped(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """clamp(lo, clamp(lo, A, hi), hi) => clamp(lo, A, hi)."""
    low, value, high = i.operands
    return value if value.opcode == "clamp" and value.operands[0] is low and value.operands[2] is high else None


def clamp_of_device_number(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """clamp(0, partition-id, 7) => partition-id if the module has at most 8 partitions; also for replica-id."""
    del rw
    low, value, high = i.operands
    if value.opcode not in DEVICE_ID or low.opcode != "constant" or high.opcode != "constant" or int(low.constant_array) != 0:
        return None
    count = device_counts(value)[value.opcode == "partition-id"]
    return value if 1 < count <= int(high.constant_array) + 1 else None


def reduce_to_own_precision(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-precision(f32 A), exponent_bits=8, mantissa_bits=23 => A."""
    form = i.shape.dtype.float_format
    own = form.exponent_bits, form.mantissa_bits
    return i.operands[0] if own == (i.exponent_bits, i.mantissa_bits) else None


def exponential_of_zero(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """exp(0) => 1."""
    return rw.splat(1, i.shape) if is_all(i.operands[0], 0) else None


# Monotonically increasing functions.
_FLAT: frozenset[Opcode] = frozenset(("cbrt", "erf", "logistic", "tanh"))
_EXTREMA = (
    extremum_of_itself,
    extremum_of_limit,
    extremum_of_its_part,
    clamp_of_extrema,
    extremum_of_flat_functions,
)
RULES: Rules = {
    "clamp": (clamp_of_clamped, clamp_of_device_number),
    "exponential": (exponential_of_zero,),
    "log": (log_of_power, log_of_root),
    "maximum": _EXTREMA,
    "minimum": _EXTREMA,
    "power": (power_of_small_number,),
}
# Only after all passes that read reduce-precision.
LAST_RULES: Rules = {"reduce-precision": (reduce_to_own_precision,)}
