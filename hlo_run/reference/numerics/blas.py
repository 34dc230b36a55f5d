"""Compute matrix products with numpy's BLAS, in our own threads if they are large.

OpenBLAS uses its threads even for products of some microseconds, and they spin while they wait for each other. If other
programs use the cores too, a product of 30 us takes 50 ms. So BLAS has one thread while the reference runs.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from hlo_run.reference.numerics.ordered_products import is_ordered, ordered_matmul
from hlo_run.reference.values import Array, in_threads, quiet

# The smallest number of multiplications for which a second thread pays off.
THREADED_PRODUCTS = 1 << 23
# Names of OpenBLAS's functions: in numpy's builds and the system's, with and without 64-bit integers.
_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "")

_lock = threading.Lock()
_runs: list[int] = []


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Make OpenBLAS compute in the calling thread only; another BLAS is unchanged. Contexts may overlap."""
    functions = _thread_functions()
    if functions is None:
        yield
        return
    get, put = functions
    with _lock:
        _runs.append(_runs[0] if _runs else get())
        put(1)
    try:
        yield
    finally:
        with _lock:
            before = _runs.pop()
            if not _runs:
                put(before)


@cache
def _thread_functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions that get and set the number of BLAS threads; None for a BLAS other than OpenBLAS."""
    try:
        # The extension module that BLAS is linked to; numpy may rename this private module.
        core: Any = importlib.import_module("numpy._core._multiarray_umath")
        library = ctypes.CDLL(core.__file__)
    except (ImportError, OSError):
        return None
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            get: Any = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            put: Any = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and put is not None:
                return get, put
    return None


def matmul(left: Array, right: Array) -> Array:
    """Return the products of [.., rows, depth] and [.., depth, columns]; one of the last two dimensions is contiguous."""
    if is_ordered():
        return ordered_matmul(left, right)
    # An upper bound of the multiplications if both sides are stacks.
    if left.size * right.size < THREADED_PRODUCTS:
        return np.matmul(left, right)
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows, columns = left.shape[-2], right.shape[-1]
    if math.prod(stack) * rows * columns * left.shape[-1] < THREADED_PRODUCTS:
        return np.matmul(left, right)
    out = np.empty((*stack, rows, columns), left.dtype)
    many = math.prod(stack)
    if many > 1 and left.shape[:-2] == right.shape[:-2]:
        # Each thread takes some of the matrices.
        a, b, c = (x.reshape(many, *x.shape[-2:]) for x in (left, right, out))
        _in_parts(lambda part: np.matmul(a[part], b[part], out=c[part]), many)
    elif rows >= columns:
        _in_parts(lambda part: np.matmul(left[..., part, :], right, out=out[..., part, :]), rows)
    else:
        _in_parts(lambda part: np.matmul(left, right[..., part], out=out[..., part]), columns)
    return out


def _in_parts(work: Callable[[slice], object], count: int) -> None:
    def some(begin: int, end: int) -> None:
        # np.errstate holds for one thread.
        with quiet():
            work(slice(begin, end))

    in_threads(some, count)
