"""Passes of XLA's that its pipeline for GPUs does not run by default: rows for `hlo-opt --passes=` alone."""

from __future__ import annotations

from hlo_run.hlo_passes.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.table_rows import Group, PassAt, Row


def _row(name: str, module: str) -> Row[PassContext, HloPass]:
    return Row(name, PassAt[PassContext, HloPass](f"hlo_run.hlo_passes.{module}", {}))


OTHER_PASSES: Group[PassContext, HloPass] = Group(
    "other",
    (
        _row("batch-dot-simplification", "dots.batch_dot_simplification"),
        _row("call-marker", "control_flow.call_marker"),
        _row("call-outliner", "control_flow.call_outliner"),
        _row("collectives-schedule-linearizer", "asynchronous.collectives_schedule_linearizer"),
        _row("control-dep-remover", "memory.control_dep_remover"),
        _row("defuser", "fusion.defuser"),
        _row("despecializer", "simplifiers.despecializer"),
        _row("dot_dimension_normalizer", "dots.dot_dimension_normalizer"),
        _row("hlo-descheduler", "memory.descheduler"),
        _row("while_loop_unroller", "control_flow.while_loop_unroller"),
        _row("while-loop-fusible-sinking", "control_flow.while_loop_fusible_sinking"),
        _row("while-loop-invariant-code-motion", "control_flow.while_loop_invariant_code_motion"),
    ),
)
