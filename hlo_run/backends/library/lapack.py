"""JAX's linear algebra in double precision, one matrix after the other, by the LAPACK of SciPy and numpy.

Like LAPACK, a function that fails returns NaN and a nonzero status. Matrices are [rows, columns], without batch dimensions.
LAPACK defines the results; JAX 0.10's custom calls define their order (`hlo/matrix_calls.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from hlo_run.backends.library.arrays import Array
from hlo_run.errors import Unsupported
from hlo_run.hlo.matrix_calls import MatrixCall

_Shapes: TypeAlias = "Sequence[tuple[int, ...]]"
_Function: TypeAlias = "Callable[[MatrixCall, Sequence[Array], _Shapes], tuple[object, ...]]"
"""(call, operands of one matrix of the batch, shapes of the results) -> results."""
# SciPy has no type stubs, so its functions are Any here.
_LINALG: Any = import_module("scipy.linalg")
_LAPACK: Any = import_module("scipy.linalg.lapack")
# What SciPy's wrappers of LAPACK raise for dimensions that do not fit. Its name is f2py's.
_REFUSED: type[Exception] = getattr(_LAPACK._flapack, "__flapack_error", ValueError)
_SIGN_SHARE = 0.1
_NORMAL_SHARE = 1e-12


def compute(call: MatrixCall, arrays: Sequence[Array], results: Sequence[Array]) -> None:
    """Run the call on every matrix of the batch and write `results`. All operands are read before any result is written.

    Raises Unsupported if the operands and the results do not fit together: nothing before has compared their shapes.
    """
    try:
        _compute(call, arrays, results)
    except (ValueError, IndexError, TypeError, _REFUSED) as error:
        raise Unsupported(f"the operands and results of {call.function} do not fit together", notes=(str(error),)) from error


def _compute(call: MatrixCall, arrays: Sequence[Array], results: Sequence[Array]) -> None:
    function, ranks = _FUNCTIONS[call.function]
    stack = arrays[0].shape[: arrays[0].ndim - ranks[0]]
    depth = len(stack)
    shapes = [result.shape[depth:] for result in results]
    wide = [_wide(array) for array in arrays]
    found: list[tuple[tuple[int, ...], tuple[object, ...]]] = []
    for place in np.ndindex(*stack):
        operands = [array[place] if rank + depth == array.ndim else array for array, rank in zip(wide, ranks, strict=True)]
        found.append((place, function(call, operands, shapes)))
    for place, values in found:
        for result, value in zip(results, values, strict=True):
            result[place] = value


def _wide(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)


def _lapack(name: str, matrix: Array) -> Callable[..., tuple[Any, ...]]:
    """Return LAPACK's function for the matrix's type. `name` is the real function, or `real/complex` as in `dormqr/zunmqr`."""
    real, _, imaginary = name.partition("/")
    return getattr(_LAPACK, (imaginary or f"z{real[1:]}") if np.iscomplexobj(matrix) else real)


def _blank(shapes: _Shapes, status: int) -> tuple[object, ...]:
    """Return the results of a failed function: NaN, and the status last."""
    return (*[np.full(shape, np.nan) for shape in shapes[:-1]], status)


def _cholesky(call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    factor, status = _lapack("dpotrf", operands[0])(operands[0], lower=call.lower, clean=False)
    return (factor, 0) if status == 0 else _blank(shapes, status)


def _lu(_call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    packed, pivots, status = _lapack("dgetrf", operands[0])(operands[0])
    return packed, pivots + 1, status


def _pivots(_call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    """Return the permutation of the rows after all exchanges, counted from 0."""
    order: Array = np.arange(shapes[0][0], dtype=np.int64)
    for row, other in enumerate(operands[0]):
        order[[row, other]] = order[[other, row]]
    return (order,)


def _qr(_call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    packed, factors, _, _ = _lapack("dgeqrf", operands[0])(operands[0])
    return packed, factors


def _pivoted_qr(_call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    """QR with pivoting. Columns marked in `given` come first, in order and without pivoting, as in LAPACK's geqp3."""
    matrix, given = operands
    fixed, free = np.flatnonzero(given), np.flatnonzero(given == 0)
    steps = min(len(matrix), len(fixed))
    packed = np.concatenate((matrix[:, fixed], matrix[:, free]), axis=1)
    factors = np.zeros(min(matrix.shape), matrix.dtype)
    if steps:
        packed[:, : len(fixed)], factors[:steps], _, _ = _lapack("dgeqrf", matrix)(matrix[:, fixed])
        packed[:, len(fixed) :] = _times_q(packed[:, :steps], factors[:steps], packed[:, len(fixed) :], True, True)
    order = np.concatenate((fixed, free)) + 1
    if free.size and steps < len(matrix):
        rest, pivots, last, _, _ = _lapack("dgeqp3", matrix)(packed[steps:, len(fixed) :])
        packed[:steps, len(fixed) :] = packed[:steps, len(fixed) :][:, pivots - 1]
        packed[steps:, len(fixed) :], factors[steps:] = rest, last
        order[len(fixed) :] = free[pivots - 1] + 1
    return packed, order, factors


