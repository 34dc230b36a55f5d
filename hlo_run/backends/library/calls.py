"""Map each library thunk to its implementation in numpy."""

from __future__ import annotations

from typing import assert_never

from hlo_run.artifact import (
    AsyncDoneThunk,
    CholeskyThunk,
    CollectiveThunk,
    ConvolutionThunk,
    CopyThunk,
    CustomCallThunk,
    FftThunk,
    GemmThunk,
    HostTransfer,
    KernelThunk,
    MemsetThunk,
    Nesting,
    ResizeThunk,
    RngSeedThunk,
    RngStateThunk,
    ScanThunk,
    SelectKThunk,
    SliceCopyThunk,
    SortThunk,
    Thunk,
    TriangularSolveThunk,
)
from hlo_run.backends.library.arrays import LibraryCall
from hlo_run.backends.library.collectives import lone_call
from hlo_run.backends.library.convolution import convolution_call
from hlo_run.backends.library.gemm import gemm_call
from hlo_run.backends.library.linalg import cholesky_call, fft_call, triangular_solve_call
from hlo_run.backends.library.matrix_calls import matrix_library_call
from hlo_run.backends.library.resize import resize_call
from hlo_run.backends.library.scan import scan_call
from hlo_run.backends.library.sort import select_k_call, sort_call


def library_call(thunk: Thunk) -> LibraryCall | None:
    """Return the library call of a thunk; None for thunks that are not library work."""
    match thunk:
        case GemmThunk():
            return gemm_call(thunk)
        case ConvolutionThunk():
            return convolution_call(thunk)
        case FftThunk():
            return fft_call(thunk)
        case CholeskyThunk():
            return cholesky_call(thunk)
        case TriangularSolveThunk():
            return triangular_solve_call(thunk)
        case ResizeThunk():
            return resize_call(thunk)
        case SelectKThunk():
            return select_k_call(thunk)
        case ScanThunk():
            return scan_call(thunk)
        case SortThunk():
            return sort_call(thunk)
        case CustomCallThunk():
            return matrix_library_call(thunk)
        case CollectiveThunk():
            return lone_call(thunk)
        case KernelThunk() | CopyThunk() | SliceCopyThunk() | MemsetThunk() | RngStateThunk() | RngSeedThunk():
            return None
        case HostTransfer() | Nesting() | AsyncDoneThunk():
            return None
        case _:
            assert_never(thunk)
