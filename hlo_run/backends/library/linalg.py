"""`FftThunk`, `CholeskyThunk` and `TriangularSolveThunk` by numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.artifact import CholeskyThunk, FftThunk, TriangularSolveThunk
from hlo_run.backends.library.arrays import Array, LibraryCall

_PIECE_BYTES = 1 << 18
"""Batches of Fourier transforms are done in pieces, so that their temporary arrays stay in the processor's cache."""
_PANEL = 48
"""Rows that are solved one by one before BLAS subtracts their products from all later rows."""


def fft_call(thunk: FftThunk) -> LibraryCall:
    """Return the call of a Fourier transform, in the precision of its operand."""
    axes = tuple(range(-len(thunk.lengths), 0))

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        (source,), (out,) = arrays, results
        if not source.size or not out.size:
            out[...] = 0
            return
        rows = out.shape[0] if out.ndim > len(axes) else 1
        step = max(1, rows * _PIECE_BYTES // max(source.nbytes, out.nbytes))
        for first in range(0, rows, step):
            piece = ... if step >= rows else slice(first, first + step)
            transform(source[piece], out[piece])

    def transform(source: Array, out: Array) -> None:
        if thunk.type == "FFT":
            out[...] = np.fft.fftn(source, axes=axes)
        elif thunk.type == "IFFT":
            out[...] = np.fft.ifftn(source, axes=axes)
        elif thunk.type == "RFFT":
            out[...] = np.fft.rfftn(source, thunk.lengths, axes)
        else:
            out[...] = np.fft.irfftn(source, thunk.lengths, axes)

    return LibraryCall((thunk.source,), (thunk.result,), compute)


def cholesky_call(thunk: CholeskyThunk) -> LibraryCall:
    """Return the call of a factorisation. A matrix without a factor becomes NaN."""

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        matrix = arrays[0] if thunk.lower else np.conj(np.swapaxes(arrays[0], -1, -2))
        kind = np.complex128 if matrix.dtype.kind == "c" else np.float64
        stack = matrix.astype(kind).reshape(-1, *matrix.shape[-2:])
        factors = np.empty_like(stack)
        for number, one in enumerate(stack):
            try:
                factors[number] = np.linalg.cholesky(one)
            except np.linalg.LinAlgError:
                factors[number] = np.nan
        found = factors.reshape(matrix.shape)
        results[0][...] = found if thunk.lower else np.conj(np.swapaxes(found, -1, -2))

    return LibraryCall((thunk.source,), (thunk.result,), compute)


def triangular_solve_call(thunk: TriangularSolveThunk) -> LibraryCall:
    """Return the call of a solve. Every form is reduced to a lower triangle on the left."""
    is_turned = thunk.transpose != "NO_TRANSPOSE"
    # x . a = b is aT . xT = bT
    swaps = is_turned == thunk.left_side
    lower = thunk.lower != swaps

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        matrix, right = arrays
        kind = np.complex128 if matrix.dtype.kind == "c" else np.float64
        matrix = np.conj(matrix) if thunk.transpose == "ADJOINT" else matrix
        matrix = (np.swapaxes(matrix, -1, -2) if swaps else matrix).astype(kind)
        unknown = (right if thunk.left_side else np.swapaxes(right, -1, -2)).astype(kind)
        if not lower:
            matrix, unknown = matrix[..., ::-1, ::-1], unknown[..., ::-1, :].copy()
        _solve_lower(matrix, unknown, thunk.unit_diagonal)
        unknown = unknown if lower else unknown[..., ::-1, :]
        results[0][...] = unknown if thunk.left_side else np.swapaxes(unknown, -1, -2)

    return LibraryCall((thunk.matrix, thunk.right), (thunk.result,), compute)


def _solve_lower(matrix: Array, unknown: Array, unit_diagonal: bool) -> None:
    """Forward substitution in place, panel by panel. Only the lower triangle is read."""
    size = matrix.shape[-1]
    for top in range(0, size, _PANEL):
        bottom = min(top + _PANEL, size)
        for row in range(top, bottom):
            if row > top:
                unknown[..., row, :] -= np.einsum("...k,...kn->...n", matrix[..., row, top:row], unknown[..., top:row, :])
            if not unit_diagonal:
                unknown[..., row, :] /= matrix[..., row, row, None]
        if bottom < size:
            unknown[..., bottom:, :] -= matrix[..., bottom:, top:bottom] @ unknown[..., top:bottom, :]
