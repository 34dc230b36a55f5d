"""Which kind of emitter makes the kernel of a fusion? XLA's order of rules (`GetEmitterFusionKind`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.analysis.tiling.reduction_description import ReductionDescription, find_reduction
from hlo_run.analysis.tiling.row_fusion import RowFusion
from hlo_run.analysis.tiling.slice_roots import judge_slices
from hlo_run.analysis.tiling.transpose_description import TransposeDescription, find_consistent_transpose
from hlo_run.hlo.graph import HloInstruction

MAX_CONCATENATE_OPERANDS = 4
# A kind, what finds its description, and what a yes says of the hero.
_DESCRIBED = (
    ("reduction", find_reduction, "is shared by threads"),
    ("transpose", find_consistent_transpose, "exchanges elements in a tile"),
)


@dataclass(frozen=True, slots=True)
class EmitterKind:
    """The kind, what it is about, and the verdict on each kind asked, up to the one taken."""

    name: str
    description: ReductionDescription | TransposeDescription | RowFusion | None
    decisions: tuple[tuple[str, Decision], ...]


def choose_emitter_kind(roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]) -> EmitterKind:
    """Return the kind for these roots and their heroes; the fusion instruction's own kind (kLoop, kInput) decides nothing."""
    decisions: list[tuple[str, Decision]] = []
    for name, find, why in _DESCRIBED:
        found = find(roots, heroes)
        if not isinstance(found, Decision):
            decisions.append((name, yes(f"{found.instruction.name} {why}")))
            return EmitterKind(name, found, tuple(decisions))
        decisions.append((name, found))
    for name, judge in _JUDGED:
        decision = judge(roots, heroes)
        decisions.append((name, decision))
        if decision:
            return EmitterKind(name, None, tuple(decisions))
    decisions.append(("loop", yes("takes every fusion")))
    return EmitterKind("loop", None, tuple(decisions))


def _judge_input_slices(roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]) -> Decision:
    del heroes
    return judge_slices(roots)


def _judge_scatter(roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]) -> Decision:
    del heroes
    scatter = next((root for root in roots if root.opcode == "scatter"), None)
    if scatter is None:
        return no("no root is a scatter")
    return yes(f"{scatter.name} changes its operand") if len(roots) == 1 else no(f"{scatter.name} is not the only root")


def _judge_concatenate(roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]) -> Decision:
    (hero, *others) = heroes
    if hero.opcode != "concatenate":
        return no("no hero is a concatenate")
    if others:
        return no(f"{hero.name} is not the only hero")
    if len(hero.operands) > MAX_CONCATENATE_OPERANDS:
        return no(f"{hero.name} has {len(hero.operands)} operands, a loop over each would be too many")
    if roots[0].shape.is_tuple:
        return no("the root is a tuple")
    return yes(f"a loop for each operand of {hero.name}")


def _judge_sort(roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]) -> Decision:
    del heroes
    (root, *others) = roots
    if root.opcode != "sort" or others:
        return no("the root is no sort")
    return yes(f"{root.name} exchanges pairs, step by step")


_JUDGED = (
    ("input slices", _judge_input_slices),
    ("scatter", _judge_scatter),
    ("sort", _judge_sort),
    ("concatenate", _judge_concatenate),
)
