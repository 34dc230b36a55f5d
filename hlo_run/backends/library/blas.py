"""Matrix products by numpy's BLAS, split over the cores by our own thread pool.

OpenBLAS' threads spin while they wait, which slows other work on the same cores. `calm_blas` therefore limits OpenBLAS to one
thread, and `product` splits large products.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hlo_run.backends.library.arrays import Array
from hlo_run.parallel import available_cores

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_WORTH_A_THREAD = 8_000_000
"""The multiplications that are worth a second thread."""
_CORES = available_cores()
_guard = threading.Lock()
_depth = 0
_before = 1


def multiply(left: Array, right: Array, out: Array) -> None:
    """Write left[.., m, k] . right[.., k, n] to `out`. All have the same rank and may be views; a size of 1 is broadcast."""
    product(left, right, out)()


def product(left: Array, right: Array, out: Array) -> Callable[[], object]:
    """Return a function that does `multiply` for these arrays; it can be called many times."""
    if out.ndim == 3 and out.shape[0] == 1:
        left, right, out = left[0], right[0], out[0]
    work = out.size * left.shape[-1]
    if work < 2 * _WORTH_A_THREAD or _CORES == 1:
        return partial(np.matmul, left, right, out)
    parts = min(_CORES, work // _WORTH_A_THREAD)
    axis = max(range(-out.ndim, 0), key=lambda a: (out.shape[a] >= parts, a == -out.ndim, out.shape[a]))
    return lambda: in_parts(lambda piece: _multiply_piece(left, right, out, axis, piece), out.shape[axis], parts)


def _multiply_piece(left: Array, right: Array, out: Array, axis: int, piece: slice) -> None:
    where: tuple[object, ...] = (..., piece, *(slice(None),) * (-axis - 1))
    one = left if axis == -1 or left.shape[axis] == 1 else left[where]
    two = right if axis == -2 or right.shape[axis] == 1 else right[where]
    with np.errstate(all="ignore"):  # numpy keeps this setting per thread
        np.matmul(one, two, out=out[where])


def in_parts(work: Callable[[slice], None], count: int, parts: int) -> None:
    """Call `work` in parallel with ranges that cover `count`. Raises the first error after all ranges are done.

    The calling thread also takes the ranges that no other thread has begun, which saves time on a busy machine.
    """
    from concurrent.futures import wait  # imports logging

    edges = [count * number // parts for number in range(parts + 1)]
    pieces = [slice(begin, end) for begin, end in pairwise(edges) if end > begin]
    waiting = [_pool().submit(work, piece) for piece in pieces[1:]]
    try:
        work(pieces[0])
        for piece, other in zip(pieces[1:], waiting, strict=True):
            if other.cancel():
                work(piece)
    finally:
        begun = [other for other in waiting if not other.cancelled()]
        wait(begun)
    for other in begun:
        other.result()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_CORES, "host-library")


@contextmanager
def calm_blas() -> Generator[None]:
    """Limit BLAS to the calling thread within the context. Only OpenBLAS can be limited."""
    global _depth, _before
    control = _thread_control()
    if control is None:
        yield
        return
    ask, tell = control
    with _guard:
        if _depth == 0:
            _before = ask()
            tell(1)
        _depth += 1
    try:
        yield
    finally:
        with _guard:
            _depth -= 1
            if _depth == 0:
                tell(_before)


@lru_cache(maxsize=1)
def _thread_control() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions that get and set OpenBLAS' thread count; None if numpy uses another BLAS."""
    try:
        extension: Any = importlib.import_module("numpy._core._multiarray_umath")
        library = ctypes.CDLL(extension.__file__)
    except (ImportError, OSError):
        return None
    for spelling in ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
        ask: Any = getattr(library, spelling.format("get"), None)
        tell: Any = getattr(library, spelling.format("set"), None)
        if ask is not None and tell is not None:
            return ask, tell
    return None


def merged(array: Array, *groups: Sequence[int]) -> Array:
    """Return `array` with each group of dimensions merged into one, in the given order. A view if the strides allow it."""
    order = [dim for group in groups for dim in group]
    sizes = [math.prod(array.shape[dim] for dim in group) for group in groups]
    return array.transpose(order).reshape(sizes)
