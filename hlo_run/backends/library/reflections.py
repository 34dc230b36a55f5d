"""Factorisations by Householder's reflections I - tau v vᴴ, one matrix at a time, as LAPACK packs them.

A vector begins with 1, which is not stored: the rest of it stands below the place where the reflection made zeros.
"""

from __future__ import annotations

import math

import numpy as np

from hlo_run.backends.library.arrays import Array


def reflect(column: Array) -> complex:
    """Turn a column in place into (beta, rest of v) and return tau: (I - conj(tau) v vᴴ) column = (beta, 0, ..)."""
    alpha = complex(column[0])
    norm = float(np.linalg.norm(column[1:]))
    if norm == 0 and alpha.imag == 0:
        return 0.0
    beta = -math.copysign(math.hypot(alpha.real, alpha.imag, norm), alpha.real)
    column[1:] /= column[0] - beta
    tau = (beta - column[0]) / beta
    column[0] = beta
    return tau


def _vector(packed: Array) -> Array:
    vector = packed.copy()
    vector[0] = 1
    return vector


def apply(packed: Array, factors: Array, matrix: Array, left: bool, adjoint: bool) -> Array:
    """Return Q·matrix, or matrix·Q, or either with Qᴴ, where Q is the product of the packed reflections in their order."""
    result = matrix.copy()
    count = len(factors)
    for k in range(count) if left == adjoint else reversed(range(count)):
        vector = _vector(packed[k:, k])
        factor = np.conj(factors[k]) if adjoint else factors[k]
        if left:
            result[k:] -= factor * np.outer(vector, vector.conj() @ result[k:])
        else:
            result[:, k:] -= factor * np.outer(result[:, k:] @ vector, vector.conj())
    return result


def qr(matrix: Array) -> tuple[Array, Array]:
    """Return (R with the vectors below it, factors)."""
    packed, factors = np.linalg.qr(matrix, mode="raw")
    return packed.T, factors


def pivoted_qr(matrix: Array, given: Array) -> tuple[Array, Array, Array]:
    """Return (R with the vectors below it, which column stands where, from 1 on, factors); LAPACK's geqp3.

    Columns whose entry of `given` is not 0 come first; of the others, the longest that is left.
    """
    fixed = [number for number, entry in enumerate(given) if entry]
    order: Array = np.arange(matrix.shape[1], dtype=np.int64)
    for place, number in enumerate(fixed):
        order[[place, number]] = order[[number, place]]
    packed = matrix[:, order]
    factors = np.zeros(min(packed.shape), packed.dtype)
    for k in range(len(factors)):
        if k >= len(fixed):
            longest = k + int(np.argmax(np.linalg.norm(packed[k:, k:], axis=0)))
            packed[:, [k, longest]] = packed[:, [longest, k]]
            order[[k, longest]] = order[[longest, k]]
        factors[k] = reflect(packed[k:, k])
        vector = _vector(packed[k:, k])
        packed[k:, k + 1 :] -= np.conj(factors[k]) * np.outer(vector, vector.conj() @ packed[k:, k + 1 :])
    return packed, order + 1, factors


def hessenberg(matrix: Array, first: int, last: int) -> tuple[Array, Array]:
    """Return (H of QᴴAQ with the vectors below its second diagonal, factors), for rows `first` to `last`, from 1 on."""
    packed = matrix.copy()
    factors = np.zeros(max(0, len(matrix) - 1), packed.dtype)
    for k in range(first - 1, last - 1):
        factors[k] = reflect(packed[k + 1 : last, k])
        vector = _vector(packed[k + 1 : last, k])
        right = packed[:last, k + 1 : last]
        right -= factors[k] * np.outer(right @ vector, vector.conj())
        below = packed[k + 1 : last, k + 1 :]
        below -= np.conj(factors[k]) * np.outer(vector, vector.conj() @ below)
    return packed, factors


def tridiagonal(matrix: Array, lower: bool) -> tuple[Array, Array, Array, Array]:
    """Return (the triangle with the vectors in it, diagonal, the one beside it, factors) of a Hermitian matrix; sytrd."""
    if not lower:  # the same backwards
        packed, *rest = tridiagonal(matrix[::-1, ::-1], True)
        return packed[::-1, ::-1], rest[0][::-1], rest[1][::-1], rest[2][::-1]
    triangle = np.tril(matrix)
    whole = triangle + np.tril(matrix, -1).conj().T
    whole[np.diag_indices_from(whole)] = np.real(np.diagonal(whole))
    packed = matrix.copy()
    size = len(matrix)
    factors = np.zeros(max(0, size - 1), whole.dtype)
    for k in range(size - 1):
        column = whole[k + 1 :, k].copy()
        factors[k] = reflect(column)
        packed[k + 1 :, k] = column
        vector = _vector(column)
        rest = whole[k + 1 :, k + 1 :]
        rest -= np.conj(factors[k]) * np.outer(vector, vector.conj() @ rest)
        rest -= factors[k] * np.outer(rest @ vector, vector.conj())
    beside = np.real(np.diagonal(packed, -1)).copy()
    diagonal = np.real(np.diagonal(whole)).copy()
    packed[np.diag_indices_from(packed)] = diagonal
    return packed, diagonal, beside, factors
