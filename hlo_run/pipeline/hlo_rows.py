"""Rows of the HLO table: rows that divide a module, up to XLA's pipeline `optimization`, of narrow floats, of unrolling."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.analysis.float_support import WIDE_TYPES
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.table_rows import Group, PassAt, Row

HloRow = Row[PassContext, HloPass]
HloGroup = Group[PassContext, HloPass]


def hlo_pass(module: str, **options: object) -> PassAt[PassContext, HloPass]:
    """Return the pass of a module in `hlo_passes`, with options of its constructor."""
    return PassAt(f"hlo_run.hlo_passes.{module}", options)


def sharding_pass(module: str) -> PassAt[PassContext, HloPass]:
    """Return the pass of a module in `sharding`."""
    return PassAt(f"hlo_run.sharding.{module}", {})


_pass = hlo_pass


def _sends_less(c: PassContext) -> bool:
    return c.options.xla_enable_enzyme_comms_opt


def _normalize_floats(narrow: str) -> HloRow:
    return HloRow(f"float-normalization-{narrow}", _pass("precision.float_normalization", narrow=narrow), shares=True)


FLOAT_NORMALIZATION = (
    *(_normalize_floats(narrow) for narrow in WIDE_TYPES),
    HloRow(
        "simplify-fp-conversions",
        _pass("precision.simplify_fp_conversions"),
        for_opcodes=("convert",),
        when=lambda c: c.options.xla_allow_excess_precision,
    ),
)


BEFORE_OPTIMIZATION: tuple[HloGroup, ...] = (
    HloGroup(
        "pre-spmd-partitioner",
        (
            # Ours: XLA:GPU's passes handle buffers.
            HloRow("buffer-remover", _pass("layout.buffer_remover"), required=True),
            HloRow("composite-rewriter", _pass("dots.composite_rewriter"), for_opcodes=("call",)),
            HloRow("flatten-call-graph", _pass("control_flow.calls.flatten_call_graph")),
            HloRow("call-inliner", _pass("control_flow.calls.call_inliner", early=True), for_opcodes=("call",)),
            HloRow("zero_sized_hlo_elimination", _pass("simplifiers.zero_sized_hlo_elimination")),
            HloRow("algsimp", _pass("simplifiers.algsimp")),
            HloRow(
                "conditional-canonicalizer",
                _pass("control_flow.conditionals.conditional_canonicalizer"),
                for_opcodes=("conditional",),
            ),
            HloRow(
                "topk-decomposer",
                _pass("sorts.topk_decomposer", takes_calls=False),
                for_opcodes=("topk",),
                shares=True,
            ),
            HloRow("topk-rewriter", _pass("sorts.topk_rewriter"), for_opcodes=("sort",)),
        ),
    ),
    HloGroup(
        "spmd-partitioner",
        (
            HloGroup(
                "spmd-simplify",
                (
                    HloRow("algsimp", _pass("simplifiers.algsimp")),
                    HloRow("simplify-sorts", _pass("sorts.simplify_sorts"), for_opcodes=("sort",)),
                    HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), for_opcodes=("get-tuple-element", "tuple")),
                    HloRow("scatter_expander", _pass("indexed.scatter_expander"), for_opcodes=("scatter",)),
                    HloRow("gather_expander", _pass("indexed.gather_expander"), for_opcodes=("gather",)),
                    HloRow(
                        "while-loop-constant-sinking",
                        _pass("control_flow.loops.while_loop_constant_sinking"),
                        for_opcodes=("while",),
                    ),
                    HloRow("simplify-while-loops", _pass("control_flow.loops.while_loop_simplifier"), for_opcodes=("while",)),
                    HloRow("reshape-mover", _pass("simplifiers.reshape_mover"), for_opcodes=("reshape", "transpose")),
                    HloRow("algsimp", _pass("simplifiers.algsimp", repeat=True)),
                    HloRow("constant_folding", _pass("simplifiers.constant_folding")),
                    HloRow(
                        "simplify-conditional",
                        _pass("control_flow.conditionals.simplify_conditional"),
                        for_opcodes=("conditional",),
                    ),
                    HloRow("dce", _pass("simplifiers.dce", for_gspmd=True)),
                ),
                repeat=25,
            ),
            HloRow("hlo-constant-splitter", _pass("simplifiers.hlo_constant_splitter"), for_opcodes=("constant", "iota")),
            HloRow("shardy-xla", sharding_pass("shardy.shardy_xla")),
            HloRow("sharding-propagation", sharding_pass("propagation.sharding_propagation")),
            HloRow("spmd-partitioning", sharding_pass("partitioning.spmd_partitioning")),
            HloRow("recognize-reduce-window", _pass("reductions.recognize_reduce_window"), when=_sends_less),
            HloRow(
                "collective-permute-cse",
                _pass("collectives.exchange.collective_permute_cse"),
                for_opcodes=("collective-permute",),
                when=_sends_less,
            ),
            # Bodies of Shardy's manual computations; XLA runs `call-inliner` here for them alone.
            HloRow(
                "call-inliner",
                _pass("control_flow.calls.call_inliner", only="inlinable_manual_computation_body"),
                for_opcodes=("call",),
            ),
            HloRow(
                "collective-permute-motion",
                _pass("collectives.exchange.collective_permute_motion"),
                for_opcodes=("collective-permute",),
            ),
        ),
        for_partitions=True,
    ),
    HloGroup(
        "sharding-removal",
        (
            HloRow("sharding-remover", sharding_pass("propagation.sharding_remover"), for_opcodes=("custom-call",)),
            HloRow("dce", _pass("simplifiers.dce")),
        ),
        for_partitions=False,
    ),
)


def _unrolls(*strategies: str) -> Callable[[PassContext], bool]:
    return lambda c: c.options.loop_unrolling in strategies


# Off unless a flag asks for it.
_UNROLLED = _unrolls("double_buffer", "full")

LOOP_UNROLLING = (
    HloRow("simplify-while-loops", _pass("control_flow.loops.while_loop_simplifier"), for_opcodes=("while",), when=_UNROLLED),
    HloRow(
        "loop-double-buffer-transformer",
        _pass("control_flow.loops.double_buffer_loop_unrolling", unroll_strategy="double_buffer"),
        for_opcodes=("while",),
        when=_unrolls("double_buffer"),
    ),
    HloRow(
        "loop-double-buffer-transformer",
        _pass("control_flow.loops.double_buffer_loop_unrolling", unroll_strategy="full"),
        for_opcodes=("while",),
        when=_unrolls("full"),
    ),
    HloRow("tuple-simplifier", _pass("simplifiers.tuple_simplifier"), when=_UNROLLED),
    HloRow("dce", _pass("simplifiers.dce"), when=_UNROLLED),
    HloRow("scalar-constant-sinker", _pass("fusion.scalar_constant_sinker"), for_opcodes=("fusion",), when=_UNROLLED),
)
