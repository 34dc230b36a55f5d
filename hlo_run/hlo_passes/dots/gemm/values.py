"""Predicates on values that the product rules share."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hlo_run.hlo.graph import HloInstruction

# The tolerance of a constant, in units of its type's precision (XLA's bound).
_CONSTANT_UNITS = 128
_PRECISIONS = {"f32": 2.0**-23, "f64": 2.0**-52}
# The absolute tolerance for narrower types, whose rounding errors are smaller than this.
_NARROW_TOLERANCE = 5e-3


def scalar_constant(value: HloInstruction) -> complex | None:
    """Return the number of a scalar constant; None for another value."""
    if value.opcode != "constant" or value.shape.dims or not value.shape.is_array:
        return None
    return complex(value.constant_array.astype(np.complex128))


def broadcast_number(value: HloInstruction) -> complex | None:
    """Return the number of a broadcast scalar constant; None for another value."""
    return scalar_constant(value.operands[0]) if value.opcode == "broadcast" else None


def is_near(value: HloInstruction, number: float) -> bool:
    """Return True for a broadcast constant that is `number`, rounded to its type."""
    found = broadcast_number(value)
    if found is None or found.imag or not math.isfinite(found.real):
        return False
    precision = _PRECISIONS.get(value.shape.element_type)
    bound = _NARROW_TOLERANCE * number if precision is None else 2 * number * _CONSTANT_UNITS * precision
    return abs(found.real - number) < bound


def has_one_user(value: HloInstruction) -> bool:
    """Return True if the value has one user and is not the root."""
    return len(value.users) == 1 and not value.is_root


def either_way(instruction: HloInstruction) -> Iterator[tuple[HloInstruction, HloInstruction]]:
    """Yield the two operands of an instruction in both orders: (one, two), (two, one)."""
    one, two = instruction.operands
    yield one, two
    yield two, one
