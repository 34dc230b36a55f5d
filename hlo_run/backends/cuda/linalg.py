"""Triangular solves by cuBLAS and Cholesky factors by cuSOLVER: plan the calls and run them. Both work in place.

Row-major a . x = b is column-major x^T . a^T = b^T. The triangle of a^T is the opposite one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from hlo_run.artifact import ArraySpec, BufferSlice, CholeskyThunk, TriangularSolveThunk
from hlo_run.backends.cuda.matmul import Address
from hlo_run.backends.cuda.matrices import Stored, merged, stored

# HLO type to the letter of the routine names.
_LETTERS = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}
_BYTES = {"f32": 4, "f64": 8, "c64": 8, "c128": 16}
_SCALARS = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}
_POINTER_BYTES = 8
_ALL_ONES = 0xFF  # a NaN in every float type


class SolvePlan(Struct, frozen=True):
    """op(a) . x = b, or x . op(a) = b unless `left`. `x` holds b before the call. `operation` is N, T or C."""

    dtype: str
    a: Stored
    a_place: BufferSlice
    x: Stored
    x_place: BufferSlice
    b_place: BufferSlice
    left: bool
    lower: bool
    operation: str
    unit_diagonal: bool


class CholeskyPlan(Struct, frozen=True):
    """Factors of `matrix` in the triangle given by `lower`. `place` holds the matrix before the call."""

    dtype: str
    matrix: Stored
    place: BufferSlice
    source_place: BufferSlice
    lower: bool


def _matrices(spec: ArraySpec) -> Stored | None:
    """Return the last two dimensions as matrices, the others as the batch; None if the layout does not allow it."""
    rank = len(spec.dims)
    axes = [merged(spec, dims) for dims in (range(rank - 2), (rank - 2,), (rank - 1,))]
    batch, rows, columns = axes
    return None if batch is None or rows is None or columns is None else stored(rows, columns, batch)


def plan_solve(thunk: TriangularSolveThunk) -> SolvePlan | str:
    """Return the cuBLAS call of a solve, or the reason that cuBLAS cannot run it."""
    dtype, result = thunk.result.dtype, thunk.result
    if dtype not in _LETTERS or not prod(result.dims):
        return f"cuBLAS does not solve {dtype}{list(result.dims)}"
    a, x = _matrices(thunk.matrix), _matrices(result)
    if a is None or x is None or thunk.right.minor_to_major != result.minor_to_major:
        return "the layout of its arrays does not form matrices"
    # Each of these transposes the equation; two of them cancel.
    is_transposed = (thunk.transpose != "NO_TRANSPOSE") ^ a.is_transposed ^ x.is_transposed
    is_conjugate = thunk.transpose == "ADJOINT" and dtype.startswith("c")
    if is_conjugate and not is_transposed:
        return "cuBLAS does not conjugate without a transpose"
    return SolvePlan(
        dtype=dtype,
        a=a,
        a_place=thunk.matrix.slice,
        x=x,
        x_place=result.slice,
        b_place=thunk.right.slice,
        left=thunk.left_side != x.is_transposed,
        lower=thunk.lower != a.is_transposed,
        operation="C" if is_conjugate else "T" if is_transposed else "N",
        unit_diagonal=thunk.unit_diagonal,
    )


def plan_cholesky(thunk: CholeskyThunk) -> CholeskyPlan | str:
    """Return the cuSOLVER call of a factorisation, or the reason that cuSOLVER cannot run it."""
    dtype, result = thunk.result.dtype, thunk.result
    matrix = _matrices(result)
    if dtype not in _LETTERS or not prod(result.dims):
        return f"cuSOLVER does not factor {dtype}{list(result.dims)}"
    if matrix is None or thunk.source.minor_to_major != result.minor_to_major:
        return "the layout of its arrays does not form matrices"
    return CholeskyPlan(dtype, matrix, result.slice, thunk.source.slice, thunk.lower != matrix.is_transposed)


class Solver:
    """cuBLAS, for triangular solves. `memory` copies and provides scratch memory."""

    def __init__(self, cublas: Any, handle: int, memory: Any) -> None:
        self._cublas, self._handle, self._memory = cublas, handle, memory

    def run(self, plan: SolvePlan, address: Address) -> None:
        """Solve; raises the errors of the binding."""
        cublas = self._cublas
        x = address(plan.x_place)
        if address(plan.b_place) != x:
            self._memory.copy(x, address(plan.b_place), plan.x_place.size_bytes)
        how = (
            int(cublas.SideMode.LEFT if plan.left else cublas.SideMode.RIGHT),
            int(cublas.FillMode.LOWER if plan.lower else cublas.FillMode.UPPER),
            int(getattr(cublas.Operation, plan.operation)),
            int(cublas.DiagType.UNIT if plan.unit_diagonal else cublas.DiagType.NON_UNIT),
        )
        one = np.array(1, _SCALARS[plan.dtype])
        letter, size = _LETTERS[plan.dtype], _BYTES[plan.dtype]
        shape = (plan.x.rows, plan.x.columns)
        if plan.x.batch == 1:
            solve = getattr(cublas, f"{letter}trsm")
            solve(self._handle, *how, *shape, one.ctypes.data, address(plan.a_place), plan.a.leading, x, plan.x.leading)
            return
        starts = np.arange(plan.x.batch, dtype=np.uint64) * np.uint64(size)
        pointers = np.concatenate(
            [
                np.uint64(address(plan.a_place)) + starts * np.uint64(plan.a.batch_stride),
                np.uint64(x) + starts * np.uint64(plan.x.batch_stride),
            ]
        )
        place = self._memory.scratch(pointers.nbytes)
        self._memory.upload(place, pointers)
        others = place + _POINTER_BYTES * plan.x.batch
        solve = getattr(cublas, f"{letter}trsm_batched")
        arrays = (place, plan.a.leading, others, plan.x.leading, plan.x.batch)
        solve(self._handle, *how, *shape, one.ctypes.data, *arrays)


class Factoriser:
    """cuSOLVER, for Cholesky factors."""

    def __init__(self, cusolver: Any, fill_modes: Any, handle: int, memory: Any) -> None:
        self._cusolver, self._fill_modes, self._handle, self._memory = cusolver, fill_modes, handle, memory

    def run(self, plan: CholeskyPlan, address: Address) -> None:
        """Factor one matrix after the other. A matrix without a factor becomes NaN. Raises the errors of the binding."""
        memory, matrix, size = self._memory, plan.matrix, _BYTES[plan.dtype]
        start = address(plan.place)
        if address(plan.source_place) != start:
            memory.copy(start, address(plan.source_place), plan.place.size_bytes)
        for number in range(matrix.batch):
            place = start + number * matrix.batch_stride * size
            if self._factor(plan, place):
                self._clear_other_triangle(plan, place)
            else:
                for column in range(matrix.columns):
                    memory.fill(place + column * matrix.leading * size, _ALL_ONES, matrix.rows * size)

    def _factor(self, plan: CholeskyPlan, place: int) -> bool:
        cusolver, memory, letter = self._cusolver, self._memory, _LETTERS[plan.dtype]
        uplo = int(self._fill_modes.LOWER if plan.lower else self._fill_modes.UPPER)
        what = (self._handle, uplo, plan.matrix.rows, place, plan.matrix.leading)
        count = int(getattr(cusolver, f"{letter}potrf_buffer_size")(*what))
        # The status word comes first. The workspace follows, aligned to 256 bytes.
        scratch = memory.scratch(256 + count * _BYTES[plan.dtype])
        getattr(cusolver, f"{letter}potrf")(*what, scratch + 256, count, scratch)
        return memory.read_word(scratch) == 0

    def _clear_other_triangle(self, plan: CholeskyPlan, place: int) -> None:
        size = _BYTES[plan.dtype]
        for column in range(plan.matrix.columns):
            first, last = (0, column) if plan.lower else (column + 1, plan.matrix.rows)
            if last > first:
                start = place + (column * plan.matrix.leading + first) * size
                self._memory.fill(start, 0, (last - first) * size)
