"""Rows of the HLO table: from the copies that buffers need to the last pass over a scheduled module."""

from __future__ import annotations

from hlo_run.hlo.opcodes.traits import ASYNC_START, CONTROL_FLOW
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.collective_rows import COLLECTIVE_STARTS, ESTIMATES, MESSAGE_ORDER
from hlo_run.pipeline.hlo_rows import HloGroup, HloRow
from hlo_run.pipeline.hlo_rows import hlo_pass as _pass


def _copied_bytes(c: PassContext) -> int:
    return c.options.xla_gpu_async_copy_min_bytes


def _overlaps_launches(c: PassContext) -> bool:
    return c.target.sm >= 90 and c.options.xla_gpu_enable_pdl and c.options.xla_gpu_enable_pdl_launch


SCHEDULING: tuple[HloGroup, ...] = (
    HloGroup(
        "propagate-call-metadata",
        (HloRow("propagate-call-metadata", _pass("control_flow.calls.propagate_call_metadata"), for_opcodes=("call",)),),
    ),
    HloGroup(
        "pre-scheduling-copy-insertion",
        (
            HloRow("dce", _pass("simplifiers.dce")),
            # Ours: instructions of a module that comes with a schedule may share a computation, and no earlier row copied it.
            HloRow(
                "flatten-call-graph",
                _pass("control_flow.calls.flatten_call_graph", control_flow_only=True),
                for_opcodes=tuple(sorted(CONTROL_FLOW)),
                required=True,
            ),
            HloRow("loop-schedule-linearizer", _pass("scheduling.loop_schedule_linearizer")),
            HloRow("copy-insertion", _pass("memory.copy_insertion"), required=True),
            HloRow("constant-fill-copy-rewriter", _pass("memory.constant_fill_copy_rewriter"), for_opcodes=("copy",)),
            HloRow("copy_fusion", _pass("fusion.copy_fusion")),
            HloRow("sanitize-constant-names", _pass("simplifiers.sanitize_constant_names")),
        ),
    ),
    HloGroup(
        "pre-scheduling-passes",
        (
            HloRow(
                "dynamic-slice-copy-fusion-async-wrapper",
                _pass("memory.dynamic_slice_copy_fusion_async_wrapper"),
                for_opcodes=("fusion",),
            ),
            HloRow(
                "gpu-copy-async-wrapper",
                _pass("memory.gpu_copy_async_wrapper", min_bytes=_copied_bytes),
                for_opcodes=("copy",),
                when=lambda c: c.options.xla_gpu_async_copy_min_bytes != -1,
            ),
            *ESTIMATES,
            MESSAGE_ORDER,
            HloRow("schedule", _pass("scheduling.schedule"), required=True),
        ),
    ),
    HloGroup(
        "latency-hiding-scheduler",
        (
            HloRow("legalize-scheduling-annotations", _pass("scheduling.legalize_scheduling_annotations")),
            HloRow(
                "pgle-accuracy-checker",
                _pass("scheduling.pgle_accuracy_checker"),
                when=lambda c: c.options.xla_gpu_pgle_accuracy_checker.upper().endswith("ERROR"),
            ),
            HloRow(
                "latency-hiding-scheduler",
                _pass("scheduling.latency_hiding_scheduler"),
                for_opcodes=("custom-call", *sorted(ASYNC_START)),
            ),
            HloRow("scheduling-instruction-annotator", _pass("scheduling.scheduling_instruction_annotator")),
        ),
    ),
    HloGroup(
        "scheduled-gpu-module",
        # Ours: in XLA no pass, but a step after this pipeline.
        (HloRow("renew-copies", _pass("memory.renew_copies")),),
    ),
    HloGroup(
        "post-scheduling-passes",
        (
            HloGroup(
                "async-to-sync-converter",
                (
                    HloRow(
                        "gpu-convert-async-collectives-to-sync",
                        _pass("asynchronous.convert_async_to_sync"),
                        for_opcodes=COLLECTIVE_STARTS,
                        required=True,
                    ),
                ),
            ),
            HloGroup(
                "remat-pipeline",
                (
                    HloRow(
                        "stream-attribute-annotator",
                        _pass("asynchronous.stream_attribute_annotator"),
                        for_opcodes=("fusion", "copy-start"),
                    ),
                    HloRow(
                        "cse_barrier_expander",
                        _pass("simplifiers.cse_barrier_expander"),
                        for_opcodes=("opt-barrier",),
                        required=True,
                    ),
                    HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), for_opcodes=("get-tuple-element", "tuple")),
                ),
            ),
            HloGroup(
                "fusion-dispatch-pipeline",
                (
                    HloRow(
                        "fusion-block-level-rewriter",
                        _pass("fusion.fusion_block_level_rewriter"),
                        for_opcodes=("fusion",),
                        when=lambda c: c.options.block_level_fusions,
                    ),
                ),
            ),
            HloGroup(
                "sanitize-constant-names",
                (HloRow("sanitize-constant-names", _pass("simplifiers.sanitize_constant_names")),),
            ),
            HloGroup(
                "pdl-launch-annotation",
                (
                    HloRow(
                        "pdl-launch-annotation",
                        _pass("asynchronous.pdl_launch_annotation"),
                        for_opcodes=("fusion",),
                        when=_overlaps_launches,
                    ),
                ),
            ),
        ),
    ),
)
