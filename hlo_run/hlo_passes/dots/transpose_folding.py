"""Fold a transpose of an operand into the dimension numbers of its dot or convolution.

    d = f32[128,32] dot(transpose f32[128,64] (a), b), lhs_contracting_dims={1}   =>   dot(a, b), lhs_contracting_dims={0}
    c = convolution(transpose (a), dimensions={0,2,3,1}, b), dim_labels=b01f_01io->b01f   =>   .., dim_labels=bf01_01io->b01f

In a dot the free dimensions must keep their order, the dimensions of each kind must be adjacent, and the batch not innermost,
so that a library reads the operand as matrices. XLA's `TransposeFolding`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.matrix_product import lies_as_matrices
from hlo_run.hlo.edit import copy_instruction, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import OperandLabels
from hlo_run.hlo.views.dots import dot_side
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class TransposeFolding(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "transpose-folding"

    dots: bool = True
    convolutions: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        found = {dot: _foldable(dot) for dot in module.instructions_of("dot")} if self.dots else {}
        if self.convolutions:
            found |= {convolution: _transposed(convolution) for convolution in module.instructions_of("convolution")}
        replace_each(module, [user for user, numbers in found.items() if numbers], lambda user: _folded(user, found[user]))


def _transposed(user: HloInstruction) -> list[int]:
    return [number for number in range(2) if user.operands[number].opcode == "transpose"]


def _foldable(dot: HloInstruction) -> list[int]:
    if min(operand.shape.rank for operand in dot.operands) < 2:
        return []
    return [number for number in _transposed(dot) if _may_fold(dot, number)]


def _folded(user: HloInstruction, numbers: list[int]) -> HloInstruction:
    """Add the instruction that reads what these operands transpose, after all others, as XLA does."""
    computation, transposes = user.parent, user.operands
    assert computation is not None, "the instruction is in a computation"
    operands = [operand.operands[0] if number in numbers else operand for number, operand in enumerate(transposes)]
    new = computation.add(copy_instruction(user, operands, name=user.opcode))
    for number in numbers:
        if user.opcode == "dot":
            _renumber(new, number, transposes[number].dimensions)
        else:
            _relabel(new, ("input", "kernel")[number], transposes[number].dimensions)
    return new


def _relabel(convolution: HloInstruction, side: str, permutation: tuple[int, ...]) -> None:
    old: OperandLabels = getattr(convolution.dim_labels, side)
    spatial = tuple(permutation[d] for d in old.spatial_dims)
    new = OperandLabels(old.letters, permutation[old.first_dim], permutation[old.second_dim], spatial)
    convolution.attrs["dim_labels"] = replace(convolution.dim_labels, **{side: new})


def _renumber(dot: HloInstruction, number: int, permutation: tuple[int, ...]) -> None:
    name, side = ("lhs", "rhs")[number], dot_side(dot, number)
    for kind, dims in (("batch", side.batch), ("contracting", side.contracting)):
        if f"{name}_{kind}_dims" in dot.attrs:
            dot.attrs[f"{name}_{kind}_dims"] = tuple(permutation[d] for d in dims)


def _may_fold(dot: HloInstruction, number: int) -> bool:
    """Return True if the result's dimension order stays, and a library can read the untransposed operand as matrices."""
    side, transpose = dot_side(dot, number), dot.operands[number]
    permutation = transpose.dimensions
    batch, contracting, free = ([permutation[d] for d in dims] for dims in (side.batch, side.contracting, side.free))
    if free != sorted(free) or list(permutation) == sorted(permutation):
        return False
    return lies_as_matrices(transpose.operands[0].shape.minor_to_major, batch, contracting, free)
