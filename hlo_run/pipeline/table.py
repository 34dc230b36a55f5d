"""The pass tables: read them top to bottom. Nothing else decides what runs.

Row names are XLA's; a pass that stands in several rows of a table is numbered from the second on (`cse-2`; `numbered` does
it for the HLO table), and naming the pass alone in a flag means all its rows, in both tables where both have it; a
pipeline before the name chooses: `kernel/cse`. `ORDER` holds the constraints that a test
checks, each with its reason.
"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass

from xdsl.passes import ModulePass

from hlo_run.analysis.float_support import WIDE_TYPES
from hlo_run.codegen.kernel_passes.canonicalize import Canonicalize
from hlo_run.codegen.kernel_passes.convert_complex_to_standard import ConvertComplexToStandard
from hlo_run.codegen.kernel_passes.convert_float_nvidia import ConvertFloatNvidia
from hlo_run.codegen.kernel_passes.convert_index_type import ConvertIndexType
from hlo_run.codegen.kernel_passes.convert_pure_call_ops import ConvertPureCallOps
from hlo_run.codegen.kernel_passes.cse import Cse
from hlo_run.codegen.kernel_passes.erase_dead_functions import EraseDeadFunctions
from hlo_run.codegen.kernel_passes.expand_float_ops import ExpandFloatOps
from hlo_run.codegen.kernel_passes.flatten_tensors import FlattenTensors
from hlo_run.codegen.kernel_passes.inliner import Inliner
from hlo_run.codegen.kernel_passes.loop_invariant_code_motion import LoopInvariantCodeMotion
from hlo_run.codegen.kernel_passes.lower_tensors import LowerTensors
from hlo_run.codegen.kernel_passes.lower_xla_gpu_to_scf import LowerXlaGpuToScf
from hlo_run.codegen.kernel_passes.lower_xla_to_scf import LowerXlaToScf
from hlo_run.codegen.kernel_passes.merge_pointers_to_same_slice import MergePointersToSameSlice
from hlo_run.codegen.kernel_passes.optimize_loops import OptimizeLoops
from hlo_run.codegen.kernel_passes.peel_loops import PeelLoops
from hlo_run.codegen.kernel_passes.propagate_slice_indices import PropagateSliceIndices
from hlo_run.codegen.kernel_passes.scf_to_cf import ScfToCf
from hlo_run.codegen.kernel_passes.simplify_affine import SimplifyAffine
from hlo_run.codegen.kernel_passes.simplify_arith import SimplifyArith
from hlo_run.codegen.kernel_passes.symbol_dce import SymbolDce
from hlo_run.codegen.kernel_passes.unswitch_loops import UnswitchLoops
from hlo_run.codegen.kernel_passes.vectorize_loads_stores import VectorizeLoadsStores
from hlo_run.codegen.to_llvm.lower_to_llvm_gpu import LowerToLlvmGpu
from hlo_run.errors import UsageError
from hlo_run.hlo_passes.collectives.convert_async_to_sync import ConvertAsyncToSync
from hlo_run.hlo_passes.collectives.spmd_partitioning import SpmdPartitioning
from hlo_run.hlo_passes.control_flow.call_inliner import CallInliner
from hlo_run.hlo_passes.control_flow.computation_deduplicator import ComputationDeduplicator
from hlo_run.hlo_passes.control_flow.conditional_canonicalizer import ConditionalCanonicalizer
from hlo_run.hlo_passes.control_flow.flatten_call_graph import FlattenCallGraph
from hlo_run.hlo_passes.control_flow.simplify_conditional import SimplifyConditional
from hlo_run.hlo_passes.control_flow.while_loop_constant_sinking import WhileLoopConstantSinking
from hlo_run.hlo_passes.control_flow.while_loop_simplifier import WhileLoopSimplifier
from hlo_run.hlo_passes.control_flow.while_loop_trip_count_annotator import WhileLoopTripCountAnnotator
from hlo_run.hlo_passes.dots.dot_decomposer import DotDecomposer
from hlo_run.hlo_passes.dots.dot_dimension_merger import DotDimensionMerger
from hlo_run.hlo_passes.dots.dot_dimension_sorter import DotDimensionSorter
from hlo_run.hlo_passes.dots.dot_merger import DotMerger
from hlo_run.hlo_passes.dots.dot_strength_reduction import DotStrengthReduction
from hlo_run.hlo_passes.dots.transpose_folding import TransposeFolding
from hlo_run.hlo_passes.expanders.associative_scan_rewriter import AssociativeScanRewriter
from hlo_run.hlo_passes.expanders.batchnorm_expander import BatchNormExpander
from hlo_run.hlo_passes.expanders.bitcast_dtypes_expander import BitcastDtypesExpander
from hlo_run.hlo_passes.expanders.convolution_4d_expander import Convolution4dExpander
from hlo_run.hlo_passes.expanders.convolution_pred_expander import ConvolutionPredExpander
from hlo_run.hlo_passes.expanders.dynamic_padder import DynamicPadder
from hlo_run.hlo_passes.expanders.indexed.batched_gather_scatter_normalizer import BatchedGatherScatterNormalizer
from hlo_run.hlo_passes.expanders.indexed.dynamic_index_splitter import DynamicIndexSplitter
from hlo_run.hlo_passes.expanders.indexed.gather_expander import GatherExpander
from hlo_run.hlo_passes.expanders.indexed.gpu_scatter_expander import GpuScatterExpander
from hlo_run.hlo_passes.expanders.indexed.scatter_expander import ScatterExpander
from hlo_run.hlo_passes.expanders.indexed.select_and_scatter_expander import SelectAndScatterExpander
from hlo_run.hlo_passes.expanders.linalg.cholesky_expander import CholeskyExpander
from hlo_run.hlo_passes.expanders.linalg.eigh_expander import EighExpander
from hlo_run.hlo_passes.expanders.linalg.lu_expander import LuExpander
from hlo_run.hlo_passes.expanders.linalg.qr_expander import QrExpander
from hlo_run.hlo_passes.expanders.logistic_expander import LogisticExpander
from hlo_run.hlo_passes.expanders.operand_converter import OperandConverter
from hlo_run.hlo_passes.expanders.operand_upcaster import OperandUpcaster
from hlo_run.hlo_passes.expanders.ragged_dot_rewriter import RaggedDotRewriter
from hlo_run.hlo_passes.expanders.reduce_window_resizer import ReduceWindowResizer
from hlo_run.hlo_passes.expanders.reduce_window_rewriter import ReduceWindowRewriter
from hlo_run.hlo_passes.expanders.result_caster import ResultCaster
from hlo_run.hlo_passes.expanders.rng_bit_generator_expander import RngBitGeneratorExpander
from hlo_run.hlo_passes.expanders.rng_expander import RngExpander
from hlo_run.hlo_passes.expanders.scaled_dot_rewriter import ScaledDotRewriter
from hlo_run.hlo_passes.expanders.scan_expander import ScanExpander
from hlo_run.hlo_passes.expanders.sorts.comparison_expander import ComparisonExpander
from hlo_run.hlo_passes.expanders.sorts.permutation_sort_simplifier import PermutationSortSimplifier
from hlo_run.hlo_passes.expanders.sorts.stable_sort_expander import StableSortExpander
from hlo_run.hlo_passes.expanders.sorts.sub_byte_sort_expander import SubByteSortExpander
from hlo_run.hlo_passes.expanders.sorts.topk_decomposer import TopkDecomposer
from hlo_run.hlo_passes.expanders.stochastic_convert_decomposer import StochasticConvertDecomposer
from hlo_run.hlo_passes.expanders.variadic_op_splitter import VariadicOpSplitter
from hlo_run.hlo_passes.fuel import Fuel
from hlo_run.hlo_passes.fusion.copy_fusion import CopyFusion
from hlo_run.hlo_passes.fusion.fusion_wrapper import FusionWrapper
from hlo_run.hlo_passes.fusion.multi_output_fusion import MultiOutputFusion
from hlo_run.hlo_passes.fusion.nested_fusion_inliner import NestedFusionInliner
from hlo_run.hlo_passes.fusion.priority_fusion import PriorityFusion
from hlo_run.hlo_passes.fusion.rename_fusions import RenameFusions
from hlo_run.hlo_passes.fusion.sort_iota_fusion import SortIotaFusion
from hlo_run.hlo_passes.hlo_pass import HloPass, PassContext
from hlo_run.hlo_passes.layout.broadcast_canonicalizer import BroadcastCanonicalizer
from hlo_run.hlo_passes.layout.buffer_remover import BufferRemover
from hlo_run.hlo_passes.layout.layout_assignment import LayoutAssignment
from hlo_run.hlo_passes.layout.layout_normalization import LayoutNormalization
from hlo_run.hlo_passes.layout.move_copy_to_users import MoveCopyToUsers
from hlo_run.hlo_passes.layout.reshape_decomposer import ReshapeDecomposer
from hlo_run.hlo_passes.layout.sub_byte_size_setter import SubByteSizeSetter
from hlo_run.hlo_passes.library.algorithm_checker import AlgorithmChecker
from hlo_run.hlo_passes.library.conv_padding_legalization import ConvPaddingLegalization
from hlo_run.hlo_passes.library.conv_rewriter import ConvRewriter
from hlo_run.hlo_passes.library.cublas_gemm_broadcast_folding_rewriter import CublasGemmBroadcastFoldingRewriter
from hlo_run.hlo_passes.library.cublas_gemm_rewriter import CublasGemmRewriter
from hlo_run.hlo_passes.library.cublas_pad_for_gemms import CublasPadForGemms
from hlo_run.hlo_passes.library.cudnn_fused_convolution_rewriter import CudnnFusedConvolutionRewriter
from hlo_run.hlo_passes.library.cudnn_pad_for_convolutions import CudnnPadForConvolutions
from hlo_run.hlo_passes.library.cudnn_simplify_padding import CudnnSimplifyPadding
from hlo_run.hlo_passes.library.custom_fusion_inliner import CustomFusionInliner
from hlo_run.hlo_passes.library.dot_algorithm_rewriter import DotAlgorithmRewriter
from hlo_run.hlo_passes.library.dot_normalizer import DotNormalizer
from hlo_run.hlo_passes.library.sort_rewriter import SortRewriter
from hlo_run.hlo_passes.library.topk_rewriter import TopkRewriter
from hlo_run.hlo_passes.library.topk_specializer import TopkSpecializer
from hlo_run.hlo_passes.library.topk_splitter import TopkSplitter
from hlo_run.hlo_passes.library.triangular_solve_rewriter import TriangularSolveRewriter
from hlo_run.hlo_passes.memory.copy_insertion import CopyInsertion
from hlo_run.hlo_passes.memory.loop_schedule_linearizer import LoopScheduleLinearizer
from hlo_run.hlo_passes.memory.optimize_input_output_buffer_alias import OptimizeInputOutputBufferAlias
from hlo_run.hlo_passes.memory.schedule import Schedule
from hlo_run.hlo_passes.memory.special_case_copies import SpecialCaseCopies
from hlo_run.hlo_passes.observer import STAGES
from hlo_run.hlo_passes.reductions.reduce_decomposer import ReduceDecomposer
from hlo_run.hlo_passes.reductions.reduction_degenerate_dim_remover import ReductionDegenerateDimRemover
from hlo_run.hlo_passes.reductions.reduction_dimension_grouper import ReductionDimensionGrouper
from hlo_run.hlo_passes.reductions.reduction_layout_normalizer import ReductionLayoutNormalizer
from hlo_run.hlo_passes.reductions.reduction_splitter import ReductionSplitter
from hlo_run.hlo_passes.reductions.tree_reduction_rewriter import TreeReductionRewriter
from hlo_run.hlo_passes.simplifiers.algsimp import AlgebraicSimplifier
from hlo_run.hlo_passes.simplifiers.constant_folding import ConstantFolding
from hlo_run.hlo_passes.simplifiers.convert_mover import ConvertMover
from hlo_run.hlo_passes.simplifiers.cse_barrier_expander import CseBarrierExpander
from hlo_run.hlo_passes.simplifiers.dce import Dce
from hlo_run.hlo_passes.simplifiers.dynamic_dimension_simplifier import DynamicDimensionSimplifier
from hlo_run.hlo_passes.simplifiers.float_normalization import FloatNormalization
from hlo_run.hlo_passes.simplifiers.gather_simplifier import GatherSimplifier
from hlo_run.hlo_passes.simplifiers.hlo_cse import HloCse
from hlo_run.hlo_passes.simplifiers.reshape_mover import ReshapeMover
from hlo_run.hlo_passes.simplifiers.sanitize_constant_names import SanitizeConstantNames
from hlo_run.hlo_passes.simplifiers.scatter_simplifier import ScatterSimplifier
from hlo_run.hlo_passes.simplifiers.scatter_slice_simplifier import ScatterSliceSimplifier
from hlo_run.hlo_passes.simplifiers.sharding_remover import ShardingRemover
from hlo_run.hlo_passes.simplifiers.simplify_fp_conversions import SimplifyFpConversions
from hlo_run.hlo_passes.simplifiers.simplify_sorts import SimplifySorts
from hlo_run.hlo_passes.simplifiers.slice_sinker import SliceSinker
from hlo_run.hlo_passes.simplifiers.tuple_simplifier import TupleSimplifier
from hlo_run.hlo_passes.simplifiers.zero_sized_hlo_elimination import ZeroSizedHloElimination
from hlo_run.options import Options
from hlo_run.pipeline.table_rows import Group, Row, check_names, numbered, spelling
from hlo_run.target import DEFAULT_TARGET, preset

HloRow = Row[PassContext, HloPass]
HloGroup = Group[PassContext, HloPass]


@dataclass(frozen=True)
class KernelContext(PassContext):
    """What a kernel row may ask besides: the unroll factor of the kernel's emitter (4 for all but the loop emitter)."""

    max_unroll_factor: int = 4


