"""JAX's linear algebra (`hlo/matrix_calls.py`) in double, one matrix after the other, by numpy's LAPACK where it has it.

A function that cannot do its work returns NaN and a status that is not 0, as LAPACK's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from hlo_run import custom_calls
from hlo_run.artifact import ArraySpec, ArrayTree, CustomCallThunk, TriangularSolveThunk, tree_leaves
from hlo_run.backends.library import reflections
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.backends.library.linalg import triangular_solve_call
from hlo_run.backends.library.schur import schur
from hlo_run.hlo.matrix_calls import MatrixCall, matrix_call

_Function: TypeAlias = "Callable[[MatrixCall, Sequence[Array], Sequence[tuple[int, ...]]], tuple[object, ...]]"
"""From a call, its operands without their stacks, and the shapes of its results, to the results."""
_TRANSPOSE: dict[str, Literal["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]] = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}


def is_user_function(thunk: CustomCallThunk) -> bool:
    """True for what a registered function runs, or nothing does: registering comes before the library's functions."""
    return custom_calls.is_registered(thunk.target) or matrix_call(thunk.target, thunk.config) is None


def matrix_library_call(thunk: CustomCallThunk) -> LibraryCall | None:
    """Return the call of a custom call that is linear algebra of JAX's, else None."""
    call = matrix_call(thunk.target, thunk.config)
    if call is None:
        return None
    inputs, outputs = _arrays(thunk.operands), tuple(tree_leaves(thunk.result))
    if call.function == "trsm":
        return triangular_solve_call(_solve_thunk(thunk.name, call, inputs, outputs[0]))
    function, ranks = _FUNCTIONS[call.function]

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        _each(function, call, arrays, results, ranks)

    return LibraryCall(inputs, outputs, compute)


def _arrays(trees: Sequence[ArrayTree]) -> tuple[ArraySpec, ...]:
    return tuple(leaf for tree in trees for leaf in tree_leaves(tree))


def _solve_thunk(name: str, call: MatrixCall, inputs: Sequence[ArraySpec], result: ArraySpec) -> TriangularSolveThunk:
    transpose = _TRANSPOSE[call.transpose]
    return TriangularSolveThunk(
        name,
        inputs[0],
        inputs[1],
        result,
        left_side=call.left,
        lower=call.lower,
        unit_diagonal=call.unit_diagonal,
        transpose=transpose,
    )


def _each(function: _Function, call: MatrixCall, arrays: Sequence[Array], results: Sequence[Array], ranks: Sequence[int]) -> None:
    """Run a function for each part of a stack; `ranks` are those of its operands. All is read before anything is written."""
    stack = arrays[0].shape[: arrays[0].ndim - ranks[0]]
    depth = len(stack)
    shapes = [result.shape[depth:] for result in results]
    wide = [_wide(array) for array in arrays]
    found = [
        (
            place,
            function(
                call,
                [array[place] if rank + depth == array.ndim else array for array, rank in zip(wide, ranks, strict=True)],
                shapes,
            ),
        )
        for place in np.ndindex(*stack)
    ]
    for place, values in found:
        for result, value in zip(results, values, strict=True):
            result[place] = value


def _wide(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)


def _blank(shapes: Sequence[tuple[int, ...]], status: int) -> tuple[object, ...]:
    """Results of what did not work: NaN, and the status last."""
    return (*[np.full(shape, np.nan) for shape in shapes[:-1]], status)


