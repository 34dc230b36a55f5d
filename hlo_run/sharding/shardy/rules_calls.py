"""Sharding rules of custom calls whose meaning is known, and of top-k."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.shardy.rule import Kind, Rule, RuleBuilder
from hlo_run.sharding.shardy.rules_shapes import builder_for, result_dims

_POINTWISE = frozenset(
    """annotate_device_placement Cholesky CompactWyHelper InspectSharding InvertDiagBlocksLowerTriangular
    InvertDiagBlocksUpperTriangular LayoutConstraint mhlo.erf MoveToDevice MoveToHost X64SplitHigh X64SplitLow
    xla.megascale.provide_metadata _SPMDInternalOp_MultiPad _SPMDInternalOp_RotateRight _SPMDInternalOp_MultiRotate
    _SPMDInternalOp_MultiSlice _SPMDInternalOp_Wrap Sharding""".split()
)


def custom_call(instruction: HloInstruction) -> Rule | None:
    """Return the rule of a custom call, or None if its target is unknown."""
    target = instruction.custom_call_target
    if target in _POINTWISE:
        return pointwise(instruction)
    if target == "X64Combine":
        is_state = any(user.opcode == "rng-bit-generator" for user in instruction.users)
        return _blocked_state(instruction) if is_state else pointwise(instruction)
    make = _TARGETS.get(target)
    return make(instruction) if make is not None else None


def pointwise(instruction: HloInstruction) -> Rule:
    """Return the rule of operands and results that have the same extents, or are scalars."""
    builder = builder_for(instruction)
    builder.pointwise(result_dims(instruction)[0])
    return builder.build()


def top_k(instruction: HloInstruction) -> Rule:
    """Return the rule of a top-k: other dimensions; the dimension that elements are taken from needs whole operands."""
    builder = builder_for(instruction)
    before, after = instruction.operands[0].shape.dims, result_dims(instruction)[0]
    builder.pointwise_where_equal(before, after, Kind.REPLICATE, is_blocked=True)
    return builder.build()


def _blocked_state(instruction: HloInstruction) -> Rule:
    builder = builder_for(instruction)
    builder.everywhere(0, instruction.shape.dims[0], Kind.REPLICATE, is_blocked=True)
    return builder.build()


def _batches(instruction: HloInstruction) -> tuple[RuleBuilder, tuple[int, ...]]:
    """Return a builder that has the factors of all dimensions but the last two, and the extents of the first operand."""
    builder = builder_for(instruction)
    sizes = instruction.operands[0].shape.dims
    for dim, size in enumerate(sizes[:-2]):
        builder.everywhere(dim, size)
    return builder, sizes


def _eigenvectors(instruction: HloInstruction) -> Rule:
    builder, sizes = _batches(instruction)
    rows, columns = len(sizes) - 2, len(sizes) - 1
    builder.factor([rows], [rows, None], sizes[rows])
    builder.factor([columns], [columns, rows], sizes[columns])
    return builder.build()


def _qr(instruction: HloInstruction) -> Rule:
    builder, sizes = _batches(instruction)
    rows, columns = len(sizes) - 2, len(sizes) - 1
    builder.factor([rows], [rows, None], sizes[rows], Kind.REPLICATE)
    builder.factor([columns], [columns, None], sizes[columns], Kind.REPLICATE)
    builder.factor([None], [None, rows], result_dims(instruction)[1][rows], Kind.REPLICATE)
    return builder.build()


def _reflectors(instruction: HloInstruction) -> Rule:
    builder, sizes = _batches(instruction)
    rows, columns = len(sizes) - 2, len(sizes) - 1
    builder.factor([rows, None], [rows], sizes[rows], Kind.REPLICATE)
    builder.factor([columns, None], [columns], sizes[columns], Kind.REPLICATE)
    builder.factor([None, rows], [None], instruction.operands[1].shape.dims[rows], Kind.REPLICATE)
    return builder.build()


def _partial_reduce(instruction: HloInstruction) -> Rule:
    builder = builder_for(instruction)
    sizes = zip(instruction.operands[0].shape.dims, result_dims(instruction)[0], strict=True)
    for dim, (before, after) in enumerate(sizes):
        if before == after:
            builder.everywhere(dim, before)
            continue
        builder.factor([dim, dim, None, None], [None, None], before)
        builder.factor([None] * 4, [dim, dim], after, Kind.REPLICATE, is_blocked=True)
    return builder.build()


_TARGETS: dict[str, Callable[[HloInstruction], Rule]] = {
    "Eigh": _eigenvectors,
    "Qr": _qr,
    "QrDecompositionBlock": _qr,
    "ProductOfElementaryHouseholderReflectors": _reflectors,
    "TopK": top_k,
    "mhlo.topk": top_k,
    "ApproxTopK": _partial_reduce,
    "PartialReduce": _partial_reduce,
}
