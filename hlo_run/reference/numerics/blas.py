"""Matrix products by the BLAS behind numpy, on threads of ours where they are large.

OpenBLAS starts its threads for products of some microseconds, and they spin while they wait for each other: where other
programs want the cores too, a product of 30 us takes 50 ms. So while the reference runs, BLAS has one thread.
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

from hlo_run.reference.values import Array, in_threads, quiet

# Multiplications from which on a second core is worth the start of a thread.
THREADED_PRODUCTS = 1 << 23
# Names of OpenBLAS' functions in numpy's builds, with and without 64-bit integers, and in builds that take the system's.
_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "")

_lock = threading.Lock()
_runs: list[int] = []


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Let BLAS use the calling thread alone, if it is one that can be told so; runs may overlap."""
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
    """Return what gets and sets the number of BLAS' threads; None for a BLAS other than OpenBLAS."""
    try:
        # The extension module that BLAS is linked to: its name is numpy's own business.
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
    """Return the products of [.., rows, depth] and [.., depth, columns], both contiguous in one of the last two dimensions."""
    # An upper bound where both sides are stacks.
    if left.size * right.size < THREADED_PRODUCTS:
        return np.matmul(left, right)
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows, columns = left.shape[-2], right.shape[-1]
    if math.prod(stack) * rows * columns * left.shape[-1] < THREADED_PRODUCTS:
        return np.matmul(left, right)
    out = np.empty((*stack, rows, columns), left.dtype)
    many = math.prod(stack)
    if many > 1 and left.shape[:-2] == right.shape[:-2]:
        # One thread takes some of the matrices.
        a, b, c = (x.reshape(many, *x.shape[-2:]) for x in (left, right, out))
        _in_parts(lambda part: np.matmul(a[part], b[part], out=c[part]), many)
    elif rows >= columns:
        _in_parts(lambda part: np.matmul(left[..., part, :], right, out=out[..., part, :]), rows)
    else:
        _in_parts(lambda part: np.matmul(left, right[..., part], out=out[..., part]), columns)
    return out


def _in_parts(work: Callable[[slice], object], count: int) -> None:
    def some(begin: int, end: int) -> None:
        # Errors are quiet per thread.
        with quiet():
            work(slice(begin, end))

    in_threads(some, count)
