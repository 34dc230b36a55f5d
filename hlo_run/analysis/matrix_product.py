"""Recognises dots that BLAS libraries compute (XLA's `IsMatrixMultiplication`), and layouts that they can read."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction

_RESULTS = frozenset("f8e3m4 f8e4m3 f8e4m3fn f8e5m2 f8e4m3fnuz f8e5m2fnuz f16 bf16 f32 f64 c64 c128".split())


def is_matrix_product(dot: HloInstruction) -> bool:
    """True for a dot of matrices, batched or not, with a float result, or with an s32 result of two s8 operands.

    Both operands and the result must have exactly two dimensions besides the batch dimensions.
    """
    if dot.opcode != "dot":
        return False
    lhs, rhs = (operand.shape for operand in dot.operands)
    rank = len(dot.lhs_batch_dims) + 2
    if not lhs.rank == rhs.rank == dot.shape.rank == rank:
        return False
    if 0 in (*lhs.dims, *rhs.dims):
        return False
    is_integer_product = dot.shape.element_type == "s32" and lhs.element_type == rhs.element_type == "s8"
    return dot.shape.element_type in _RESULTS or is_integer_product


def lies_as_matrices(minor_to_major: Sequence[int], batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> bool:
    """True if a library can read an array in this layout as matrices: each group of dimensions is contiguous and in order.

    The batch must not be innermost. XLA's `MatrixLayout::For`.
    """
    groups = [tuple(group) for group in (batch, rows, columns) if group]
    left = tuple(reversed(minor_to_major))
    while left:
        group = next((g for g in groups if left[: len(g)] == g), None)
        if group is None:
            return False
        left = left[len(group) :]
    return not batch or minor_to_major[0] != batch[-1]
