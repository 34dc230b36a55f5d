"""Defines the table of HLO passes. It, `hlo_rows.py` and `kernel_table.py` alone decide what runs and in which order.

Rows have XLA's names. The second row of a pass has the number 2, and so on (`cse-2`; `numbered` sets the numbers of the HLO
table). In a flag, the name of a pass means all its rows in both tables. A pipeline before the name selects its rows:
`kernel/cse`. `ORDER` lists constraints on the order with their reasons, which a test checks.
"""

from __future__ import annotations

from hlo_run.analysis.block_level.support import supports
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.collective_rows import (
    COLLECTIVE_OPTIMIZATIONS,
    COLLECTIVE_STARTS,
    COMBINERS,
    GATHER_MAJOR_DIMENSION,
    GENERAL_REDUCTIONS,
    SUB_BYTE_COLLECTIVES,
)
from hlo_run.pipeline.hlo_rows import BEFORE_OPTIMIZATION, FLOAT_NORMALIZATION, LOOP_UNROLLING, HloGroup, HloRow
from hlo_run.pipeline.hlo_rows import hlo_pass as _pass
from hlo_run.pipeline.scheduling_rows import SCHEDULING
from hlo_run.pipeline.table_rows import numbered

_COLLECTIVES = ("fusion", *sorted(COLLECTIVE - ASYNC_START))
_SIMPLIFY_WITH_LAYOUTS = _pass("simplifiers.algsimp", sees_layouts=True, repeat=True)
_SIMPLIFY_SCATTERS = HloRow(
    "scatter_simplifier", _pass("indexed.scatter_simplifier", sees_layouts=True), for_opcodes=("scatter",)
)
_FOLD_BROADCASTS = _pass("dots.gemm.cublas_gemm_broadcast_folding_rewriter")
_FOLD_CONVOLUTIONS = _pass("dots.transpose_folding", dots=False)

# Separate from the other simplifications: passes that move converts and passes that move reshapes undo each other.
_MOVE_CONVERTS = (
    HloRow("convert-mover", _pass("precision.convert_mover"), for_opcodes=("convert",)),
    HloRow("algsimp", _pass("simplifiers.algsimp"), mixes_layouts=True),
)


def _pad_for_gemms(element_type: str, multiple: int, since_sm: int = 0) -> HloRow:
    def runs(c: PassContext) -> bool:
        return c.target.sm >= since_sm

    return HloRow(
        "cublas-pad-for-gemms",
        _pass("dots.gemm.cublas_pad_for_gemms", element_type=element_type, multiple=multiple),
        for_opcodes=("dot",),
        when=runs,
        shares=True,
    )


def _has_streams(c: PassContext) -> bool:
    return c.options.xla_gpu_multi_streamed_windowed_einsum


def _fuses_dots(c: PassContext) -> bool:
    return c.options.block_level_fusions and c.options.xla_gpu_enable_triton_gemm and supports(c.target)


def _simplifiers_of_loops(c: PassContext) -> tuple[HloPass, ...]:
    first = _pass("simplifiers.algsimp"), _pass("simplifiers.constant_folding")
    return tuple(one(c) for one in (*first, _pass("simplifiers.hlo_cse", sees_layouts=True, only_scalars=True)))


def _native_fusion(c: PassContext) -> tuple[HloPass, ...]:
    """Return the passes that make native kernels of normalisations, with which `triton-softmax-rewriter` compares its own."""
    reductions = ("reduction_dimension_grouper", "reduction_splitter", "tree_reduction_rewriter")
    merge, clean = _pass("simplifiers.hlo_cse", sees_layouts=True, in_fusions=True), _pass("simplifiers.dce")
    passes = (
        *(_pass(f"reductions.{name}") for name in reductions),
        *(_pass("expanders.variadic_op_splitter"), _pass("sorts.sort_iota_fusion")),
        *(_pass("fusion.priority_fusion"), merge, clean, _pass("fusion.multi_output_fusion"), merge, clean),
    )
    return tuple(one(c) for one in passes)


