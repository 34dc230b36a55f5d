"""Evaluate `cholesky` and `triangular-solve` in f64 or c128; only the chosen triangle is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.values import Array, arrays_row, narrow, precise_type, table, widen

# Rows per block: its rows are solved one by one, then one matrix product updates all later rows.
_BLOCK_ROWS = 32


def _cholesky(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    """Return the factor, with zeros in the other triangle; NaN for a matrix that is not positive definite."""
    dtype = instruction.shape.dtype
    lower = instruction.lower
    wide = widen(operands[0], instruction.operands[0].shape.dtype)
    matrix = wide.astype(precise_type(wide.dtype))
    factor = cholesky(matrix if lower else _adjoint(matrix))
    return narrow(factor if lower else _adjoint(factor), dtype)


def _adjoint(matrix: Array) -> Array:
    return np.conj(np.swapaxes(matrix, -1, -2))


def cholesky(matrix: Array) -> Array:
    """Return L of L·Lᴴ for matrices [.., n, n], from their lower triangles; all NaN if it does not exist."""
    if not matrix.size:
        return matrix
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        # numpy does not say which matrix failed.
        stack = matrix.reshape(-1, *matrix.shape[-2:])
        return np.stack([_cholesky_or_nan(one) for one in stack]).reshape(matrix.shape)


def _cholesky_or_nan(matrix: Array) -> Array:
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def _triangular_solve(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    dtype = instruction.shape.dtype
    types = [operand.shape.dtype for operand in instruction.operands]
    wide = [widen(operand, kind) for operand, kind in zip(operands, types, strict=True)]
    matrix, right = (x.astype(precise_type(x.dtype)) for x in wide)
    lower = instruction.lower
    transpose = instruction.transpose_a
    # Every form is turned into a lower triangle on the left side.
    if transpose == "ADJOINT":
        matrix = np.conj(matrix)
    from_left = instruction.left_side
    if (transpose in ("TRANSPOSE", "ADJOINT")) == from_left:
        matrix, lower = np.swapaxes(matrix, -1, -2), not lower
    right = right if from_left else np.swapaxes(right, -1, -2)
    if not lower:
        matrix, right = np.flip(matrix, (-1, -2)), np.flip(right, -2)
    solution = solve_lower(matrix, right, instruction.unit_diagonal)
    solution = solution if lower else np.flip(solution, -2)
    return narrow(solution if from_left else np.swapaxes(solution, -1, -2), dtype)


def solve_lower(matrix: Array, right: Array, unit_diagonal: bool) -> Array:
    """Return x of L·x = right, [.., n, n] and [.., n, columns], by forward substitution; 0 on the diagonal gives inf or NaN.

    Rows are solved in order, for all stacked matrices and columns at once.
    """
    out = right.copy()
    rows = matrix.shape[-1]
    for begin in range(0, rows, _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, rows)
        for row in range(begin, end):
            known = matrix[..., row : row + 1, begin:row] @ out[..., begin:row, :]
            rest = out[..., row : row + 1, :] - known
            out[..., row : row + 1, :] = rest if unit_diagonal else rest / matrix[..., row : row + 1, row : row + 1]
        out[..., end:, :] -= matrix[..., end:, begin:end] @ out[..., begin:end, :]
    return out


EVALUATE = table(arrays_row("cholesky", _cholesky), arrays_row("triangular-solve", _triangular_solve))