KernelRow = Row[KernelContext, ModulePass]


# Apart from the other simplifications, since what moves converts and what moves reshapes undo each other.
_MOVE_CONVERTS = (HloRow("convert-mover", lambda c: ConvertMover()), HloRow("algsimp", lambda c: AlgebraicSimplifier()))


def _simplify_with_layouts() -> AlgebraicSimplifier:
    return AlgebraicSimplifier(sees_layouts=True, repeat=True)


def _normalize_floats(narrow: str) -> HloRow:
    return HloRow(f"float-normalization-{narrow}", lambda c: FloatNormalization(narrow), shares=True)


def _pad_for_gemms(element_type: str, multiple: int, since_sm: int = 0) -> HloRow:
    def runs(c: PassContext) -> bool:
        return c.target.sm >= since_sm

    return HloRow("cublas-pad-for-gemms", lambda c: CublasPadForGemms(element_type, multiple), when=runs, shares=True)


_FLOAT_NORMALIZATION = (
    *(_normalize_floats(narrow) for narrow in WIDE_TYPES),
    HloRow("simplify-fp-conversions", lambda c: SimplifyFpConversions(), when=lambda c: c.options.xla_allow_excess_precision),
)

# Where a row stands is XLA's order, recorded in tests/data/xla_pipelines.txt; a row of ours without one says so.
_HLO_PASSES: tuple[HloGroup, ...] = (
    HloGroup(
        "pre-spmd-partitioner",
        (
            # Ours: XLA:GPU's passes know buffers.
            HloRow("buffer-remover", lambda c: BufferRemover(), required=True),
            HloRow("flatten-call-graph", lambda c: FlattenCallGraph()),
            HloRow("call-inliner", lambda c: CallInliner()),
            HloRow("zero_sized_hlo_elimination", lambda c: ZeroSizedHloElimination()),
            HloRow("conditional-canonicalizer", lambda c: ConditionalCanonicalizer()),
            HloRow("topk-decomposer", lambda c: TopkDecomposer(takes_calls=False), shares=True),
            HloRow("topk-rewriter", lambda c: TopkRewriter()),
        ),
    ),
    HloGroup("spmd-partitioner", (HloRow("spmd-partitioning", lambda c: SpmdPartitioning()),)),
    HloGroup(
        "sharding-removal",
        (
            HloRow("sharding-remover", lambda c: ShardingRemover()),
            HloRow("dce", lambda c: Dce()),
        ),
    ),
    HloGroup(
        "optimization",
        (
            HloRow("ragged_dot_rewriter", lambda c: RaggedDotRewriter()),
            HloRow("scaled-dot-rewriter", lambda c: ScaledDotRewriter()),
            HloRow("batched_gather_scatter_normalizer", lambda c: BatchedGatherScatterNormalizer()),
            HloRow("topk-splitter", lambda c: TopkSplitter()),
            HloRow("topk-specializer", lambda c: TopkSpecializer()),
            HloRow("topk-decomposer", lambda c: TopkDecomposer(), shares=True),
            HloRow("dot_dimension_sorter", lambda c: DotDimensionSorter()),
            HloRow("dot_decomposer", lambda c: DotDecomposer()),
            HloRow("result_caster", lambda c: ResultCaster()),
            HloRow("operand_upcaster", lambda c: OperandUpcaster()),
            HloRow("operand_converter", lambda c: OperandConverter()),
            HloRow("sub-byte-size-setter", lambda c: SubByteSizeSetter()),
            HloRow("rng-expander", lambda c: RngExpander()),
            HloRow("rng-bit-generator-expander", lambda c: RngBitGeneratorExpander()),
            HloRow("permutation_sort_simplifier", lambda c: PermutationSortSimplifier()),
            HloRow("sort-rewriter", lambda c: SortRewriter()),
            HloRow("comparison-expander", lambda c: ComparisonExpander()),
            HloRow("zero_sized_hlo_elimination", lambda c: ZeroSizedHloElimination()),
            HloRow("select_and_scatter_expander", lambda c: SelectAndScatterExpander()),
            HloRow("cholesky_expander", lambda c: CholeskyExpander()),
            HloRow("gpu_scatter_expander", lambda c: GpuScatterExpander()),
            HloRow("lu_expander", lambda c: LuExpander()),
            HloRow("qr_expander", lambda c: QrExpander()),
            HloRow("eigh_expander", lambda c: EighExpander()),
            HloRow("dynamic-index-splitter", lambda c: DynamicIndexSplitter()),
            HloRow("call-inliner", lambda c: CallInliner()),
            HloRow("stochastic_convert_decomposer", lambda c: StochasticConvertDecomposer()),
            HloRow("convolution_4d_expander", lambda c: Convolution4dExpander()),
            HloRow("convolution-pred-expander", lambda c: ConvolutionPredExpander()),
            HloRow("batchnorm_expander", lambda c: BatchNormExpander()),
            HloRow("logistic-expander", lambda c: LogisticExpander()),
            HloRow("conditional-canonicalizer", lambda c: ConditionalCanonicalizer()),
            HloRow("dynamic-dimension-simplifier", lambda c: DynamicDimensionSimplifier()),
            HloRow("associative-scan-rewriter", lambda c: AssociativeScanRewriter()),
            HloRow("reduce-window-rewriter", lambda c: ReduceWindowRewriter()),
            HloRow("reduce-window-resizer", lambda c: ReduceWindowResizer()),
            HloRow("scan_expander", lambda c: ScanExpander()),
            HloRow("dynamic_padder", lambda c: DynamicPadder()),
            HloRow("sort-rewriter", lambda c: SortRewriter()),
            HloRow("stable-sort-expander", lambda c: StableSortExpander()),
            HloGroup(
                "simplification",
                (
                    HloRow("zero_sized_hlo_elimination", lambda c: ZeroSizedHloElimination()),
                    HloRow("gather_simplifier", lambda c: GatherSimplifier()),
                    HloRow("gather_expander", lambda c: GatherExpander()),
                    HloRow("scatter_simplifier", lambda c: ScatterSimplifier()),
                    HloRow("scatter_expander", lambda c: ScatterExpander()),
                    HloRow("scatter-slice-simplifier", lambda c: ScatterSliceSimplifier()),
                    HloRow("dot-strength-reduction", lambda c: DotStrengthReduction()),
                    HloRow("algsimp", lambda c: AlgebraicSimplifier()),
                    HloRow("simplify-sorts", lambda c: SimplifySorts()),
                    HloRow("tuple-simplifier", lambda c: TupleSimplifier()),
                    HloRow("while-loop-constant-sinking", lambda c: WhileLoopConstantSinking()),
                    HloRow("simplify-while-loops", lambda c: WhileLoopSimplifier()),
                    HloRow("slice-sinker", lambda c: SliceSinker()),
                    HloRow("reshape-mover", lambda c: ReshapeMover()),
                    HloRow("constant_folding", lambda c: ConstantFolding()),
                    HloRow("simplify-conditional", lambda c: SimplifyConditional()),
                    HloRow("cse", lambda c: HloCse()),
                    HloRow("dce", lambda c: Dce()),
                ),
                repeat=25,
            ),
            HloRow("dot-merger", lambda c: DotMerger()),
            HloRow("transpose-folding", lambda c: TransposeFolding()),
            HloGroup("simplification-2", _MOVE_CONVERTS, repeat=25),
            HloRow("computation-deduplicator", lambda c: ComputationDeduplicator()),
        ),
    ),
    HloGroup("collective-optimizations", (HloRow("while-loop-trip-count-annotator", lambda c: WhileLoopTripCountAnnotator()),)),
    HloGroup(
        "conv_canonicalization",
        (
            HloRow(
                "float-normalization-bf16",
                lambda c: FloatNormalization("bf16", ("convolution", "dot")),
                when=lambda c: c.target.sm < 80,
                shares=True,
            ),
            HloRow("conv-rewriter", lambda c: ConvRewriter()),
            HloRow("cudnn-fused-convolution-rewriter", lambda c: CudnnFusedConvolutionRewriter()),
            HloRow("conv-padding-legalization", lambda c: ConvPaddingLegalization()),
            HloRow("cudnn_pad_for_convolutions", lambda c: CudnnPadForConvolutions()),
            HloRow("tuple-simplifier", lambda c: TupleSimplifier()),
            HloRow("algsimp", lambda c: AlgebraicSimplifier(repeat=True)),
            HloRow("cudnn_simplify_padding", lambda c: CudnnSimplifyPadding()),
            HloGroup(
                "reshape_mover_after_conv_canonicalization",
                (HloRow("reshape-mover", lambda c: ReshapeMover()), HloRow("algsimp", lambda c: AlgebraicSimplifier())),
                repeat=25,
            ),
            HloGroup("simplify_after_conv_canonicalization", _MOVE_CONVERTS, repeat=25),
            HloRow("constant_folding", lambda c: ConstantFolding()),
        ),
    ),
    HloGroup(
        "layout assignment",
        (
            HloRow("flatten-call-graph", lambda c: FlattenCallGraph()),
            HloRow("layout-assignment", lambda c: LayoutAssignment(), settles_layouts=True),
            HloRow("sub-byte-size-setter", lambda c: SubByteSizeSetter()),
            HloRow("optimize_input_output_buffer_alias", lambda c: OptimizeInputOutputBufferAlias()),
        ),
    ),
    HloGroup(
        "layout normalization",
        (
            HloRow("reshape-decomposer", lambda c: ReshapeDecomposer()),
            HloRow("move_copy_to_users", lambda c: MoveCopyToUsers()),
            HloRow("layout_normalization", lambda c: LayoutNormalization()),
            HloRow("algsimp", lambda c: _simplify_with_layouts()),
            HloRow("broadcast_canonicalizer", lambda c: BroadcastCanonicalizer()),
        ),
    ),
    HloGroup("nvptx post-layout_assignment part 1", (HloRow("dot_dimension_merger", lambda c: DotDimensionMerger()),)),
    HloGroup(
        "hlo normalization",
        (
            HloRow("algsimp", lambda c: _simplify_with_layouts()),
            HloRow("bitcast_dtypes_expander", lambda c: BitcastDtypesExpander()),
            HloRow("transpose-folding", lambda c: TransposeFolding()),
            HloRow("reshape-decomposer", lambda c: ReshapeDecomposer()),
            HloRow("reduce-decomposer", lambda c: ReduceDecomposer()),
            HloRow("algorithm-checker", lambda c: AlgorithmChecker()),
            HloRow("dot_normalizer", lambda c: DotNormalizer()),
            _pad_for_gemms("s8", 4),
            _pad_for_gemms("f16", 8),
            _pad_for_gemms("bf16", 8, since_sm=80),
            HloRow("constant_folding", lambda c: ConstantFolding()),
            HloRow("dot-algorithm-rewriter", lambda c: DotAlgorithmRewriter()),
            HloRow("cublas-gemm-rewriter", lambda c: CublasGemmRewriter()),
            HloRow("cublas-gemm-broadcast-folding-rewriter", lambda c: CublasGemmBroadcastFoldingRewriter()),
            HloRow("reshape-decomposer", lambda c: ReshapeDecomposer()),
            HloRow("layout_normalization", lambda c: LayoutNormalization()),
            HloRow("algsimp", lambda c: _simplify_with_layouts()),
            HloRow("broadcast_canonicalizer", lambda c: BroadcastCanonicalizer()),
            HloRow("reduction-degenerate-dim-remover", lambda c: ReductionDegenerateDimRemover()),
            HloRow("reduction-layout-normalizer", lambda c: ReductionLayoutNormalizer()),
            HloRow("algsimp", lambda c: _simplify_with_layouts()),
            HloRow("cse", lambda c: HloCse(sees_layouts=True)),
            HloRow("constant_folding", lambda c: ConstantFolding()),
            HloRow("dce", lambda c: Dce()),
            HloRow("reduction-dimension-grouper", lambda c: ReductionDimensionGrouper()),
            HloRow("reduction-splitter", lambda c: ReductionSplitter()),
            HloRow("tree-reduction-rewriter", lambda c: TreeReductionRewriter()),
        ),
    ),
    HloGroup(
        "post-layout_assignment",
        (
            HloGroup("float_normalization", _FLOAT_NORMALIZATION),
            HloRow("cublas-gemm-broadcast-folding-rewriter", lambda c: CublasGemmBroadcastFoldingRewriter()),
            HloRow("reshape-decomposer", lambda c: ReshapeDecomposer()),
            HloRow("layout_normalization", lambda c: LayoutNormalization()),
            HloRow("scatter_simplifier", lambda c: ScatterSimplifier(sees_layouts=True)),
            HloGroup("float_normalization", _FLOAT_NORMALIZATION),
            HloRow("tuple-simplifier", lambda c: TupleSimplifier()),
            HloRow(
                "simplify-fp-conversions", lambda c: SimplifyFpConversions(), when=lambda c: c.options.xla_allow_excess_precision
            ),
            HloGroup(
                "remove-no-op-reduce-precision-algebraic-simplifier",
                (HloRow("algsimp", lambda c: AlgebraicSimplifier(sees_layouts=True, repeat=True, is_last=True)),),
            ),
            HloRow("cse", lambda c: HloCse(sees_layouts=True)),
        ),
    ),
    HloGroup("nvptx post-layout_assignment part 2", (HloRow("triangular-solve-rewriter", lambda c: TriangularSolveRewriter()),)),
    HloGroup("dynamic-slice", ()),
    HloGroup(
        "fusion",
        (
            # Ours: a fusion inside a fusion is fused like the instructions that it stands for.
            HloRow("nested-fusion-inliner", lambda c: NestedFusionInliner()),
            HloRow("variadic-op-splitter", lambda c: VariadicOpSplitter()),
            HloRow("sort-iota-fusion", lambda c: SortIotaFusion()),
            HloRow("priority-fusion", lambda c: PriorityFusion()),
            HloRow("cse", lambda c: HloCse(sees_layouts=True, in_fusions=True)),
            HloRow("dce", lambda c: Dce()),
            HloRow("multi_output_fusion", lambda c: MultiOutputFusion()),
            HloRow("cse", lambda c: HloCse(sees_layouts=True, in_fusions=True)),
            HloRow("dce", lambda c: Dce()),
        ),
    ),
    HloGroup(
        "post-fusion optimization",
        (
            HloRow("rename_fusions", lambda c: RenameFusions()),
            HloRow("dce", lambda c: Dce()),
            HloRow("tuple-simplifier", lambda c: TupleSimplifier()),
        ),
    ),
    HloGroup(
        "post-fusion-simplification-pipeline optimization",
        (
            HloRow("algsimp", lambda c: AlgebraicSimplifier(sees_layouts=True)),
            HloRow("computation-deduplicator", lambda c: ComputationDeduplicator(marks_fusions=True)),
        ),
    ),
)