# The order is XLA's, recorded in tests/data/xla_pipelines.txt. `Ours` marks a row that XLA's pipeline lacks.
_HLO_PASSES: tuple[HloGroup, ...] = (
    *BEFORE_OPTIMIZATION,
    HloGroup(
        "optimization",
        (
            HloRow("ragged_dot_rewriter", _pass("dots.ragged_dot_rewriter"), for_opcodes=("ragged-dot",)),
            HloRow("scaled-dot-rewriter", _pass("dots.scaled_dot_rewriter"), for_opcodes=("scaled-dot",)),
            HloRow(
                "batched_gather_scatter_normalizer",
                _pass("indexed.batched_gather_scatter_normalizer"),
                for_opcodes=("gather", "scatter"),
            ),
            HloRow(
                "windowed-einsum-handler",
                _pass("dots.windowed_einsum.windowed_einsum_handler", simplifiers=_simplifiers_of_loops),
                for_opcodes=("all-to-all", "while"),
                when=_has_streams,
            ),
            HloRow("topk-splitter", _pass("sorts.topk_splitter"), for_opcodes=("custom-call",)),
            HloRow("topk-specializer", _pass("sorts.topk_specializer"), for_opcodes=("custom-call",)),
            HloRow("topk-decomposer", _pass("sorts.topk_decomposer"), for_opcodes=("topk", "custom-call"), shares=True),
            HloRow("dot_dimension_sorter", _pass("dots.dot_dimension_sorter"), for_opcodes=("dot",)),
            HloRow("dot_decomposer", _pass("dots.dot_decomposer"), for_opcodes=("dot",)),
            HloRow("result_caster", _pass("precision.result_caster"), for_opcodes=("dot", "convolution")),
            HloRow("operand_upcaster", _pass("precision.operand_upcaster"), for_opcodes=("dot", "convolution")),
            HloRow("operand_converter", _pass("precision.operand_converter"), for_opcodes=("dot",)),
            HloRow("sub-byte-size-setter", _pass("layout.sub_byte_size_setter")),
            HloRow("rng-expander", _pass("rng.rng_expander"), for_opcodes=("rng",)),
            HloRow("rng-bit-generator-expander", _pass("rng.rng_bit_generator_expander"), for_opcodes=("rng-bit-generator",)),
            HloRow("permutation_sort_simplifier", _pass("sorts.permutation_sort_simplifier"), for_opcodes=("sort",)),
            HloRow("sort-rewriter", _pass("sorts.sort_rewriter"), for_opcodes=("sort",)),
            HloRow("comparison-expander", _pass("expanders.comparison_expander"), for_opcodes=("compare",)),
            HloRow(
                "select_and_scatter_expander",
                _pass("indexed.select_and_scatter_expander"),
                for_opcodes=("select-and-scatter",),
            ),
            HloRow("cholesky_expander", _pass("linalg.cholesky_expander"), for_opcodes=("cholesky",)),
            HloRow(
                "scatter_determinism_expander",
                _pass("indexed.scatter_determinism_expander"),
                for_opcodes=("scatter",),
                when=lambda c: c.options.orders_scatters,
            ),
            HloRow("gpu_scatter_expander", _pass("indexed.gpu_scatter_expander"), for_opcodes=("scatter",)),
            HloRow("lu_expander", _pass("linalg.lu_expander"), for_opcodes=("custom-call",)),
            HloRow("qr_expander", _pass("linalg.qr_expander"), for_opcodes=("custom-call",)),
            HloRow("eigh_expander", _pass("linalg.eigh_expander"), for_opcodes=("custom-call",)),
            HloRow(
                "dynamic-index-splitter",
                _pass("indexed.dynamic_index_splitter"),
                for_opcodes=("dynamic-slice", "dynamic-update-slice"),
            ),
            HloRow("call-inliner", _pass("control_flow.calls.call_inliner"), for_opcodes=("call",)),
            HloRow(
                "async-collective-custom-call-rewriter",
                _pass("asynchronous.async_collective_custom_call_rewriter"),
                for_opcodes=("custom-call",),
            ),
            HloRow(
                "stochastic_convert_decomposer",
                _pass("precision.stochastic_convert_decomposer"),
                for_opcodes=("stochastic-convert",),
            ),
            HloRow("convolution_4d_expander", _pass("convolutions.convolution_4d_expander"), for_opcodes=("convolution",)),
            HloRow("convolution-pred-expander", _pass("convolutions.convolution_pred_expander"), for_opcodes=("convolution",)),
            HloRow(
                "batchnorm_expander",
                _pass("expanders.batchnorm_expander"),
                for_opcodes=("batch-norm-training", "batch-norm-inference", "batch-norm-grad"),
            ),
            HloRow("logistic-expander", _pass("expanders.logistic_expander"), for_opcodes=("logistic",)),
            HloRow(
                "conditional-canonicalizer",
                _pass("control_flow.conditionals.conditional_canonicalizer"),
                for_opcodes=("conditional",),
            ),
            HloRow("dynamic-dimension-simplifier", _pass("dynamic.dynamic_dimension_simplifier")),
            HloRow("associative-scan-rewriter", _pass("scans.associative_scan_rewriter"), for_opcodes=("scan",)),
            HloRow("reduce-window-rewriter", _pass("reductions.reduce_window_rewriter"), for_opcodes=("reduce-window",)),
            HloRow("reduce-window-resizer", _pass("reductions.reduce_window_resizer"), for_opcodes=("reduce-window",)),
            HloRow("scan_expander", _pass("scans.scan_expander"), for_opcodes=("scan",)),
            HloRow("call-inliner", _pass("control_flow.calls.call_inliner"), for_opcodes=("call",)),
            HloRow("dynamic_padder", _pass("dynamic.dynamic_padder")),
            HloRow("sort-rewriter", _pass("sorts.sort_rewriter"), for_opcodes=("sort",)),
            HloRow("stable-sort-expander", _pass("sorts.stable_sort_expander"), for_opcodes=("sort",)),
            HloGroup(
                "simplification",
                (
                    HloRow("zero_sized_hlo_elimination", _pass("simplifiers.zero_sized_hlo_elimination")),
                    HloRow("gather_simplifier", _pass("indexed.gather_simplifier"), for_opcodes=("gather",)),
                    HloRow("gather_expander", _pass("indexed.gather_expander"), for_opcodes=("gather",)),
                    HloRow("scatter_simplifier", _pass("indexed.scatter_simplifier"), for_opcodes=("scatter",)),
                    HloRow("scatter_expander", _pass("indexed.scatter_expander"), for_opcodes=("scatter",)),
                    HloRow("scatter-slice-simplifier", _pass("indexed.scatter_slice_simplifier"), for_opcodes=("scatter",)),
                    HloRow(
                        "dot-strength-reduction",
                        _pass("dots.dot_strength_reduction"),
                        for_opcodes=("dot",),
                        mixes_layouts=True,
                    ),
                    HloRow(
                        "degenerate-dimension-rewriter",
                        _pass("simplifiers.degenerate_dimension_rewriter"),
                        for_opcodes=(
                            "broadcast",
                            "concatenate",
                            "constant",
                            "gather",
                            "iota",
                            "reduce",
                            "reduce-window",
                            "reshape",
                        ),
                        mixes_layouts=True,
                    ),
                    HloRow("algsimp", _pass("simplifiers.algsimp"), mixes_layouts=True),
                    HloRow("simplify-sorts", _pass("sorts.simplify_sorts"), for_opcodes=("sort",)),
                    HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), for_opcodes=("get-tuple-element", "tuple")),
                    HloRow(
                        "while-loop-constant-sinking",
                        _pass("control_flow.loops.while_loop_constant_sinking"),
                        for_opcodes=("while",),
                    ),
                    HloRow("simplify-while-loops", _pass("control_flow.loops.while_loop_simplifier"), for_opcodes=("while",)),
                    HloRow("slice-sinker", _pass("simplifiers.slice_sinker"), for_opcodes=("slice",)),
                    HloRow(
                        "reshape-mover",
                        _pass("simplifiers.reshape_mover"),
                        for_opcodes=("reshape", "transpose"),
                        mixes_layouts=True,
                    ),
                    HloRow("constant_folding", _pass("simplifiers.constant_folding")),
                    HloRow(
                        "simplify-conditional",
                        _pass("control_flow.conditionals.simplify_conditional"),
                        for_opcodes=("conditional",),
                    ),
                    HloRow("transpose-folding", _FOLD_CONVOLUTIONS, for_opcodes=("convolution",), shares=True),
                    HloRow("cse", _pass("simplifiers.hlo_cse")),
                    HloRow("dce", _pass("simplifiers.dce")),
                ),
                repeat=25,
            ),
            HloRow("dot-merger", _pass("dots.dot_merger"), for_opcodes=("dot",), mixes_layouts=True),
            HloRow(
                "dot_dimension_normalizer",
                _pass("dots.dot_dimension_normalizer", normalize_noncontracting_dimensions=True),
                for_opcodes=("dot",),
                mixes_layouts=True,
            ),
            HloRow("transpose-folding", _pass("dots.transpose_folding"), for_opcodes=("dot", "convolution")),
            HloGroup("simplification-2", _MOVE_CONVERTS, repeat=25),
            HloRow("computation-deduplicator", _pass("control_flow.computation_deduplicator")),
        ),
    ),
    COLLECTIVE_OPTIMIZATIONS,
    HloGroup(
        "conv_canonicalization",
        (
            HloRow(
                "float-normalization-bf16",
                _pass("precision.float_normalization", narrow="bf16", opcodes=("convolution", "dot")),
                when=lambda c: c.target.sm < 80,
                shares=True,
            ),
            HloRow("conv-rewriter", _pass("convolutions.conv_rewriter"), for_opcodes=("convolution",)),
            HloRow("cudnn-fused-convolution-rewriter", _pass("convolutions.cudnn_fused_convolution_rewriter")),
            HloRow("conv-padding-legalization", _pass("convolutions.conv_padding_legalization"), for_opcodes=("custom-call",)),
            HloRow("cudnn_pad_for_convolutions", _pass("convolutions.cudnn_pad_for_convolutions"), for_opcodes=("custom-call",)),
            HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), for_opcodes=("get-tuple-element", "tuple")),
            HloRow("algsimp", _pass("simplifiers.algsimp", repeat=True), mixes_layouts=True),
            HloRow("cudnn_simplify_padding", _pass("convolutions.cudnn_simplify_padding"), for_opcodes=("pad",)),
            HloGroup(
                "reshape_mover_after_conv_canonicalization",
                (
                    HloRow(
                        "reshape-mover",
                        _pass("simplifiers.reshape_mover"),
                        for_opcodes=("reshape", "transpose"),
                        mixes_layouts=True,
                    ),
                    HloRow("algsimp", _pass("simplifiers.algsimp"), mixes_layouts=True),
                ),
                repeat=25,
            ),
            HloGroup("simplify_after_conv_canonicalization", _MOVE_CONVERTS, repeat=25),
            HloRow("constant_folding", _pass("simplifiers.constant_folding")),
        ),
    ),
    HloGroup(
        "layout assignment",
        (
            HloRow("flatten-call-graph", _pass("control_flow.calls.flatten_call_graph")),
            HloRow("layout-assignment", _pass("layout.layout_assignment"), settles_layouts=True),
            HloRow("sub-byte-size-setter", _pass("layout.sub_byte_size_setter")),
            HloRow("optimize_input_output_buffer_alias", _pass("memory.optimize_input_output_buffer_alias")),
            GATHER_MAJOR_DIMENSION,
        ),
    ),
    HloGroup(
        "layout normalization",
        (
            HloRow("reshape-decomposer", _pass("layout.reshape_decomposer"), for_opcodes=("reshape",)),
            HloRow("move_copy_to_users", _pass("layout.move_copy_to_users")),
            HloRow("layout_normalization", _pass("layout.layout_normalization")),
            HloRow("algsimp", _SIMPLIFY_WITH_LAYOUTS),
            HloRow(
                "broadcast_canonicalizer",
                _pass("layout.broadcast_canonicalizer"),
                settles_broadcasts=True,
                for_opcodes=("broadcast",),
            ),
            _SIMPLIFY_SCATTERS,
        ),
    ),
    HloGroup(
        "nvptx post-layout_assignment part 1",
        (
            HloRow("block-scaling-rewriter", _pass("dots.block_scaling_rewriter"), for_opcodes=("custom-call",)),
            HloRow("dot_dimension_merger", _pass("dots.dot_dimension_merger"), for_opcodes=("dot",)),
        ),
    ),
    HloGroup(
        "hlo normalization",
        (
            HloRow("algsimp", _SIMPLIFY_WITH_LAYOUTS),
            HloRow("bitcast_dtypes_expander", _pass("expanders.bitcast_dtypes_expander"), for_opcodes=("bitcast-convert",)),
            HloRow("transpose-folding", _pass("dots.transpose_folding", convolutions=False), for_opcodes=("dot",)),
            HloRow("reshape-decomposer", _pass("layout.reshape_decomposer"), for_opcodes=("reshape",)),
            HloRow("reduce-decomposer", _pass("reductions.reduce_decomposer"), for_opcodes=("reduce",)),
            HloRow("algorithm-checker", _pass("dots.algorithm_checker"), for_opcodes=("dot",)),
            HloRow("dot_normalizer", _pass("dots.dot_normalizer"), for_opcodes=("dot",)),
            HloRow("dot_dimension_normalizer", _pass("dots.dot_dimension_normalizer"), for_opcodes=("dot",), when=_fuses_dots),
            HloRow("gemv-rewriter", _pass("dots.gemv_rewriter"), for_opcodes=("dot",), when=_fuses_dots),
            HloRow("splitk-rewriter", _pass("dots.block_level.splitk_rewriter"), for_opcodes=("dot",), when=_fuses_dots),
            HloRow(
                "triton-gemm-rewriter", _pass("dots.block_level.triton_gemm_rewriter"), for_opcodes=("dot",), when=_fuses_dots
            ),
            HloRow(
                "gemm-fusion-swap-operands", _pass("dots.gemm_fusion_swap_operands"), for_opcodes=("fusion",), when=_fuses_dots
            ),
            _pad_for_gemms("s8", 4),
            _pad_for_gemms("f16", 8),
            _pad_for_gemms("bf16", 8, since_sm=80),
            HloRow("constant_folding", _pass("simplifiers.constant_folding")),
            HloRow("dot-algorithm-rewriter", _pass("dots.dot_algorithm_rewriter"), for_opcodes=("dot",)),
            HloRow("cublas-gemm-rewriter", _pass("dots.gemm.cublas_gemm_rewriter"), for_opcodes=("dot", "custom-call")),
            HloRow("cublas-gemm-broadcast-folding-rewriter", _FOLD_BROADCASTS, for_opcodes=("custom-call",)),
            HloRow("reshape-decomposer", _pass("layout.reshape_decomposer"), for_opcodes=("reshape",)),
            HloRow("layout_normalization", _pass("layout.layout_normalization")),
            HloRow("algsimp", _SIMPLIFY_WITH_LAYOUTS),
            _SIMPLIFY_SCATTERS,
            HloRow("broadcast_canonicalizer", _pass("layout.broadcast_canonicalizer"), for_opcodes=("broadcast",)),
            HloRow(
                "reduction-degenerate-dim-remover",
                _pass("reductions.reduction_degenerate_dim_remover"),
                for_opcodes=("reduce",),
            ),
            HloRow("reduction-layout-normalizer", _pass("reductions.reduction_layout_normalizer"), for_opcodes=("reduce",)),
            HloRow("algsimp", _SIMPLIFY_WITH_LAYOUTS),
            HloRow("cse", _pass("simplifiers.hlo_cse", sees_layouts=True)),
            HloRow("constant_folding", _pass("simplifiers.constant_folding")),
            HloRow("dce", _pass("simplifiers.dce")),
            HloRow(
                "triton-softmax-rewriter",
                _pass("fusion.triton_softmax_rewriter", native=_native_fusion),
                for_opcodes=("reduce",),
                when=lambda c: c.options.block_level_fusions,
            ),
            HloRow("reduction-dimension-grouper", _pass("reductions.reduction_dimension_grouper"), for_opcodes=("reduce",)),
            HloRow("reduction-splitter", _pass("reductions.reduction_splitter"), for_opcodes=("reduce",)),
            HloRow("tree-reduction-rewriter", _pass("reductions.tree_reduction_rewriter"), for_opcodes=("reduce",)),
            HloRow(
                "estimate-cub-sort-scratch-size",
                _pass("sorts.estimate_cub_sort_scratch_size"),
                for_opcodes=("custom-call",),
            ),
            HloRow(
                "estimate-cub-scan-scratch-size",
                _pass("scans.estimate_cub_scan_scratch_size"),
                for_opcodes=("custom-call",),
            ),
        ),
    ),
    HloGroup(
        "post-layout_assignment",
        (
            SUB_BYTE_COLLECTIVES,
            HloGroup("float_normalization", FLOAT_NORMALIZATION),
            HloRow("cublas-gemm-broadcast-folding-rewriter", _FOLD_BROADCASTS, for_opcodes=("custom-call",)),
            HloRow("reshape-decomposer", _pass("layout.reshape_decomposer"), for_opcodes=("reshape",)),
            HloRow("layout_normalization", _pass("layout.layout_normalization")),
            _SIMPLIFY_SCATTERS,
            # Without host memory, all that XLA's pass of this name does is the CSE at its end.
            HloRow("host-offloader", _pass("simplifiers.hlo_cse", sees_layouts=True)),
            HloGroup("float_normalization", FLOAT_NORMALIZATION),
            HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), for_opcodes=("get-tuple-element", "tuple")),
            HloRow("algsimp", _SIMPLIFY_WITH_LAYOUTS),
            HloRow(
                "simplify-fp-conversions",
                _pass("precision.simplify_fp_conversions"),
                for_opcodes=("convert",),
                when=lambda c: c.options.xla_allow_excess_precision,
            ),
            HloGroup(
                "remove-no-op-reduce-precision-algebraic-simplifier",
                (HloRow("algsimp", _pass("simplifiers.algsimp", sees_layouts=True, repeat=True, is_last=True)),),
            ),
            HloRow("cse", _pass("simplifiers.hlo_cse", sees_layouts=True)),
        ),
    ),
    HloGroup(
        "nvptx post-layout_assignment part 2",
        (HloRow("triangular-solve-rewriter", _pass("linalg.triangular_solve_rewriter"), for_opcodes=("triangular-solve",)),),
    ),
    HloGroup(
        "dynamic-slice",
        (
            HloRow(
                "dynamic-slice-annotator",
                _pass("memory.dynamic_slice_annotator"),
                for_opcodes=("dynamic-slice", "dynamic-update-slice"),
            ),
            HloRow(
                "dynamic-slice-fusion-rewriter-v2",
                _pass("memory.dynamic_slice_fusion_rewriter_v2"),
                for_opcodes=("custom-call",),
                when=lambda c: c.options.xla_gpu_enable_dynamic_slice_fusion,
            ),
        ),
    ),
    HloGroup("pre-fusion", (HloRow("rename-instructions", _pass("fusion.rename_instructions")),)),
    HloGroup(
        "fusion",
        (
            # Ours: the instructions of a fusion inside a fusion are fused like others.
            HloRow("nested-fusion-inliner", _pass("fusion.nested_fusion_inliner"), for_opcodes=("fusion",)),
            HloRow("variadic-op-splitter", _pass("expanders.variadic_op_splitter"), for_opcodes=("concatenate",)),
            HloRow("sort-iota-fusion", _pass("sorts.sort_iota_fusion")),
            HloRow("priority-fusion", _pass("fusion.priority_fusion")),
            HloRow("cse", _pass("simplifiers.hlo_cse", sees_layouts=True, in_fusions=True)),
            HloRow("dce", _pass("simplifiers.dce")),
            HloRow("multi_output_fusion", _pass("fusion.multi_output_fusion")),
            HloRow("cse", _pass("simplifiers.hlo_cse", sees_layouts=True, in_fusions=True)),
            HloRow("dce", _pass("simplifiers.dce")),
        ),
    ),
    HloGroup(
        "post-fusion optimization",
        (
            HloRow("rename_fusions", _pass("fusion.rename_fusions"), for_opcodes=("fusion",)),
            HloRow(
                "dus-accumulator-zero-init-elimination",
                _pass("memory.dus_accumulator_zero_init_elimination"),
                for_opcodes=("while",),
                when=lambda c: c.options.xla_gpu_enable_dus_accumulator_zero_init_elimination,
            ),
            HloRow("dce", _pass("simplifiers.dce")),
            HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), for_opcodes=("get-tuple-element", "tuple")),
            *COMBINERS,
            *LOOP_UNROLLING,
        ),
    ),
    HloGroup(
        "async-collective-conversion",
        (
            GENERAL_REDUCTIONS,
            HloRow("async-collective-creator", _pass("asynchronous.async_collective_creator"), for_opcodes=_COLLECTIVES),
            HloRow("async-collective-annotator", _pass("asynchronous.async_collective_annotator"), for_opcodes=COLLECTIVE_STARTS),
        ),
    ),
    HloGroup(
        "post-fusion-simplification-pipeline optimization",
        (
            HloRow("algsimp", _pass("simplifiers.algsimp", sees_layouts=True)),
            HloRow("computation-deduplicator", _pass("control_flow.computation_deduplicator", marks_fusions=True)),
            HloRow(
                "stream-attribute-annotator",
                _pass("asynchronous.stream_attribute_annotator"),
                for_opcodes=("fusion", "copy-start"),
                when=_has_streams,
            ),
            HloRow(
                "async-stream-attribute-wrapper",
                _pass("asynchronous.async_stream_attribute_wrapper"),
                when=_has_streams,
            ),
            HloRow(
                "explicit-stream-annotation-async-wrapper",
                _pass("asynchronous.explicit_stream_annotation_async_wrapper"),
                for_opcodes=("call",),
                when=lambda c: c.options.xla_gpu_experimental_stream_annotation,
            ),
            HloRow(
                "explicit-collectives-group-async-wrapper",
                _pass("asynchronous.explicit_collectives_group_async_wrapper"),
                for_opcodes=("call",),
            ),
        ),
    ),
)

