"""The view of a dot, ragged-dot or scaled-dot: the batch, contracting and free dimensions of its operands."""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction


class Side(Struct, frozen=True):
    """The dimension numbers of one operand. `batch` and `contracting` are in the order of the attributes, `free` ascends."""

    batch: tuple[int, ...]
    contracting: tuple[int, ...]
    free: tuple[int, ...]


class Dot(Struct, frozen=True):
    """The dimensions of both operands, the precision that each may have, and the algorithm (`unset` without one)."""

    lhs: Side
    rhs: Side
    precision: tuple[str, ...]
    algorithm: str

    @staticmethod
    def of(dot: HloInstruction) -> Dot:
        """Return the view of a dot, ragged-dot or scaled-dot."""
        return Dot(dot_side(dot, 0), dot_side(dot, 1), dot.operand_precision, dot.algorithm)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both operands' dimensions."""
        return self.lhs, self.rhs

    @property
    def contracting_pairs(self) -> list[tuple[int, int]]:
        """(dimension of operand 0, dimension of operand 1) that the dot sums over, in the order of the attributes."""
        return list(zip(self.lhs.contracting, self.rhs.contracting, strict=True))


def dot_side(dot: HloInstruction, number: int) -> Side:
    """Return the dimensions of operand 0 (lhs) or 1 (rhs) of a dot."""
    if number:
        batch, contracting = dot.rhs_batch_dims, dot.rhs_contracting_dims
    else:
        batch, contracting = dot.lhs_batch_dims, dot.lhs_contracting_dims
    rank = dot.operands[number].shape.rank
    return Side(batch, contracting, tuple([d for d in range(rank) if d not in batch and d not in contracting]))


def size_of(dot: HloInstruction, number: int, dims: tuple[int, ...]) -> int:
    """Return the product of the sizes of dimensions `dims` of operand `number`."""
    sizes = dot.operands[number].shape.dims
    return math.prod([sizes[d] for d in dims])
