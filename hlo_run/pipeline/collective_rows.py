"""Rows of the HLO table: passes over collectives."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, REDUCING_COLLECTIVE
from hlo_run.options import CompileOptions
from hlo_run.options.flag import names
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.hlo_rows import HloGroup, HloRow
from hlo_run.pipeline.hlo_rows import hlo_pass as _pass

COLLECTIVE_STARTS: tuple[Opcode, ...] = ("async-start", *sorted(COLLECTIVE & ASYNC_START))
_GROUPED: tuple[Opcode, ...] = ("all-gather", "all-reduce", "reduce-scatter")
_REDUCE, _GATHER = "collectives.all_reduce", "collectives.all_gather"


def _promotes(c: PassContext) -> bool:
    return c.options.xla_gpu_enable_reassociation_for_converted_ar


def _permute_threshold(c: PassContext) -> int:
    return c.options.xla_gpu_collective_permute_decomposer_threshold


def _overlaps_stages(c: PassContext) -> bool:
    return c.options.xla_gpu_experimental_pipeline_parallelism_opt_level.endswith("ENABLE")


def _cse_distance(c: PassContext) -> int:
    return c.options.xla_gpu_experimental_collective_cse_distance_threshold


def _devices_per_host(c: PassContext) -> int:
    return c.options.xla_gpu_all_reduce_blueconnect_num_devices_per_host


def _pipeliner(direction: str, opcode: Opcode, when: Callable[[PassContext], bool]) -> HloRow:
    module = f"collectives.pipelining.collective_pipeliner_{direction}"
    return HloRow(
        f"collective-pipeliner-{direction}", _pass(module, opcodes=opcode), for_opcodes=(opcode,), when=when, shares=True
    )


# In XLA's order: the second row called forward takes what the passes after the first one left.
_PIPELINERS = (
    HloRow(
        "collective-pipelining-analyzer",
        _pass("collectives.pipelining.collective_pipelining_analyzer"),
        for_opcodes=("all-reduce", "reduce-scatter", "all-gather"),
    ),
    _pipeliner("forward", "all-reduce", lambda c: c.options.pipelines_all_reduce),
    _pipeliner("backward", "all-gather", lambda c: c.options.pipelines_all_gather),
    _pipeliner("forward", "reduce-scatter", lambda c: c.options.pipelines_reduce_scatter),
)
_SENT: tuple[Opcode, ...] = ("all-gather", "all-to-all", "collective-broadcast", "collective-permute")

COLLECTIVE_OPTIMIZATIONS = HloGroup(
    "collective-optimizations",
    (
        HloRow(
            "legalize-collective-domain",
            _pass("collectives.legalize_collective_domain"),
            for_opcodes=tuple(sorted(COLLECTIVE)),
        ),
        HloRow(
            "ragged-all-to-all-canonicalizer",
            _pass("collectives.exchange.ragged_all_to_all_canonicalizer"),
            for_opcodes=("ragged-all-to-all",),
        ),
        HloRow(
            "ragged-all-to-all-decomposer",
            _pass("collectives.exchange.ragged_all_to_all_decomposer"),
            for_opcodes=("ragged-all-to-all",),
            when=lambda c: c.options.xla_gpu_unsupported_enable_ragged_all_to_all_decomposer,
        ),
        HloRow(
            "ragged-all-to-all-multi-host-decomposer",
            _pass("collectives.exchange.ragged_all_to_all_multi_host_decomposer"),
            for_opcodes=("ragged-all-to-all",),
            when=lambda c: (
                c.options.xla_gpu_unsupported_enable_ragged_all_to_all_multi_host_decomposer
                and c.options.xla_gpu_unsupported_override_fast_interconnect_slice_size > 0
            ),
        ),
        HloRow(
            "all-reduce-simplifier",
            _pass(f"{_REDUCE}.all_reduce_simplifier"),
            for_opcodes=("all-reduce", "all-gather", "reduce-scatter"),
        ),
        HloRow("all-reduce-folder", _pass(f"{_REDUCE}.all_reduce_folder"), for_opcodes=("all-reduce",)),
        HloRow("all-reduce-splitter", _pass(f"{_REDUCE}.all_reduce_splitter"), for_opcodes=("all-reduce",)),
        HloRow(
            "all-reduce-decomposer",
            _pass(f"{_REDUCE}.all_reduce_decomposer"),
            for_opcodes=("all-reduce",),
            when=lambda c: c.options.xla_gpu_unsupported_enable_all_reduce_decomposer,
        ),
        HloRow("all-gather-optimizer", _pass(f"{_GATHER}.all_gather_optimizer"), for_opcodes=("all-gather",)),
        HloRow(
            "all-gather-dynamic-slice-simplifier",
            _pass(f"{_GATHER}.all_gather_dynamic_slice_simplifier"),
            for_opcodes=("all-gather",),
        ),
        HloRow("all-gather-pad-ds-simplifier", _pass(f"{_GATHER}.all_gather_pad_ds_simplifier"), for_opcodes=("all-gather",)),
        HloRow(
            "all-gather-to-collective-permute-simplifier",
            _pass(f"{_GATHER}.all_gather_to_collective_permute_simplifier"),
            for_opcodes=("all-gather",),
        ),
        HloRow(
            "all-reduce-reassociate",
            _pass(f"{_REDUCE}.all_reduce_reassociate", promotes=_promotes),
            for_opcodes=("all-reduce",),
        ),
        HloRow("reduce-scatter-reassociate", _pass(f"{_REDUCE}.reduce_scatter_reassociate"), for_opcodes=("reduce-scatter",)),
        HloRow(
            "while-loop-all-reduce-code-motion",
            _pass("collectives.while_loop_all_reduce_code_motion"),
            for_opcodes=("while", "all-reduce"),
        ),
        HloRow("collective-quantizer", _pass("collectives.collective_quantizer"), for_opcodes=_SENT),
        HloRow("dce", _pass("simplifiers.dce")),
        *_PIPELINERS,
        HloRow(
            "collective-permute-cycle-decomposer",
            _pass(
                "collectives.exchange.collective_permute_cycle_decomposer",
                threshold_in_bytes=_permute_threshold,
            ),
            for_opcodes=("collective-permute",),
            when=lambda c: c.options.xla_gpu_enable_pipelined_p2p,
        ),
        HloRow(
            "collective-permute-decomposer",
            _pass(
                "collectives.exchange.collective_permute_decomposer",
                threshold_in_bytes=_permute_threshold,
                overlaps_stages=_overlaps_stages,
            ),
            for_opcodes=("collective-permute",),
            when=lambda c: c.options.xla_gpu_enable_pipelined_p2p or _overlaps_stages(c),
        ),
        HloRow("algsimp", _pass("simplifiers.algsimp")),
        HloRow("reduce-scatter-creator", _pass(f"{_REDUCE}.reduce_scatter_creator"), for_opcodes=("all-reduce",)),
        HloRow("all-gather-bcast-reorder", _pass(f"{_GATHER}.all_gather_broadcast_reorder"), for_opcodes=("all-gather",)),
        HloRow(
            "all-gather-remove-degenerate-dims",
            _pass(f"{_GATHER}.all_gather_remove_degenerate_dims"),
            for_opcodes=("all-gather",),
        ),
        HloRow(
            "schedule-aware-collective-cse",
            _pass(
                "collectives.schedule_aware_collective_cse",
                distance_threshold=_cse_distance,
            ),
            for_opcodes=("all-gather", "all-reduce", "collective-permute"),
            when=lambda c: c.options.xla_gpu_experimental_collective_cse_distance_threshold > 0,
        ),
        HloRow("all-reduce-promotion", _pass(f"{_REDUCE}.all_reduce_promotion"), for_opcodes=("all-reduce", "reduce-scatter")),
        HloRow("dce", _pass("simplifiers.dce")),
        HloRow(
            "while-loop-trip-count-annotator",
            _pass("control_flow.loops.while_loop_trip_count_annotator"),
            for_opcodes=("while",),
        ),
    ),
)


def _combines_by_memory(c: PassContext) -> bool:
    is_asked = c.options.xla_gpu_experimental_enable_heuristic_collective_combining
    return is_asked and c.target.compute_capability >= (8, 0)


def _passes(*modules: str) -> Callable[[PassContext], tuple[HloPass, ...]]:
    """Return the option of a row that has passes without options."""
    return lambda c: tuple(_pass(module)(c) for module in modules)


def _has_kernels(c: PassContext) -> bool:
    if not c.options.xla_gpu_unsupported_use_all_reduce_one_shot_kernel:
        return False
    words = names(c.options.xla_gpu_experimental_use_collective_kernels.upper())
    kinds = {word.lstrip("+").removeprefix("COLLECTIVE_KERNEL_") for word in words}
    changes_default = any(word[0] in "+-" for word in words)
    is_removed = bool(kinds & {"-ALL_REDUCE", "-COLLECTIVE_KERNEL_ALL_REDUCE"})
    return bool(kinds & {"ALL_REDUCE", "ALL_COLLECTIVES"}) or (changes_default and not is_removed)


_ASSIGN_DOMAINS = HloRow(
    "collective-domain-assigner",
    _pass("collectives.collective_domain_assigner"),
    for_opcodes=tuple(sorted(COLLECTIVE)),
    when=lambda c: bool(c.options.xla_gpu_collective_domain_assignment),
)

COMBINERS: tuple[HloRow, ...] = (
    HloRow(
        "collective-combiner-annotator",
        _pass(
            "collectives.combiners.collective_combiner_annotator",
            conversion=_passes("asynchronous.async_collective_creator", "asynchronous.async_collective_annotator"),
            overlap=_passes("scheduling.latency_hiding_scheduler", "asynchronous.convert_async_to_sync"),
        ),
        when=_combines_by_memory,
    ),
    HloRow("gpu-all-gather-combiner", _pass("collectives.combiners.all_gather_combiner"), for_opcodes=("all-gather",)),
    HloRow("gpu-all-reduce-combiner", _pass("collectives.combiners.all_reduce_combiner"), for_opcodes=("all-reduce",)),
    HloRow(
        "gpu-reduce-scatter-combiner", _pass("collectives.combiners.reduce_scatter_combiner"), for_opcodes=("reduce-scatter",)
    ),
    HloRow(
        "collective-permute-combiner",
        _pass("collectives.combiners.collective_permute_combiner"),
        for_opcodes=("collective-permute",),
    ),
    HloRow(
        "collective-backend-assigner",
        _pass("collectives.collective_backend_assigner"),
        for_opcodes=("all-gather", "collective-permute"),
    ),
    HloRow(
        "collective-kernel-strategy-annotator",
        _pass("collectives.collective_kernel_strategy_annotator"),
        for_opcodes=("all-reduce",),
        when=_has_kernels,
    ),
    HloRow("collective-fusion", _pass("collectives.collective_fusion"), for_opcodes=("all-reduce",), when=_has_kernels),
    _ASSIGN_DOMAINS,
    HloRow("group-collectives-by-key", _pass("collectives.group_collectives_by_key"), for_opcodes=_GROUPED),
    HloRow("all-reduce-contiguous", _pass("collectives.combiners.all_reduce_contiguous"), for_opcodes=("all-reduce",)),
    _ASSIGN_DOMAINS,
    HloRow(
        "all-reduce-blueconnect",
        _pass(f"{_REDUCE}.all_reduce_blueconnect", devices_per_host=_devices_per_host),
        for_opcodes=("all-reduce",),
        when=lambda c: c.options.xla_gpu_all_reduce_blueconnect_num_devices_per_host > 0,
    ),
)

GATHER_MAJOR_DIMENSION = HloRow(
    "all-gather-major-dimension-rewriter",
    _pass(f"{_GATHER}.all_gather_major_dimension_rewriter"),
    for_opcodes=("all-gather",),
)

SUB_BYTE_COLLECTIVES = HloRow(
    "sub-byte-collective-normalization", _pass("collectives.sub_byte_collective_normalization"), for_opcodes=_SENT
)

# Ours: XLA:GPU refuses these reducers after its last pass.
GENERAL_REDUCTIONS = HloRow(
    "general-reduction-decomposer",
    _pass(f"{_REDUCE}.general_reduction_decomposer"),
    for_opcodes=tuple(sorted(REDUCING_COLLECTIVE)),
    required=True,
)

MESSAGE_ORDER = HloGroup(
    "p2p-schedule-preparation",
    (
        HloRow(
            "latency-hiding-scheduler-preparation",
            _pass("scheduling.latency_hiding_scheduler_preparation"),
            for_opcodes=("send", "recv"),
            when=lambda c: c.options.xla_gpu_enable_pipelined_p2p,
        ),
    ),
)
"""What runs before the scheduler: the order of messages."""


def _estimates(name: str, when: Callable[[CompileOptions], object]) -> HloRow:
    return HloRow(
        name,
        _pass(f"costs.{name.replace('-', '_')}"),
        when=lambda c: c.options.xla_gpu_collect_cost_model_stats and bool(when(c.options)),
    )


ESTIMATES = (
    _estimates("gpu_cost_model_stats_collection", lambda options: True),
    _estimates("sol-gpu-cost-model-stats-collection", lambda options: options.xla_gpu_enable_analytical_sol_latency_estimator),
    _estimates("collective-perf-table-stats-collection", lambda options: options.xla_gpu_experimental_collective_perf_table_path),
    _estimates("matmul-perf-table-stats-collection", lambda options: options.xla_gpu_experimental_matmul_perf_table_path),
)
"""What writes the times that models expect into backend_configs."""
