"""Let a dot take an operand as it was before a transpose.

    d = f32[128,32] dot(transpose f32[128,64] (a), b), lhs_contracting_dims={1}   =>   dot(a, b), lhs_contracting_dims={0}

Where each side has at most one contracted and one free dimension, and those of the batch, which stay neighbours, are not
innermost. XLA's `TransposeFolding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.dot_dims import dot_side
from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class TransposeFolding:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "transpose-folding"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        folded: list[HloInstruction] = []
        for dot in module.instructions_of("dot"):
            for number, side in enumerate(("lhs", "rhs")):
                transpose = dot.operands[number]
                if transpose.opcode == "transpose" and _may_fold(dot, number):
                    operands = list(dot.operands)
                    operands[number] = transpose.operands[0]
                    permutation: tuple[int, ...] = transpose.attrs["dimensions"]
                    for name in (f"{side}_batch_dims", f"{side}_contracting_dims"):
                        if name in dot.attrs:
                            dims: tuple[int, ...] = dot.attrs[name]
                            dot.attrs[name] = tuple(permutation[d] for d in dims)
                    dot.operands = operands
                    folded.append(transpose)
        remove_unused(folded)


def _may_fold(dot: HloInstruction, number: int) -> bool:
    side, transpose = dot_side(dot, number), dot.operands[number]
    if len(side.contracting) > 1 or len(side.free) > 1 or not transpose.operands[0].shape.has_default_layout:
        return False
    batch = [transpose.attrs["dimensions"][d] for d in side.batch]
    are_neighbours = batch == list(range(batch[0], batch[0] + len(batch))) if batch else True
    return are_neighbours and transpose.shape.rank - 1 not in batch
