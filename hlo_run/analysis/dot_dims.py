"""Sorts the dimensions of a dot's operands into batch, contracting and free dimensions."""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction


class Side(Struct, frozen=True):
    """The dimension numbers of one operand. `batch` and `contracting` are in the order of the attributes, `free` ascends."""

    batch: tuple[int, ...]
    contracting: tuple[int, ...]
    free: tuple[int, ...]


def dot_side(dot: HloInstruction, number: int) -> Side:
    """Return the dimensions of operand 0 (lhs) or 1 (rhs) of a dot."""
    name = ("lhs", "rhs")[number]
    batch = tuple(dot.attrs.get(f"{name}_batch_dims", ()))
    contracting = tuple(dot.attrs.get(f"{name}_contracting_dims", ()))
    rank = dot.operands[number].shape.rank
    return Side(batch, contracting, tuple(d for d in range(rank) if d not in (*batch, *contracting)))


def size_of(dot: HloInstruction, number: int, dims: tuple[int, ...]) -> int:
    """Return the product of the sizes of dimensions `dims` of operand `number`."""
    return math.prod(dot.operands[number].shape.dims[d] for d in dims)