# Rows that also run on a module that comes with its schedule.
_BACKEND_PASSES: tuple[HloGroup, ...] = (
    HloGroup(
        "async-wrapper",
        (
            HloRow(
                "async-wrapper",
                _pass("asynchronous.async_wrapper"),
                for_opcodes=("custom-call",),
                when=lambda c: c.options.xla_gpu_async_dot,
            ),
        ),
    ),
    HloGroup(
        "fusion-wrapper",
        (
            # Ours, for a module that comes with a schedule.
            HloRow("buffer-remover", _pass("layout.buffer_remover"), required=True),
            GENERAL_REDUCTIONS,
            HloRow("nested-fusion-inliner", _pass("fusion.nested_fusion_inliner"), for_opcodes=("fusion",), required=True),
            HloRow("custom-fusion-inliner", _pass("fusion.custom_fusion_inliner"), required=True),
            # Ours: expands the remaining sorts that no kernel can do in place, also in a module that comes with a schedule.
            HloRow("stable-sort-expander", _pass("sorts.stable_sort_expander"), for_opcodes=("sort",), required=True),
            HloRow("sub-byte-sort-expander", _pass("sorts.sub_byte_sort_expander"), for_opcodes=("sort",), required=True),
            HloRow("fusion-wrapper", _pass("fusion.fusion_wrapper"), required=True),
        ),
    ),
    HloGroup(
        "config-assigner",
        (
            HloRow("config-assigner", _pass("library.config_assigner"), for_opcodes=("custom-call", "fusion")),
            HloRow("convert_triton_gemm_config", _pass("dots.block_level.convert_triton_gemm_config"), for_opcodes=("fusion",)),
        ),
    ),
    *SCHEDULING,
)