# What a module that comes with its schedule goes through as well.
_BACKEND_PASSES: tuple[HloGroup, ...] = (
    HloGroup(
        "autotuner",
        (
            # Ours, for a module that comes with a schedule.
            HloRow("buffer-remover", lambda c: BufferRemover(), required=True),
            HloRow("nested-fusion-inliner", lambda c: NestedFusionInliner(), required=True),
            HloRow("custom-fusion-inliner", lambda c: CustomFusionInliner(), required=True),
            # Ours: what is left of sorts that no kernel can do in place, in a module that comes with a schedule, too.
            HloRow("stable-sort-expander", lambda c: StableSortExpander(), required=True),
            HloRow("sub-byte-sort-expander", lambda c: SubByteSortExpander(), required=True),
            HloRow("fusion-wrapper", lambda c: FusionWrapper(), required=True),
        ),
    ),
    HloGroup(
        "pre-scheduling-copy-insertion",
        (
            HloRow("dce", lambda c: Dce()),
            # Ours: a module that comes with a schedule may share what it calls, and nothing before has made copies.
            HloRow("flatten-call-graph", lambda c: FlattenCallGraph(), required=True),
            HloRow("special-case-copies", lambda c: SpecialCaseCopies(), required=True),
            HloRow("loop-schedule-linearizer", lambda c: LoopScheduleLinearizer()),
            HloRow("copy-insertion", lambda c: CopyInsertion(), required=True),
            HloRow("copy_fusion", lambda c: CopyFusion()),
            HloRow("sanitize-constant-names", lambda c: SanitizeConstantNames()),
        ),
    ),
    HloGroup("pre-scheduling-passes", (HloRow("schedule", lambda c: Schedule(), required=True),)),
    HloGroup(
        "post-scheduling-passes",
        (
            HloGroup(
                "async-to-sync-converter",
                (HloRow("gpu-convert-async-collectives-to-sync", lambda c: ConvertAsyncToSync(), required=True),),
            ),
            HloGroup("remat-pipeline", (HloRow("cse_barrier_expander", lambda c: CseBarrierExpander(), required=True),)),
            HloGroup("sanitize-constant-names", (HloRow("sanitize-constant-names", lambda c: SanitizeConstantNames()),)),
        ),
    ),
)

