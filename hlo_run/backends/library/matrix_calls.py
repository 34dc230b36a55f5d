"""Library calls of JAX's linear algebra (`hlo/matrix_calls.py`). The first call imports `lapack.py` and SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

from hlo_run import custom_calls
from hlo_run.artifact import ArraySpec, ArrayTree, CustomCallThunk, TriangularSolveThunk, tree_leaves
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.backends.library.linalg import triangular_solve_call
from hlo_run.hlo.matrix_calls import MatrixCall, matrix_call

_TRANSPOSE: dict[str, Literal["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]] = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}


def is_user_function(thunk: CustomCallThunk) -> bool:
    """True unless the library runs the call. A registered function takes precedence over the library."""
    return custom_calls.is_registered(thunk.target) or matrix_call(thunk.target, thunk.config) is None


def matrix_library_call(thunk: CustomCallThunk) -> LibraryCall | None:
    """Return the library call of JAX's linear algebra custom calls; None for other targets."""
    call = matrix_call(thunk.target, thunk.config)
    if call is None:
        return None
    inputs, outputs = _arrays(thunk.operands), tuple(tree_leaves(thunk.result))
    if call.function == "trsm":
        return triangular_solve_call(_solve_thunk(thunk.name, call, inputs, outputs[0]))

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        # Imported by name, because SciPy is only needed when a call runs.
        import_module("hlo_run.backends.library.lapack").compute(call, arrays, results)

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