def _cholesky(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    (matrix,) = operands
    triangle = np.tril(matrix) if call.lower else np.triu(matrix).conj().T
    try:
        factor = np.linalg.cholesky(triangle)  # reads the lower triangle
    except np.linalg.LinAlgError:
        return _blank(shapes, _first_indefinite(triangle))
    # The other triangle stays.
    return (factor + np.triu(matrix, 1) if call.lower else factor.conj().T + np.tril(matrix, -1)), 0


def _first_indefinite(matrix: Array) -> int:
    """Return the size of the smallest leading part that is not positive definite."""
    low, high = 1, len(matrix)
    while low < high:
        middle = (low + high) // 2
        try:
            np.linalg.cholesky(matrix[:middle, :middle])
            low = middle + 1
        except np.linalg.LinAlgError:
            high = middle
    return low


def _size(values: Array) -> Array:
    """What pivots are chosen by: BLAS takes |re| + |im|."""
    return np.abs(np.real(values)) + np.abs(np.imag(values))


def _lu(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    packed = operands[0].copy()
    steps = min(packed.shape)
    pivots: Array = np.arange(1, steps + 1, dtype=np.int64)
    status = 0
    for k in range(steps):
        row = k + int(np.argmax(_size(packed[k:, k])))
        pivots[k] = row + 1
        packed[[k, row]] = packed[[row, k]]
        if packed[k, k] == 0:
            status = status or k + 1
            continue
        packed[k + 1 :, k] /= packed[k, k]
        packed[k + 1 :, k + 1 :] -= np.outer(packed[k + 1 :, k], packed[k, k + 1 :])
    return packed, pivots, status


def _pivots(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    """The order of the rows after all exchanges; here numbers begin with 0."""
    order: Array = np.arange(shapes[0][0], dtype=np.int64)
    for row, other in enumerate(operands[0]):
        order[[row, other]] = order[[other, row]]
    return (order,)


def _qr(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    return reflections.qr(operands[0])


def _pivoted_qr(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    return reflections.pivoted_qr(operands[0], operands[1])


def _householder_product(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    packed, factors = operands
    return (reflections.apply(packed, factors, np.eye(*shapes[0], dtype=packed.dtype), left=True, adjoint=False),)


def _times_householder(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    return (reflections.apply(*operands, left=call.left, adjoint=call.transpose != "N"),)


def _symmetric_eigen(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    triangle = "L" if call.lower else "U"
    try:
        if not call.vectors:
            return operands[0], np.linalg.eigvalsh(operands[0], triangle), 0
        values, vectors = np.linalg.eigh(operands[0], triangle)
    except np.linalg.LinAlgError:
        return _blank(shapes, 1)
    return vectors, values, 0


def _svd(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
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


def _eigen(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    try:
        values, left, right = _general_eigen(call, operands[0])
    except np.linalg.LinAlgError:
        return _blank(shapes, 1)
    if len(shapes) == 5:
        return np.real(values), np.imag(values), left, right, 0
    return values, left, right, 0


def _packed_eigen(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    """Of a real matrix, vectors of conjugate values come as real and imaginary part in two columns."""
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
    values, right = np.linalg.eig(matrix)
    left = np.zeros_like(right)
    if call.left_vectors:
        left = np.linalg.inv(right).conj().T
        left /= np.linalg.norm(left, axis=0)
        # LAPACK makes the largest component real.
        largest = np.take_along_axis(left, np.argmax(np.abs(left), axis=0)[None], 0)
        left = left * (np.abs(largest) / largest if np.iscomplexobj(left) else 1)
    return values, left, right if call.vectors else np.zeros_like(right)


def _schur(call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    form, vectors, values, status = schur(operands[0])
    parts = (np.real(values), np.imag(values)) if len(shapes) == 6 else (values,)
    return form, vectors if call.vectors else np.zeros_like(vectors), *parts, 0, status


def _hessenberg(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    return *reflections.hessenberg(operands[0], call.first_row, call.last_row), 0


def _tridiagonal(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    return *reflections.tridiagonal(operands[0], call.lower), 0


def _tridiagonal_solve(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    """Elimination with exchanges of neighbouring rows; the diagonal below begins with a number that nobody reads."""
    below, diagonal, above, right = (array.copy() for array in operands)
    second = np.zeros_like(above)
    size = len(diagonal)
    for k in range(size - 1):
        if _size(below[k + 1]) > _size(diagonal[k]):
            diagonal[k], below[k + 1] = below[k + 1], diagonal[k]
            above[k], diagonal[k + 1] = diagonal[k + 1], above[k]
            if k + 2 < size:
                second[k], above[k + 1] = above[k + 1], 0
            right[[k, k + 1]] = right[[k + 1, k]]
        if diagonal[k] == 0:
            break
        factor = below[k + 1] / diagonal[k]
        diagonal[k + 1] -= factor * above[k]
        above[k + 1] -= factor * second[k]
        right[k + 1] -= factor * right[k]
    zeros = np.flatnonzero(diagonal == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        for k in reversed(range(size)):
            known = above[k] * right[k + 1] if k + 1 < size else 0
            known = known + second[k] * right[k + 2] if k + 2 < size else known
            right[k] = (right[k] - known) / diagonal[k]
    if len(shapes) == 1:
        return (right,)
    return second, diagonal, above, right, int(zeros[0]) + 1 if zeros.size else 0


def _symmetric_product(call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    matrix, added, alpha, beta = operands
    matrix = matrix.T if call.transpose == "T" else matrix
    return (alpha * (matrix @ matrix.T) + beta * added,)


def _cholesky_update(_call: MatrixCall, operands: Sequence[Array], _shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    """Return R' with R'ᵀR' = RᵀR + w wᵀ, and what rotations left of w, which is nothing."""
    factor, vector = (array.copy() for array in operands)
    for k in range(len(vector)):
        length = np.hypot(factor[k, k], vector[k])
        if length == 0:
            continue
        cosine, sine = factor[k, k] / length, vector[k] / length
        factor[k], vector = cosine * factor[k] + sine * vector, cosine * vector - sine * factor[k]
    return factor, vector


def _sparse_product(_call: MatrixCall, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    """The products of all entries, added up row by row; entries beyond the last row's end are padding."""
    values, starts, columns, dense = operands
    (shape,) = shapes
    used = slice(int(starts[0]), int(starts[-1]))
    rows = np.repeat(np.arange(shape[0]), np.diff(starts))
    result = np.zeros(shape, np.result_type(values, dense))
    np.add.at(result, rows, values[used].reshape(-1, *[1] * (dense.ndim - 1)) * dense[columns[used]])
    return (result,)


# Name → (function, ranks of its operands without their stacks).
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
