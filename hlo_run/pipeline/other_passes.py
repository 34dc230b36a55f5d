"""Passes of XLA's that its pipeline for GPUs does not run by default: rows for `hlo-opt --passes=` alone."""

from __future__ import annotations

from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.table_rows import Group, PassAt, Row


def _row(name: str, module: str) -> Row[PassContext, HloPass]:
    return Row(name, PassAt[PassContext, HloPass](f"hlo_run.hlo_passes.{module}", {}))


OTHER_PASSES: Group[PassContext, HloPass] = Group(
    "other",
    (
        _row("alias_passthrough_params", "memory.alias_passthrough_params"),
        _row("batch-dot-simplification", "dots.batch_dot_simplification"),
        _row("bfloat16-propagation", "precision.bfloat16_propagation"),
        _row("call-marker", "control_flow.calls.call_marker"),
        _row("call-outliner", "control_flow.calls.call_outliner"),
        _row("call-parameter-cleanup", "control_flow.calls.call_parameter_cleanup"),
        _row("call-splitter", "control_flow.calls.call_splitter"),
        _row("change-op-data-type", "precision.change_op_data_type"),
        _row("collectives-schedule-linearizer", "scheduling.collectives_schedule_linearizer"),
        _row("conditional-code-motion", "control_flow.conditionals.code_motion.conditional_code_motion"),
        _row("conditional-to-select", "control_flow.conditionals.conditional_to_select"),
        _row("control-dep-remover", "scheduling.control_dep_remover"),
        _row("conv-operand-canonicalizer", "convolutions.conv_operand_canonicalizer"),
        _row("convert_operand_folding", "dots.convert_operand_folding"),
        _row("convolution-group-converter", "convolutions.convolution_group_converter"),
        _row("dead-dus-elimination", "simplifiers.dead_dus_elimination"),
        _row("defuser", "fusion.defuser"),
        _row("despecializer", "simplifiers.despecializer"),
        _row("element_type_converter", "precision.element_type_converter"),
        _row("fusion-dynamic-memcpy-rewriter", "memory.fusion_dynamic_memcpy_rewriter"),
        _row("fusion_constant_sinking", "fusion.fusion_constant_sinking"),
        _row("gemm-fusion-swap-operands", "dots.gemm_fusion_swap_operands"),
        _row("gemv-rewriter", "dots.gemv_rewriter"),
        _row("hlo-descheduler", "scheduling.descheduler"),
        _row("hlo-module-dce", "control_flow.hlo_module_dce"),
        _row("instruction-hoister", "scheduling.instruction_hoister"),
        _row("root-instruction-sinker", "scheduling.root_instruction_sinker"),
        _row("scan_loop_accumulator_input_unification", "memory.scan_loop_accumulator_input_unification"),
        _row("scan-rewriter", "scans.scan_rewriter"),
        _row("slice-hoister", "simplifiers.slice_hoister"),
        _row("unflatten-call-graph", "control_flow.calls.unflatten_call_graph"),
        _row("while-loop-concat-code-motion", "control_flow.loops.while_loop_concat_code_motion"),
        _row("while-loop-expensive-invariant-code-motion", "control_flow.loops.while_loop_expensive_invariant_code_motion"),
        _row("while-loop-fusible-sinking", "control_flow.loops.while_loop_fusible_sinking"),
        _row("while-loop-invariant-code-motion", "control_flow.loops.while_loop_invariant_code_motion"),
        _row("while_loop_unroller", "control_flow.loops.while_loop_unroller"),
    ),
)