def _times_q(packed: Array, factors: Array, matrix: Array, left: bool, adjoint: bool) -> Array:
    """Return Q @ matrix or matrix @ Q. Q (or its adjoint) is given by [m, k] packed reflections with k factors."""
    if not (packed.size and matrix.size):
        return matrix
    multiply = _lapack("dormqr/zunmqr", packed)
    transpose = ("C" if np.iscomplexobj(packed) else "T") if adjoint else "N"
    work = multiply("L" if left else "R", transpose, packed, factors, matrix, -1)[1]
    return multiply("L" if left else "R", transpose, packed, factors, matrix, int(work[0].real))[0]


def _householder_product(_call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    packed, factors = operands
    return (_lapack("dorgqr/zungqr", packed)(packed, factors)[0] if packed.size else packed,)


def _times_householder(call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    packed, factors, matrix = operands
    return (_times_q(packed[:, : len(factors)], factors, matrix, call.left, call.transpose != "N"),)


def _symmetric_eigen(call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    triangle = "L" if call.lower else "U"
    try:
        if not call.vectors:
            return operands[0], np.linalg.eigvalsh(operands[0], triangle), 0
        values, vectors = np.linalg.eigh(operands[0], triangle)
    except np.linalg.LinAlgError:
        return _blank(shapes, 1)
    return vectors, values, 0


def _svd(call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    (matrix,) = operands
    try:
        if not call.vectors:
            return matrix, np.linalg.svd(matrix, compute_uv=False), np.zeros(shapes[2]), np.zeros(shapes[3]), 0
        is_whole = max(*shapes[2], *shapes[3]) > min(matrix.shape)
        left, values, right = np.linalg.svd(matrix, full_matrices=is_whole)
    except np.linalg.LinAlgError:
        return _blank(shapes, 1)
    pair = (left, right) if call.svd_form == "u vt" else (right, left) if call.svd_form == "vt u" else (left, right.conj().T)
    first, second = (array[tuple(map(slice, shape))] for array, shape in zip(pair, shapes[2:4], strict=True))
    return matrix, values, first, second, 0


def _eigen(call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    try:
        values, left, right = _general_eigen(call, operands[0])
    except np.linalg.LinAlgError:
        return _blank(shapes, 1)
    if len(shapes) == 5:
        return np.real(values), np.imag(values), left, right, 0
    return values, left, right, 0


def _packed_eigen(call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    """For a real matrix, the vectors of conjugate eigenvalues are two columns: real part, imaginary part."""
    (matrix,) = operands
    try:
        values, left, right = _general_eigen(call, matrix)
    except np.linalg.LinAlgError:
        return _blank(shapes, 1)
    if matrix.dtype.kind != "c":
        is_second = np.imag(values) < 0
        left, right = (np.where(is_second, -np.imag(vectors), np.real(vectors)) for vectors in (left, right))
    return matrix, values, left, right, 0


def _general_eigen(call: MatrixCall, matrix: Array) -> tuple[Array, Array, Array]:
    """Return eigenvalues, left and right eigenvectors (columns). Vectors that the call does not ask for are zeros."""
    values: Array
    values, left, right = _LINALG.eig(matrix, left=True, right=True)
    zeros = np.zeros(matrix.shape)
    return values, left if call.left_vectors else zeros, right if call.vectors else zeros


def _select_none(*_values: float) -> bool:
    return False


def _schur(call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    """Return T, Z, the eigenvalues, the number of selected eigenvalues (0) and the status.

    LAPACK's signs (for a complex matrix: phases) depend on rounding. Here, in each vector the first number with at least a
    tenth of the largest magnitude is positive. In the block of a conjugate pair the larger number is above the diagonal.
    """
    (matrix,) = operands
    if not matrix.size:
        return *[np.zeros(shape) for shape in shapes[:-2]], 0, 0
    found = _lapack("dgees", matrix)(_select_none, matrix)
    form, vectors, status = found[0], found[-3], found[-1]
    values = found[2] if np.iscomplexobj(matrix) else found[2] + 1j * found[3]
    if status:
        return *[np.full(shape, np.nan) for shape in shapes[:-2]], 0, status
    if not np.iscomplexobj(matrix):
        for row in np.flatnonzero(np.diagonal(form, -1)):
            _choose_block(form, vectors, int(row))
    for column in range(len(matrix)):
        value = vectors[_decisive(np.abs(vectors[:, column])), column]
        phase = value / abs(value)
        form[column, :] *= phase
        form[:, column] *= np.conj(phase)
        vectors[:, column] *= np.conj(phase)
    parts = (np.real(values), np.imag(values)) if len(shapes) == 6 else (values,)
    return form, vectors if call.vectors else np.zeros_like(vectors), *parts, 0, 0


def _decisive(sizes: Array) -> int:
    """Return the first position whose value is near the largest."""
    return int(np.argmax(sizes >= _SIGN_SHARE * sizes.max()))


def _choose_block(form: Array, vectors: Array, row: int) -> None:
    """Choose among the equivalent forms of a conjugate pair's block. In a normal matrix every angle is valid: give Z a zero."""
    above, below = abs(form[row, row + 1]), abs(form[row + 1, row])
    pair = vectors[:, row : row + 2]
    if abs(above - below) <= _NORMAL_SHARE * (above + below):
        one, other = pair[_decisive(np.hypot(pair[:, 0], pair[:, 1]))]
        cosine, sine = one / math.hypot(one, other), other / math.hypot(one, other)
    elif below > above:
        cosine, sine = 0.0, 1.0
    else:
        return
    rotation = np.array([[cosine, sine], [-sine, cosine]])
    both = slice(row, row + 2)
    form[both, row:] = rotation @ form[both, row:]
    form[: row + 2, both] = form[: row + 2, both] @ rotation.T
    vectors[:, both] = vectors[:, both] @ rotation.T
    form[row, row] = form[row + 1, row + 1] = (form[row, row] + form[row + 1, row + 1]) / 2


def _hessenberg(call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    return _lapack("dgehrd", operands[0])(operands[0], lo=call.first_row - 1, hi=call.last_row - 1)


def _tridiagonal(call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    """Return the triangle with the vectors in it, the diagonal, the off-diagonal, the factors and the status."""
    reduce = _lapack("dsytrd/zhetrd", operands[0])
    return reduce(operands[0], lower=call.lower, lwork=max(1, len(operands[0])))


def _tridiagonal_solve(_call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    """Solve with [n] diagonals. The first element of the lower and the last of the upper diagonal are unused."""
    below, diagonal, above, right = operands
    size = len(diagonal)
    fill, pivots, beside, solution, status = _lapack("dgtsv", diagonal)(below[1:], diagonal, above[:-1], right)
    if status:
        solution = np.full_like(right, np.nan)
    if len(shapes) == 1:
        return (solution,)
    second = np.zeros_like(above)
    second[: max(0, size - 2)] = fill[: max(0, size - 2)]
    return second, pivots, np.append(beside, above[-1:]), solution, status


def _symmetric_product(call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    matrix, added, alpha, beta = operands
    matrix = matrix.T if call.transpose == "T" else matrix
    return (alpha * (matrix @ matrix.T) + beta * added,)


def _cholesky_update(_call: MatrixCall, operands: Sequence[Array], _shapes: _Shapes) -> tuple[object, ...]:
    """Return R' with R'ᵀR' = RᵀR + w wᵀ, and the rest of w after the rotations, which is zero."""
    factor, vector = (array.copy() for array in operands)
    for k in range(len(vector)):
        length = np.hypot(factor[k, k], vector[k])
        if length == 0:
            continue
        cosine, sine = factor[k, k] / length, vector[k] / length
        factor[k], vector = cosine * factor[k] + sine * vector, cosine * vector - sine * factor[k]
    return factor, vector


def _sparse_product(_call: MatrixCall, operands: Sequence[Array], shapes: _Shapes) -> tuple[object, ...]:
    """Sum the products of all entries by row. Entries beyond the end of the last row are padding."""
    values, starts, columns, dense = operands
    (shape,) = shapes
    used = slice(int(starts[0]), int(starts[-1]))
    rows = np.repeat(np.arange(shape[0]), np.diff(starts))
    result = np.zeros(shape, np.result_type(values, dense))
    np.add.at(result, rows, values[used].reshape(-1, *[1] * (dense.ndim - 1)) * dense[columns[used]])
    return (result,)


# Name → (function, ranks of its operands without batch dimensions).
_FUNCTIONS: dict[str, tuple[_Function, tuple[int, ...]]] = {
    "potrf": (_cholesky, (2,)),
    "getrf": (_lu, (2,)),
    "pivots": (_pivots, (1,)),
    "geqrf": (_qr, (2,)),
    "geqp3": (_pivoted_qr, (2, 1)),
    "orgqr": (_householder_product, (2, 1)),
    "ormqr": (_times_householder, (2, 1, 2)),
    "syevd": (_symmetric_eigen, (2,)),
    "svd": (_svd, (2,)),
    "geev": (_eigen, (2,)),
    "geev_packed": (_packed_eigen, (2,)),
    "gees": (_schur, (2,)),
    "gehrd": (_hessenberg, (2,)),
    "sytrd": (_tridiagonal, (2,)),
    "gtsv": (_tridiagonal_solve, (1, 1, 1, 2)),
    "syrk": (_symmetric_product, (2, 2, 0, 0)),
    "cholesky_update": (_cholesky_update, (2, 1)),
    "csr_product": (_sparse_product, (1, 1, 1, 2)),
}
