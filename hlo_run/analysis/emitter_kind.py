"""Which kind of emitter makes the kernel of a fusion? XLA's order of rules (`GetEmitterFusionKind`)."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.analysis.transpose_description import TransposeDescription, find_consistent_transpose
from hlo_run.hlo.graph import HloInstruction

# XLA has emitters of their own for these heroes. TODO: they leave this table as each gets its emitter here.
_HEROES_OF_OTHER_EMITTERS = ("reduce", "scatter", "sort", "concatenate")

Decisions = tuple[tuple[str, Decision], ...]


def choose_emitter_kind(
    roots: Sequence[HloInstruction], heroes: Sequence[HloInstruction]
) -> tuple[str, TransposeDescription | None, Decisions]:
    """Return the kind, the transpose that a `transpose` kind is about, and the verdict on each kind asked.

    The fusion instruction's own kind (kLoop, kInput) decides nothing.
    """
    decisions: list[tuple[str, Decision]] = []
    for opcode in _HEROES_OF_OTHER_EMITTERS:
        named = [hero.name for hero in heroes if hero.opcode == opcode]
        if named:
            decisions.append((opcode, no(f"{', '.join(named)}: computed element by element, without an emitter of its own")))
    transpose = find_consistent_transpose(roots, heroes)
    if isinstance(transpose, TransposeDescription):
        decisions.append(("transpose", yes(f"{transpose.instruction.name} exchanges elements in a tile")))
        return "transpose", transpose, tuple(decisions)
    decisions += [("transpose", transpose), ("loop", yes("takes every fusion"))]
    return "loop", None, tuple(decisions)
