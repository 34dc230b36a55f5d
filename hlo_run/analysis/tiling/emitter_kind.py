"""Chooses the emitter kind of a fusion by XLA's rules in XLA's order (`GetEmitterFusionKind`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.analysis.tiling.reduction_description import ReductionDescription, find_reduction
from hlo_run.analysis.tiling.reduction_tiling import tile_reduction
from hlo_run.analysis.tiling.row_fusion import RowFusion
from hlo_run.analysis.tiling.scatter_tiling import tile_scatter
from hlo_run.analysis.tiling.transpose_description import TransposeDescription, find_consistent_transpose
from hlo_run.analysis.tiling.transpose_tiling import tiling_of_heroes
from hlo_run.hlo.graph import HloInstruction

MAX_CONCATENATE_OPERANDS = 4
Description: TypeAlias = "ReductionDescription | TransposeDescription | RowFusion"
_Heroes: TypeAlias = "Sequence[HloInstruction]"


class KindRow(Struct, frozen=True):
    """A kind of emitter. `judge` examines the roots and their heroes. A description or a yes selects the kind.

    `why` is the reason about the instruction of the description. `launch` returns the launch of a kernel for kinds whose launch
    the fusion passes compute in the same way as the emitter. Kinds with a loop's launch have no `launch`.
    """

    name: str
    judge: Callable[[_Heroes, _Heroes], Description | Decision]
    why: str = ""
    launch: Callable[[FusionAnalysis], LaunchDimensions] | None = None


class EmitterKind(Struct, frozen=True):
    """The chosen kind, its description, and the verdicts on all kinds up to it."""

    name: str
    description: Description | None
    decisions: tuple[tuple[str, Decision], ...]


def choose_emitter_kind(roots: _Heroes, heroes: _Heroes) -> EmitterKind:
    """Return the kind for these roots and their heroes. The kind attribute of the fusion (kLoop, kInput) has no influence."""
    decisions: list[tuple[str, Decision]] = []
    for row in KINDS:
        found = row.judge(roots, heroes)
        decision = found if isinstance(found, Decision) else yes(f"{found.instruction.name} {row.why}")
        decisions.append((row.name, decision))
        if decision:
            return EmitterKind(row.name, None if isinstance(found, Decision) else found, tuple(decisions))
    raise AssertionError("the last kind takes every fusion")


def _judge_scatter(roots: _Heroes, heroes: _Heroes) -> Decision:
    del heroes
    scatter = next((root for root in roots if root.opcode == "scatter"), None)
    if scatter is None:
        return no("no root is a scatter")
    return yes(f"{scatter.name} changes its operand") if len(roots) == 1 else no(f"{scatter.name} is not the only root")


def _judge_concatenate(roots: _Heroes, heroes: _Heroes) -> Decision:
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


def _judge_sort(roots: _Heroes, heroes: _Heroes) -> Decision:
    del heroes
    (root, *others) = roots
    if root.opcode != "sort" or others:
        return no("the root is not a sort")
    return yes(f"{root.name} exchanges pairs, step by step")


def _judge_loop(roots: _Heroes, heroes: _Heroes) -> Decision:
    del roots, heroes
    return yes("takes every fusion")


def _launch_reduction(analysis: FusionAnalysis) -> LaunchDimensions:
    assert isinstance(analysis.description, ReductionDescription), "a reduction kind has a description"
    return tile_reduction(analysis.description, analysis, 1).launch


def _launch_transpose(analysis: FusionAnalysis) -> LaunchDimensions:
    assert isinstance(analysis.description, TransposeDescription), "a transpose kind has a description"
    return tiling_of_heroes(analysis.description, analysis.heroes, analysis.target).launch


def _launch_scatter(analysis: FusionAnalysis) -> LaunchDimensions:
    return tile_scatter(analysis).launch


# In XLA's order. `codegen/emitters/table.py` maps each kind to its emitter.
KINDS = (
    KindRow("reduction", find_reduction, "is shared by threads", _launch_reduction),
    KindRow("transpose", find_consistent_transpose, "exchanges elements in a tile", _launch_transpose),
    KindRow("scatter", _judge_scatter, launch=_launch_scatter),
    KindRow("sort", _judge_sort),
    KindRow("concatenate", _judge_concatenate),
    KindRow("loop", _judge_loop),
)
LAUNCHES = {row.name: row.launch for row in KINDS if row.launch is not None}