PIPELINE = numbered((*_HLO_PASSES, *_BACKEND_PASSES))
HLO_PIPELINE, BACKEND_PIPELINE = PIPELINE[: len(_HLO_PASSES)], PIPELINE[len(_HLO_PASSES) :]

# The pipeline that dumps, steps and flags know the kernel rows by.
KERNEL_GROUP = "kernel"
KERNEL_PIPELINE: tuple[KernelRow, ...] = (
    KernelRow("simplify-arith", lambda c: SimplifyArith()),
    KernelRow("canonicalize", lambda c: Canonicalize()),
    KernelRow("cse", lambda c: Cse()),
    KernelRow("erase-dead-functions", lambda c: EraseDeadFunctions()),
    KernelRow("lower-xla-to-scf", lambda c: LowerXlaToScf(), required=True),
    KernelRow("inliner", lambda c: Inliner()),
    KernelRow("canonicalize-2", lambda c: Canonicalize()),
    KernelRow("cse-2", lambda c: Cse()),
    KernelRow("peel-loops", lambda c: PeelLoops()),
    KernelRow("lower-xla-gpu-to-scf", lambda c: LowerXlaGpuToScf(), required=True),
    KernelRow("propagate-slice-indices", lambda c: PropagateSliceIndices(), required=True),
    KernelRow("simplify-arith-2", lambda c: SimplifyArith()),
    KernelRow("flatten-tensors", lambda c: FlattenTensors(), required=True),
    KernelRow("canonicalize-3", lambda c: Canonicalize()),
    KernelRow("cse-3", lambda c: Cse()),
    KernelRow("loop-invariant-code-motion", lambda c: LoopInvariantCodeMotion()),
    KernelRow("unswitch-loops", lambda c: UnswitchLoops()),
    KernelRow("loop-invariant-code-motion-2", lambda c: LoopInvariantCodeMotion()),
    KernelRow("vectorize-loads-stores", lambda c: VectorizeLoadsStores(c.target.sm)),
    KernelRow("optimize-loops", lambda c: OptimizeLoops(c.max_unroll_factor)),
    KernelRow("canonicalize-4", lambda c: Canonicalize()),
    KernelRow("cse-4", lambda c: Cse()),
    KernelRow("convert-pure-call-ops", lambda c: ConvertPureCallOps(), required=True),
    KernelRow("lower-tensors", lambda c: LowerTensors(), required=True),
    KernelRow("convert-complex-to-standard", lambda c: ConvertComplexToStandard(), required=True),
    KernelRow("merge-pointers-to-same-slice", lambda c: MergePointersToSameSlice(), required=True),
    KernelRow("canonicalize-5", lambda c: Canonicalize()),
    KernelRow("cse-5", lambda c: Cse()),
    KernelRow("simplify-arith-3", lambda c: SimplifyArith()),
    KernelRow("simplify-affine", lambda c: SimplifyAffine(), required=True),
    KernelRow("convert-index-type", lambda c: ConvertIndexType(), required=True),
    KernelRow("loop-invariant-code-motion-3", lambda c: LoopInvariantCodeMotion()),
    KernelRow("symbol-dce", lambda c: SymbolDce()),
    KernelRow("cse-6", lambda c: Cse()),
    KernelRow("convert-float-nvidia", lambda c: ConvertFloatNvidia(c.target.sm)),
    KernelRow("expand-float-ops", lambda c: ExpandFloatOps(), required=True),
    KernelRow("scf-to-cf", lambda c: ScfToCf(), required=True),
    KernelRow("lower-to-llvm-gpu", lambda c: LowerToLlvmGpu(), required=True),
)

