"""Fold a transpose of an operand into the dimension numbers of its dot.

    d = f32[128,32] dot(transpose f32[128,64] (a), b), lhs_contracting_dims={1}   =>   dot(a, b), lhs_contracting_dims={0}

The free dimensions must keep their order, the dimensions of each kind must be adjacent, and the batch not innermost, so that
a library reads the operand as matrices. XLA's `TransposeFolding`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.dot_dims import dot_side
from hlo_run.analysis.matrix_product import lies_as_matrices
from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


class TransposeFolding(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "transpose-folding"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        folded: list[HloInstruction] = []
        for dot in module.instructions_of("dot"):
            if min(operand.shape.rank for operand in dot.operands) < 2:
                continue
            numbers = [number for number in range(2) if dot.operands[number].opcode == "transpose" and _may_fold(dot, number)]
            operands = list(dot.operands)
            for number in numbers:
                folded.append(operands[number])
                _renumber(dot, ("lhs", "rhs")[number], operands[number].dimensions)
                operands[number] = operands[number].operands[0]
            if numbers:
                # XLA makes a new dot, which takes a number and then the name of the old one.
                module.unique_instruction_name("dot")
                dot.operands = operands
        remove_unused(folded)


def _renumber(dot: HloInstruction, side: str, permutation: tuple[int, ...]) -> None:
    for name in (f"{side}_batch_dims", f"{side}_contracting_dims"):
        if name in dot.attrs:
            dims: tuple[int, ...] = dot.attrs[name]
            dot.attrs[name] = tuple(permutation[d] for d in dims)


def _may_fold(dot: HloInstruction, number: int) -> bool:
    """Return True if the result's dimension order stays, and a library can read the untransposed operand as matrices."""
    side, transpose = dot_side(dot, number), dot.operands[number]
    permutation = transpose.dimensions
    batch, contracting, free = ([permutation[d] for d in dims] for dims in (side.batch, side.contracting, side.free))
    if free != sorted(free) or list(permutation) == sorted(permutation):
        return False
    return lies_as_matrices(transpose.operands[0].shape.minor_to_major, batch, contracting, free)
