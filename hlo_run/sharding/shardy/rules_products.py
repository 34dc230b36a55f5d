"""Sharding rules of products, convolutions, and linear algebra."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.analysis.ragged_dims import ragged_dims
from hlo_run.sharding.shardy.rule import Kind, Rule, RuleBuilder


def dot(instruction: HloInstruction) -> Rule:
    """Return the rule of a dot: batch dimensions, free dimensions of either operand, and contracted dimensions."""
    left, right = (operand.shape.dims for operand in instruction.operands[:2])
    builder = RuleBuilder([len(left), len(right)], [instruction.shape.rank])
    out = 0
    for one, other in zip(instruction.lhs_batch_dims, instruction.rhs_batch_dims, strict=True):
        builder.factor([one, other], [out], left[one])
        out += 1
    for dim, size in enumerate(left):
        if dim not in instruction.lhs_contracting_dims and dim not in instruction.lhs_batch_dims:
            builder.factor([dim, None], [out], size)
            out += 1
    for dim, size in enumerate(right):
        if dim not in instruction.rhs_contracting_dims and dim not in instruction.rhs_batch_dims:
            builder.factor([None, dim], [out], size)
            out += 1
    for one, other in zip(instruction.lhs_contracting_dims, instruction.rhs_contracting_dims, strict=True):
        builder.factor([one, other], [None], left[one], Kind.REDUCTION)
    return builder.build()


def ragged_dot(instruction: HloInstruction) -> Rule:
    """Return the rule of a ragged-dot, as of a dot; the ragged dimension and the groups need whole operands."""
    builder = RuleBuilder([operand.shape.rank for operand in instruction.operands], [instruction.shape.rank])
    for dim in ragged_dims(instruction):
        kind = Kind.REPLICATE if dim.is_whole else Kind.REDUCTION if dim.is_contracted else Kind.PASS
        builder.factor(dim.dims, [dim.output], dim.size, kind)
    return builder.build()


def convolution(instruction: HloInstruction) -> Rule:
    """Return the rule of a convolution: batch, features, and per spatial dimension the windows' number and their size."""
    labels = instruction.dim_labels
    image, kernel, out = labels.input, labels.kernel, labels.output
    left, right, result = instruction.operands[0].shape.dims, instruction.operands[1].shape.dims, instruction.shape.dims
    builder = RuleBuilder([len(left), len(right)], [len(result)])
    batches, groups = instruction.batch_group_count, instruction.feature_group_count
    image_batch, image_feature = image.first_dim, image.second_dim
    kernel_in, kernel_out = kernel.first_dim, kernel.second_dim
    out_batch, out_feature = out.first_dim, out.second_dim
    if batches > 1:
        builder.factor([image_batch, kernel_out], [out_feature], batches)
    builder.factor([image_batch, None], [out_batch], result[out_batch])
    for one, other, place in zip(image.spatial_dims, kernel.spatial_dims, out.spatial_dims, strict=True):
        left_over = left[one]
        windows, window = (result[place], False), (right[other], True)
        for size, is_contracted in (windows, window) if result[place] >= right[other] else (window, windows):
            count = min(left_over, size)
            if count > 1:
                dims = ([one, other], [None]) if is_contracted else ([one, None], [place])
                builder.factor(*dims, count, Kind.REDUCTION if is_contracted else Kind.PERMUTE)
                left_over //= count
    if groups > 1:
        builder.factor([image_feature, kernel_out], [out_feature], groups)
    builder.factor([image_feature, kernel_in], [None], right[kernel_in], Kind.REDUCTION)
    features = result[out_feature] // (batches * groups)
    if features > 1:
        builder.factor([None, kernel_out], [out_feature], features)
    return builder.build()


def cholesky(instruction: HloInstruction) -> Rule:
    """Return the rule of a cholesky: batches of matrices, which stay whole."""
    builder = RuleBuilder([instruction.shape.rank], [instruction.shape.rank])
    batch = instruction.shape.rank - 2
    builder.pointwise(instruction.shape.dims, lambda dim: Kind.PASS if dim < batch else Kind.REPLICATE)
    return builder.build()


def triangular_solve(instruction: HloInstruction) -> Rule:
    """Return the rule of a solve: batches of matrices, which stay whole, with the factors of the product that it undoes."""
    matrix, right = (operand.shape.dims for operand in instruction.operands)
    builder = RuleBuilder([len(matrix), len(right)], [len(right)])
    for dim, size in enumerate(matrix[:-2]):
        builder.everywhere(dim, size)
    rows, columns = len(matrix) - 2, len(matrix) - 1
    is_transposed = instruction.transpose_a in ("TRANSPOSE", "ADJOINT")
    if instruction.left_side:
        free, contracted = (columns, rows) if is_transposed else (rows, columns)
        builder.factor([free, rows], [None], matrix[free], Kind.REPLICATE)
        builder.factor([None, columns], [columns], right[columns], Kind.REPLICATE)
        builder.factor([contracted, None], [rows], matrix[contracted], Kind.REPLICATE)
    else:
        free, contracted = (rows, columns) if is_transposed else (columns, rows)
        builder.factor([None, rows], [rows], right[rows], Kind.REPLICATE)
        builder.factor([free, columns], [None], matrix[free], Kind.REPLICATE)
        builder.factor([contracted, None], [columns], matrix[contracted], Kind.REPLICATE)
    return builder.build()


def fft(instruction: HloInstruction) -> Rule:
    """Return the rule of a fft: batches; transformed dimensions stay whole."""
    before, after = instruction.operands[0].shape.dims, instruction.shape.dims
    builder = RuleBuilder([len(before)], [len(after)])
    for dim, size in enumerate(before):
        if dim < len(before) - len(instruction.fft_length):
            builder.everywhere(dim, size)
        else:
            is_last = dim == len(before) - 1
            builder.everywhere(dim, size, Kind.REPLICATE, is_blocked=is_last and before[-1] != after[-1])
    return builder.build()