# (row, later row, why): a test checks that the tables keep them.
ORDER: tuple[tuple[str, str, str], ...] = (
    ("special-case-copies", "schedule", "the schedule lists every instruction"),
    ("fusion-wrapper", "copy-insertion", "only fusions change operands in place"),
    ("loop-schedule-linearizer", "copy-insertion", "what is read before it is written needs no copy"),
    ("copy-insertion", "copy_fusion", "copies are fused when they are there"),
    ("copy_fusion", "schedule", "the schedule lists every instruction"),
    ("fusion-wrapper", "schedule", "the schedule lists fusions, not what they replaced"),
    ("lower-xla-gpu-to-scf", "flatten-tensors", "flatten-tensors knows scf loops, not xla_gpu.loop"),
    ("propagate-slice-indices", "flatten-tensors", "slice indices follow arguments while functions still share their order"),
    ("flatten-tensors", "vectorize-loads-stores", "the vectorizer reads one-dimensional offsets only"),
    ("unswitch-loops", "vectorize-loads-stores", "the vectorizer sees no loop body behind an scf.if"),
    ("vectorize-loads-stores", "optimize-loops", "a loop that is unrolled is no loop to vectorise"),
    ("convert-pure-call-ops", "lower-tensors", "lower-tensors knows func.call only"),
    ("lower-tensors", "convert-complex-to-standard", "compare-and-swap of complex numbers is made of their parts"),
    ("convert-complex-to-standard", "expand-float-ops", "the formulas have functions that are expanded"),
    ("lower-tensors", "convert-index-type", "offsets leave the index type when they are address arithmetic"),
    ("simplify-affine", "convert-index-type", "apply_indexing must be arithmetic before its type changes"),
    ("convert-float-nvidia", "expand-float-ops", "what the card converts is not expanded"),
    ("expand-float-ops", "scf-to-cf", "expansions use scf.if"),
    ("scf-to-cf", "lower-to-llvm-gpu", "the LLVM dialect has blocks and branches, no regions"),
)


