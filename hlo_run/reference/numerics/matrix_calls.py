"""Evaluate JAX's linear algebra calls (`hlo/matrix_calls.py`) in f64 or c128, for stacks of matrices at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.matrix_calls import MatrixCall, matrix_call
from hlo_run.reference.numerics.factorizations import householder_product, lu, qr, reflector, taxicab
from hlo_run.reference.numerics.schur import Schur
from hlo_run.reference.numerics.triangular import cholesky, solve_lower
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, narrow, precise_type, widen

_Function: TypeAlias = "Callable[[MatrixCall, Sequence[Array], Sequence[tuple[int, ...]]], tuple[Array, ...]]"


def evaluator_of(target: str, config: str) -> Evaluator | None:
    """Return the evaluator of a custom call to linear algebra; None for any other target."""
    call = matrix_call(target, config)
    if call is None:
        return None
    function = _FUNCTIONS[call.function]

    def evaluate(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
        types = [operand.shape.dtype for operand in instruction.operands]
        wide = [widen(as_array(operand), dtype) for operand, dtype in zip(operands, types, strict=True)]
        leaves = [shape for _, shape in instruction.shape.leaves()]
        precise = [array.astype(precise_type(array.dtype)) for array in wide]
        found = function(call, precise, [shape.dims for shape in leaves])
        results = tuple(
            narrow(np.broadcast_to(result, shape.dims), shape.dtype) for result, shape in zip(found, leaves, strict=True)
        )
        return results if instruction.shape.is_tuple else results[0]

    return evaluate


def _adjoint(matrix: Array) -> Array:
    return np.conj(np.swapaxes(matrix, -1, -2))


def _ok(matrix: Array) -> Array:
    return np.zeros(matrix.shape[:-2], np.int64)


def _potrf(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    (matrix,) = operands
    factor = cholesky(matrix if call.lower else _adjoint(matrix))
    failed = np.any(np.isnan(factor), axis=(-1, -2))
    status = np.zeros(failed.shape, np.int64)
    for place in zip(*np.nonzero(failed), strict=True) if failed.ndim else [()] if failed else []:
        triangle = (matrix if call.lower else _adjoint(matrix))[place]
        status[place] = next(k for k in range(1, len(triangle) + 1) if np.any(np.isnan(cholesky(triangle[:k, :k]))))
    # LAPACK leaves the other triangle unchanged.
    whole = factor + np.triu(matrix, 1) if call.lower else _adjoint(factor) + np.tril(matrix, -1)
    return np.where(failed[..., None, None], np.nan, whole), status


def _getrf(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    packed, pivots, _ = lu(operands[0], taxicab)
    is_zero = np.diagonal(packed, axis1=-2, axis2=-1) == 0
    status = np.where(np.any(is_zero, -1), np.argmax(is_zero, -1) + 1, 0)
    return packed, pivots + 1, status


def _pivots(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    pivots = operands[0].astype(np.int64)
    order = np.broadcast_to(np.arange(shapes[0][-1], dtype=np.int64), shapes[0]).copy()
    for step in range(pivots.shape[-1]):
        place = pivots[..., step, None]
        mine, other = order[..., step, None].copy(), np.take_along_axis(order, place, -1)
        np.put_along_axis(order, place, mine, -1)
        order[..., step, None] = other
    return (order,)


def _geqrf(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    return qr(operands[0])


def _geqp3(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    kinds = (operands[0].dtype, np.dtype(np.int64), operands[0].dtype)
    results: list[Array] = [np.zeros(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    for place in np.ndindex(*shapes[0][:-2]):
        matrix = operands[0][place]
        order = _pivot_order(matrix, operands[1][place])
        packed, factors = qr(matrix[:, order])
        for result, value in zip(results, (packed, order + 1, factors), strict=True):
            result[place] = value
    return tuple(results)


def _pivot_order(matrix: Array, given: Array) -> Array:
    """Return the columns in pivot order: the requested ones, then always the one farthest from the span of those before."""
    order: Array = np.arange(matrix.shape[1], dtype=np.int64)
    fixed = 0
    for column in range(len(given)):
        if not given[column]:
            continue
        order[[fixed, column]] = order[[column, fixed]]
        fixed += 1
    for k in range(fixed, min(matrix.shape)):
        span, _ = np.linalg.qr(matrix[:, order[:k]])
        rest = matrix[:, order[k:]]
        across = np.linalg.norm(rest - span @ (np.conj(span.T) @ rest), axis=0)
        best = k + int(np.argmax(across))
        order[[k, best]] = order[[best, k]]
    return order


def _orgqr(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    return householder_product(operands[0], operands[1])


def _ormqr(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    packed, factors, matrix = operands
    rows, columns = packed.shape[-2:]
    square = np.zeros((*packed.shape[:-1], rows), packed.dtype)
    square[..., :, :columns] = packed
    (product,) = householder_product(square, factors)
    product = product if call.transpose == "N" else _adjoint(product)
    return (product @ matrix if call.left else matrix @ product,)


def _syevd(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    (matrix,) = operands
    values, vectors = np.linalg.eigh(matrix, "L" if call.lower else "U")
    return (vectors if call.vectors else matrix), values, _ok(matrix)


def _svd(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    (matrix,) = operands
    left, values, right = np.linalg.svd(matrix)
    if not call.vectors:
        return matrix, values, np.zeros(shapes[2]), np.zeros(shapes[3]), _ok(matrix)
    vectors = {"u": left, "vt": right, "v": _adjoint(right)}
    first, second = (
        vectors[name][..., : shape[-2], : shape[-1]] for name, shape in zip(call.svd_form.split(), shapes[2:4], strict=True)
    )
    return matrix, values, first, second, _ok(matrix)


def _eigen(call: MatrixCall, matrix: Array) -> tuple[Array, Array, Array]:
    """Return (values, left vectors, right vectors); vectors that the call does not compute are zero."""
    values, right = np.linalg.eig(matrix)
    left = _adjoint(np.linalg.inv(right)) if call.left_vectors else np.zeros_like(right)
    if call.left_vectors:
        left = left / np.sqrt(np.sum(np.abs(left) ** 2, axis=-2, keepdims=True))
        place = np.argmax(np.abs(left), axis=-2)[..., None, :]
        turn = np.exp(-1j * np.angle(np.take_along_axis(left, place, -2)))
        left = left * turn if np.iscomplexobj(left) else left
    return values, left, right if call.vectors else np.zeros_like(right)


def _geev(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    values, left, right = _eigen(call, operands[0])
    parts = (np.real(values), np.imag(values)) if len(shapes) == 5 else (values,)
    return *parts, left, right, _ok(operands[0])


def _geev_packed(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    (matrix,) = operands
    values, left, right = _eigen(call, matrix)
    if not np.iscomplexobj(matrix):
        # A conjugate pair has two columns, x and y of its vector x + iy; numpy's second vector is x - iy.
        below = (np.imag(values) < 0)[..., None, :]
        left, right = (np.where(below, np.imag(np.conj(vectors)), np.real(vectors)) for vectors in (left, right))
    return matrix, values, left, right, _ok(matrix)


def _gees(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    (matrix,) = operands
    form, vectors = np.zeros_like(matrix), np.zeros_like(matrix)
    values, status = np.zeros(matrix.shape[:-1], np.complex128), _ok(matrix)
    for place in np.ndindex(*matrix.shape[:-2]):
        found = Schur(matrix[place])
        form[place], values[place], status[place] = found.form, found.eigenvalues(), found.status
        vectors[place] = found.vectors if call.vectors else 0
    parts = (np.real(values), np.imag(values)) if len(shapes) == 6 else (values,)
    return form, vectors, *parts, _ok(matrix), status


def _turned(matrix: Array, step: int, last: int) -> tuple[Array, Array, Array]:
    """Return (H A Hᴴ, v, tau) with the reflection H that clears column `step` below its first subdiagonal."""
    vector, factor, _ = reflector(matrix[..., step + 1 : last, step])
    whole = np.zeros(matrix.shape[:-1], matrix.dtype)
    whole[..., step + 1 : last] = vector
    outer = whole[..., :, None] * np.conj(whole[..., None, :])
    reflection = np.eye(matrix.shape[-1]) - np.conj(factor)[..., None, None] * outer
    return reflection @ matrix @ _adjoint(reflection), vector, factor


def _gehrd(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    matrix = operands[0]
    factors = np.zeros(shapes[1], matrix.dtype)
    vectors = np.zeros_like(matrix)
    for step in range(call.first_row - 1, call.last_row - 1):
        matrix, vector, factors[..., step] = _turned(matrix, step, call.last_row)
        vectors[..., step + 2 : call.last_row, step] = vector[..., 1:]
    inside = np.tril(np.ones(matrix.shape[-2:]), -2) > 0
    inside[:, : call.first_row - 1] = inside[call.last_row :] = False
    return np.where(inside, vectors, matrix), factors, _ok(matrix)


def _sytrd(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    (given,) = operands
    if not call.lower:
        packed, *rest = _sytrd(MatrixCall("sytrd"), [given[..., ::-1, ::-1]], shapes)
        return packed[..., ::-1, ::-1], *(part[..., ::-1] for part in rest[:3]), rest[3]
    matrix = np.tril(given, -1) + _adjoint(np.tril(given, -1)) + np.real(given) * np.eye(given.shape[-1])
    factors = np.zeros(shapes[3], matrix.dtype)
    packed = np.triu(given, 1)
    for step in range(matrix.shape[-1] - 1):
        matrix, vector, factors[..., step] = _turned(matrix, step, matrix.shape[-1])
        packed[..., step + 2 :, step] = vector[..., 1:]
    diagonal = np.real(np.diagonal(matrix, axis1=-2, axis2=-1))
    beside = np.real(np.diagonal(matrix, -1, -2, -1))
    size = matrix.shape[-1]
    packed[..., np.arange(size), np.arange(size)] = diagonal
    packed[..., np.arange(1, size), np.arange(size - 1)] = beside
    return packed, diagonal, beside, factors, _ok(matrix)


def _gtsv(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    """Solve with a dense matrix made of the bands, in which partial pivoting exchanges only neighbouring rows."""
    below, diagonal, above, right = operands
    size = diagonal.shape[-1]
    matrix = np.zeros((*diagonal.shape, size), diagonal.dtype)
    places: Array = np.arange(size, dtype=np.int64)
    matrix[..., places, places] = diagonal
    matrix[..., places[1:], places[:-1]] = below[..., 1:]
    matrix[..., places[:-1], places[1:]] = above[..., :-1]
    packed, _, order = lu(matrix, taxicab)
    middle = solve_lower(packed, np.take_along_axis(right, order[..., None], -2), True)
    found = solve_lower(packed[..., ::-1, ::-1], middle[..., ::-1, :], False)[..., ::-1, :]
    if len(shapes) == 1:
        return (found,)
    bands = [np.zeros_like(diagonal) for _ in range(2)]
    for number, band in enumerate(bands, 1):
        band[..., : max(0, size - number)] = np.diagonal(packed, number, -2, -1)
    bands[0][..., -1] = above[..., -1]
    pivots = np.diagonal(packed, axis1=-2, axis2=-1)
    is_zero = pivots == 0
    status = np.where(np.any(is_zero, -1), np.argmax(is_zero, -1) + 1, 0)
    return bands[1], pivots, bands[0], found, status


def _trsm(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    matrix, right = operands
    lower, left = call.lower, call.left
    if call.transpose != "N":
        matrix, lower = np.swapaxes(matrix, -1, -2), not lower
        matrix = np.conj(matrix) if call.transpose == "C" else matrix
    if not left:  # x a = b is aT xT = bT
        matrix, right, lower = np.swapaxes(matrix, -1, -2), np.swapaxes(right, -1, -2), not lower
    if lower:
        found = solve_lower(matrix, right, call.unit_diagonal)
    else:
        found = solve_lower(matrix[..., ::-1, ::-1], right[..., ::-1, :], call.unit_diagonal)[..., ::-1, :]
    return (found if left else np.swapaxes(found, -1, -2),)


def _syrk(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    matrix, added, alpha, beta = operands
    other = np.swapaxes(matrix, -1, -2)
    product = other @ matrix if call.transpose == "T" else matrix @ other
    return (alpha * product + beta * added,)


def _cholesky_update(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    """Update R by Givens rotations of row k and w, each of which turns w[k] into R's diagonal."""
    factor, vector = operands
    size = len(vector)
    rows = np.concatenate([factor, vector[None]])
    for k in range(size):
        length = np.hypot(rows[k, k], rows[size, k])
        rotation = np.eye(size + 1)
        if length:
            cosine, sine = rows[k, k] / length, rows[size, k] / length
            rotation[[k, k, size, size], [k, size, k, size]] = cosine, sine, -sine, cosine
        rows = rotation @ rows
    return rows[:size], rows[size]


def _csr_product(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    """Multiply by a dense copy of the sparse matrix."""
    values, starts, columns, dense = operands
    matrix = np.zeros((shapes[0][0], dense.shape[0]), values.dtype)
    for row in range(len(matrix)):
        for entry in range(int(starts[row]), int(starts[row + 1])):
            matrix[row, int(columns[entry])] += values[entry]
    return (matrix @ dense,)


_FUNCTIONS: dict[str, _Function] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "pivots": _pivots,
    "geqrf": _geqrf,
    "geqp3": _geqp3,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "syevd": _syevd,
    "svd": _svd,
    "geev": _geev,
    "geev_packed": _geev_packed,
    "gees": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
    "trsm": _trsm,
    "syrk": _syrk,
    "cholesky_update": _cholesky_update,
    "csr_product": _csr_product,
}