PIPELINE = numbered((*_HLO_PASSES, *_BACKEND_PASSES))
BACKEND_PIPELINE = PIPELINE[len(_HLO_PASSES) :]
# What XLA runs before it schedules: copies are in `hlo-opt --stage=hlo`.
HLO_PIPELINE = PIPELINE[: 1 + next(n for n, each in enumerate(PIPELINE) if each.name == "pre-scheduling-copy-insertion")]


def pipeline_until(last: str) -> tuple[HloGroup, ...]:
    """Return the groups up to the group of this name, with which XLA ends if a flag says so."""
    return PIPELINE[: 1 + next(number for number, group in enumerate(PIPELINE) if group.name == last)]


# (row, later row, reason). A test checks the tables against them.
ORDER: tuple[tuple[str, str, str], ...] = (
    ("fusion-wrapper", "copy-insertion", "only fusions change operands in place"),
    ("loop-schedule-linearizer", "copy-insertion", "a value that is read before it is overwritten needs no copy"),
    ("copy-insertion", "copy_fusion", "copy-insertion makes the copies to fuse"),
    ("copy_fusion", "schedule", "the schedule lists every instruction"),
    ("fusion-wrapper", "schedule", "the schedule lists fusions, not what they replaced"),
    ("lower-xla-gpu-to-scf", "flatten-tensors", "flatten-tensors knows scf loops, not xla_gpu.loop"),
    ("propagate-slice-indices", "flatten-tensors", "slice indices follow arguments while functions still share their order"),
    ("flatten-tensors", "vectorize-loads-stores", "the vectorizer reads one-dimensional offsets only"),
    ("unswitch-loops", "vectorize-loads-stores", "the vectorizer sees no loop body behind an scf.if"),
    ("vectorize-loads-stores", "optimize-loops", "an unrolled loop cannot be vectorised"),
    ("convert-pure-call-ops", "lower-tensors", "lower-tensors knows func.call only"),
    ("lower-tensors", "convert-complex-to-standard", "lower-tensors compares and swaps complex numbers by their parts"),
    ("convert-complex-to-standard", "expand-float-ops", "the formulas contain functions that expand-float-ops expands"),
    ("lower-tensors", "convert-index-type", "offsets leave the index type when they are address arithmetic"),
    ("simplify-affine", "convert-index-type", "apply_indexing must be arithmetic before its type changes"),
    ("convert-float-nvidia", "expand-float-ops", "conversions that the GPU has are not expanded"),
    ("expand-float-ops", "scf-to-cf", "expansions use scf.if"),
    ("scf-to-cf", "lower-to-llvm-gpu", "the LLVM dialect has blocks and branches, no regions"),
)