def describe_rows() -> str:
    """Return a table of every row: group, name, whether it is required, first line of its pass's docstring."""
    ctx = KernelContext(preset(DEFAULT_TARGET), Options())
    hlo = [(names, row) for group in PIPELINE for names, row in group.all_rows()]
    rows = [(names[-1], row.name, row.required, row.make(ctx)) for names, row in hlo]
    rows += [(KERNEL_GROUP, row.name, row.required, row.make(ctx)) for row in KERNEL_PIPELINE]
    lines = [
        f"{group:<36}{name:<36}{'required' if required else '':<10}{_first_line(made)}" for group, name, required, made in rows
    ]
    return "\n".join(lines)


def _first_line(made: object) -> str:
    module = sys.modules[type(made).__module__]
    return (module.__doc__ or "").strip().splitlines()[0]


def check_row_names(options: Options) -> tuple[str, ...]:
    """Return warnings about rows to disable or to run alone that do not exist.

    Raises UsageError for a stage or a pass with fuel that does not exist, and for a required row that is disabled.
    """
    rows = [(row.name, names, row.required) for group in PIPELINE for names, row in group.all_rows()]
    passes = {spelling(row.pass_name) for group in PIPELINE for _, row in group.all_rows()}
    rows += [(row.name, (KERNEL_GROUP,), row.required) for row in KERNEL_PIPELINE]
    warnings = check_names(options, rows)
    for name in Fuel(options.fuel_limits).passes:
        if name not in passes:
            close = difflib.get_close_matches(name, sorted(passes), n=1)
            raise UsageError(f"--xla_fuel: no HLO pass is called '{name}'", hint=f"did you mean {close[0]}?" if close else "")
    stages = [*STAGES, *(name for name, _, _ in rows), *(f"{groups[-1]}/{name}" for name, groups, _ in rows)]
    if options.stage and options.stage not in stages:
        close = difflib.get_close_matches(options.stage, stages, n=1)
        hint = f"did you mean {close[0]}?" if close else f"hlo-input, {', '.join(STAGES)}, or a row of --list_passes"
        raise UsageError(f"no stage is called '{options.stage}'", hint=hint)
    return warnings
