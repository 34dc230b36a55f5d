"""Evaluate XLA's custom calls that factor matrices: LU, QR, Householder products, symmetric eigenvectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, narrow, precise_type, widen


def _row(factor: Callable[..., tuple[Array, ...]]) -> Evaluator:
    """Return an evaluator that runs `factor` in f64 or c128 and rounds its results to the types of the shape's leaves."""

    def evaluate(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
        types = [operand.shape.dtype for operand in instruction.operands]
        wide = [widen(as_array(operand), dtype) for operand, dtype in zip(operands, types, strict=True)]
        found = factor(*(array.astype(precise_type(array.dtype)) for array in wide))
        leaves = [shape for _, shape in instruction.shape.leaves()]
        results = tuple(narrow(result, shape.dtype) for result, shape in zip(found, leaves, strict=True))
        return results if instruction.shape.is_tuple else results[0]

    return evaluate


def taxicab(values: Array) -> Array:
    """Return |re| + |im|, by which BLAS compares complex magnitudes."""
    return np.abs(np.real(values)) + np.abs(np.imag(values))


def lu(matrix: Array, size: Callable[[Array], Array] = np.abs) -> tuple[Array, Array, Array]:
    """Return (packed, pivots, permutation) of matrices [.., rows, columns], as LAPACK's getrf with row numbers from 0.

    `packed` has L below the diagonal, without its ones, and U on and above it. `permutation` is the order of the rows.
    The pivot is the largest element by `size`. Columns are eliminated in order, for the whole stack at once.
    """
    packed = matrix.copy()
    stack, (rows, columns) = packed.shape[:-2], packed.shape[-2:]
    steps = min(rows, columns)
    pivots = np.zeros((*stack, steps), np.int64)
    unmoved: Array = np.zeros((*stack, rows), np.int64) + np.arange(rows, dtype=np.int64)
    permutation = unmoved
    for k in range(steps):
        pivot = k + np.argmax(size(packed[..., k:, k]), axis=-1)
        pivots[..., k] = pivot
        order = unmoved.copy()
        np.put_along_axis(order, pivot[..., None], k, -1)
        order[..., k] = pivot
        packed = np.take_along_axis(packed, order[..., None], -2)
        permutation = np.take_along_axis(permutation, order, -1)
        head = packed[..., k : k + 1, k : k + 1]
        # A zero pivot means a column of zeros: nothing to eliminate.
        below = packed[..., k + 1 :, k : k + 1] / np.where(head == 0, 1, head)
        packed[..., k + 1 :, k : k + 1] = below
        packed[..., k + 1 :, k + 1 :] -= below * packed[..., k : k + 1, k + 1 :]
    return packed, pivots, permutation


def qr(matrix: Array) -> tuple[Array, Array]:
    """Return (packed, factors) of matrices [.., rows, columns], as LAPACK's geqrf.

    `packed` has R on and above the diagonal and the reflectors' vectors below it. `factors` are their tau.
    """
    packed = matrix.copy()
    rows, columns = packed.shape[-2:]
    steps = min(rows, columns)
    factors = np.zeros((*packed.shape[:-2], steps), packed.dtype)
    # Each reflection applies to the columns after the earlier reflections.
    for k in range(steps):
        vector, factor, head = reflector(packed[..., k:, k])
        factors[..., k] = factor
        rest = packed[..., k:, k + 1 :]
        projected = np.conj(vector)[..., None, :] @ rest
        packed[..., k:, k + 1 :] = rest - np.conj(factor)[..., None, None] * vector[..., :, None] * projected
        packed[..., k, k] = head
        packed[..., k + 1 :, k] = vector[..., 1:]
    return packed, factors


def reflector(column: Array) -> tuple[Array, Array, Array]:
    """Return (v, tau, beta) with v[0] = 1 such that (I - conj(tau) v vᴴ) column = (beta, 0, ..).

    Columns are the last dimension. tau is 0 if the column already has that form.
    """
    alpha, tail = column[..., 0], column[..., 1:]
    tail_square = np.sum(np.abs(tail) ** 2, axis=-1)
    real = np.real(alpha)
    size = np.sqrt(np.abs(alpha) ** 2 + tail_square)
    idle = (tail_square == 0) & (np.imag(alpha) == 0)
    beta = np.where(idle, real, -np.copysign(size, real))
    safe = np.where(idle, 1, beta)
    factor = np.where(idle, 0, (beta - alpha) / safe)
    divisor = np.where(idle, 1, alpha - beta)
    vector = np.concatenate([np.ones_like(alpha)[..., None], tail / divisor[..., None]], axis=-1)
    return vector, factor.astype(column.dtype), beta.astype(column.dtype)


def householder_product(packed: Array, factors: Array) -> tuple[Array]:
    """Return the first columns of H1·H2·.., with the reflections I - tau v vᴴ as `qr` packs them."""
    rows, columns = packed.shape[-2:]
    product = np.broadcast_to(np.eye(rows, columns, dtype=packed.dtype), packed.shape).copy()
    for k in reversed(range(factors.shape[-1])):
        vector = packed[..., k:, k].copy()
        vector[..., 0] = 1
        projected = np.conj(vector)[..., None, :] @ product[..., k:, :]
        product[..., k:, :] -= factors[..., k, None, None] * vector[..., :, None] * projected
    return (product,)


def _eigh(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Return (eigenvectors in columns, ascending eigenvalues); the first number of the backend_config is 1 for lower."""
    lower = (instruction.backend_config or "1").strip('"').startswith("1")

    def factor(matrix: Array) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(matrix, "L" if lower else "U")
        return vectors, values

    return _row(factor)(instruction, operands, calls)


# Custom call target → evaluator.
CUSTOM_CALLS: dict[str, Evaluator] = {
    "LuDecomposition": _row(lu),
    "Qr": _row(qr),
    "ProductOfElementaryHouseholderReflectors": _row(householder_product),
    "Eigh": _eigh,
}
