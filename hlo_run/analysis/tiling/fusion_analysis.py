"""Defines the analysis of a fusion: roots, heroes, element widths, and the chosen emitter with the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.decision import Decision
from hlo_run.analysis.tiling.reduction_description import ReductionDescription
from hlo_run.analysis.tiling.row_fusion import RowFusion
from hlo_run.analysis.tiling.transpose_description import TransposeDescription
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec

# The width of a side without arrays, which limits nothing.
NO_WIDTH_BITS = 2**31 - 1


class FusionAnalysis(Struct, frozen=True):
    """The analysis of one fusion.

    `heroes[i]` is the hero of `roots[i]`; for the loop kind the heroes are the roots. `description` describes the reduction or
    transpose of those kinds. `decisions` has the verdict on each emitter kind in order, up to the chosen one. Widths are those of
    array parameters and roots. `instructions` are those in the fusion. For a planned fusion, `fusion` is the instruction that
    would absorb the others.
    """

    fusion: HloInstruction
    target: TargetSpec
    roots: tuple[HloInstruction, ...]
    heroes: tuple[HloInstruction, ...]
    kind: str
    description: ReductionDescription | TransposeDescription | RowFusion | None
    decisions: tuple[tuple[str, Decision], ...]
    smallest_input_bits: int
    smallest_output_bits: int
    instructions: Sequence[HloInstruction]
    parameter_shapes: Sequence[Shape]
    part: int = 0

    def decision(self, kind: str) -> Decision | None:
        """Return the verdict on `kind`; None if an earlier kind was chosen."""
        return dict(self.decisions).get(kind)

    def __str__(self) -> str:
        lines = [f"fusion {self.fusion.name}: {self.kind} emitter"]
        for root, hero in zip(self.roots, self.heroes, strict=True):
            lines.append(f"  root {root.name} = {root.shape}, hero {'itself' if hero is root else hero.name}")
        if self.description is not None:
            lines.append(f"  {self.kind} {self.description.instruction.name}: {self.description}")
        lines += [f"  {kind}? {decision}" for kind, decision in self.decisions]
        return "\n".join(lines)
