"""The dimensions of a dot by what they are: of the batch, contracted, or free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_run.hlo.graph import HloInstruction


@dataclass(frozen=True, slots=True)
class Side:
    """One operand's dimension numbers; `free` ascend."""

    batch: tuple[int, ...]
    contracting: tuple[int, ...]
    free: tuple[int, ...]


def dot_side(dot: HloInstruction, number: int) -> Side:
    """Return the dimensions of operand 0 or 1."""
    name = ("lhs", "rhs")[number]
    batch = tuple(dot.attrs.get(f"{name}_batch_dims", ()))
    contracting = tuple(dot.attrs.get(f"{name}_contracting_dims", ()))
    rank = dot.operands[number].shape.rank
    return Side(batch, contracting, tuple(d for d in range(rank) if d not in (*batch, *contracting)))


def size_of(dot: HloInstruction, number: int, dims: tuple[int, ...]) -> int:
    """Return how many elements some dimensions of an operand have."""
    return math.prod(dot.operands[number].shape.dims[d] for d in dims)
