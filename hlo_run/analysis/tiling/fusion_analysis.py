"""What is known about a fusion before code is made for it: roots, heroes, widths, and which emitter suits it and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_run.analysis.decision import Decision, yes
from hlo_run.analysis.tiling.emitter_kind import EmitterKind, choose_emitter_kind
from hlo_run.analysis.tiling.fusion_owner import is_tritons
from hlo_run.analysis.tiling.fusion_roots_and_heroes import find_heroes, fusion_roots
from hlo_run.analysis.tiling.reduction_description import ReductionDescription
from hlo_run.analysis.tiling.row_fusion import RowFusion, find_row_fusion
from hlo_run.analysis.tiling.transpose_description import TransposeDescription
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec

# No array on that side: no width limits anything.
NO_WIDTH_BITS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FusionAnalysis:
    """The answers for one fusion.

    `heroes[i]` is the hero of `roots[i]`; for the loop kind the heroes are the roots. `description` says what a reduction or
    transpose kind is about. `decisions` holds the verdict on each emitter kind in the order in which they were asked, up to
    the one taken. Widths are of array parameters and roots. `instructions` is what the fusion holds; for a fusion that is only
    thought of, `fusion` is what would take the rest in.
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
        """Return the verdict on `kind`, None if it was never asked."""
        return dict(self.decisions).get(kind)

    def __str__(self) -> str:
        lines = [f"fusion {self.fusion.name}: {self.kind} emitter"]
        for root, hero in zip(self.roots, self.heroes, strict=True):
            lines.append(f"  root {root.name} = {root.shape}, hero {'itself' if hero is root else hero.name}")
        if self.description is not None:
            lines.append(f"  {self.kind} {self.description.instruction.name}: {self.description}")
        lines += [f"  {kind}? {decision}" for kind, decision in self.decisions]
        return "\n".join(lines)


def analyze(fusion: HloInstruction, target: TargetSpec) -> FusionAnalysis:
    """Return what is known about `fusion` (opcode fusion, shapes filled in). Mirrors XLA's `HloFusionAnalysis`."""
    roots = fusion_roots(fusion)
    heroes = find_heroes(roots)
    kind = _choose_kind(fusion, roots, heroes)
    body = fusion.fused_computation
    return analysis_of(fusion, target, roots, heroes, kind, body.instructions, [p.shape for p in body.parameters])


def analysis_of(
    fusion: HloInstruction,
    target: TargetSpec,
    roots: tuple[HloInstruction, ...],
    heroes: tuple[HloInstruction, ...],
    kind: EmitterKind,
    instructions: Sequence[HloInstruction],
    parameter_shapes: Sequence[Shape],
) -> FusionAnalysis:
    """Return the record of a fusion of these instructions, for which `kind` was chosen."""
    return FusionAnalysis(
        fusion=fusion,
        target=target,
        roots=roots,
        heroes=roots if kind.name in ("loop", "rows") else heroes,
        kind=kind.name,
        description=kind.description,
        decisions=kind.decisions,
        smallest_input_bits=_smallest_bits(parameter_shapes),
        smallest_output_bits=_smallest_bits([root.shape for root in roots]),
        instructions=instructions,
        parameter_shapes=parameter_shapes,
    )


def _choose_kind(fusion: HloInstruction, roots: tuple[HloInstruction, ...], heroes: tuple[HloInstruction, ...]) -> EmitterKind:
    if not is_tritons(fusion):
        return choose_emitter_kind(roots, heroes)
    rows = find_row_fusion(roots)
    if not isinstance(rows, Decision):
        return EmitterKind("rows", rows, (("rows", yes(f"{rows.instruction.name} and what follows go along rows")),))
    other = choose_emitter_kind(roots, heroes)
    return EmitterKind(other.name, other.description, (("rows", rows), *other.decisions))


def _smallest_bits(shapes: Sequence[Shape]) -> int:
    return min((shape.dtype.bits for shape in shapes if shape.is_array), default=NO_WIDTH_BITS)
