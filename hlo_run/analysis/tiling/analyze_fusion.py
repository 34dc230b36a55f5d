"""Analyses a fusion: its roots, heroes and emitter kind. Mirrors XLA's `HloFusionAnalysis`."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.decision import Decision, yes
from hlo_run.analysis.fusion_owner import is_triton_fusion
from hlo_run.analysis.tiling.emitter_kind import EmitterKind, choose_emitter_kind
from hlo_run.analysis.tiling.fusion_analysis import NO_WIDTH_BITS, FusionAnalysis
from hlo_run.analysis.tiling.fusion_roots_and_heroes import find_heroes, fusion_roots
from hlo_run.analysis.tiling.row_fusion import find_row_fusion
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec


def analyze(fusion: HloInstruction, target: TargetSpec) -> FusionAnalysis:
    """Return the analysis of `fusion`, a fusion instruction with its shapes filled in. Mirrors XLA's `HloFusionAnalysis`."""
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
    """Return the analysis of a fusion of these instructions, with emitter kind `kind`."""
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
    if not is_triton_fusion(fusion):
        return choose_emitter_kind(roots, heroes)
    rows = find_row_fusion(roots)
    if not isinstance(rows, Decision):
        return EmitterKind("rows", rows, (("rows", yes(f"{rows.instruction.name} and what follows go along rows")),))
    other = choose_emitter_kind(roots, heroes)
    return EmitterKind(other.name, other.description, (("rows", rows), *other.decisions))


def _smallest_bits(shapes: Sequence[Shape]) -> int:
    return min((shape.dtype.bits for shape in shapes if shape.is_array), default=NO_WIDTH_BITS)
