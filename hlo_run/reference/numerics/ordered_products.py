"""Matrix products whose sums have one order on every machine, for the values that passes fold into constants.

The order of BLAS depends on the processor and on the number of threads. Here every product and every sum is rounded by itself,
in f64: the products of f32 numbers are exact there, and their sum is rounded to f32 once.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from hlo_run.reference.complex_functions import imaginary_part, make_complex, real_part
from hlo_run.reference.values import Array

# Results of more elements are summed term by term, a step for all of them; others along the depth.
_LARGE = 256
# The numbers that are multiplied at once.
_AT_ONCE = 1 << 16

_lock = threading.Lock()
_users = 0


@contextmanager
def ordered_products() -> Generator[None]:
    """Make the reference multiply matrices in one order. Contexts may overlap, also of several threads."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1


def is_ordered() -> bool:
    """True inside of `ordered_products`."""
    return _users > 0


def ordered_matmul(left: Array, right: Array) -> Array:
    """Return the products of [.., rows, depth] and [.., depth, columns] of floats or complex numbers."""
    if left.dtype.kind != "c":
        return _real(left.astype(np.float64), right.astype(np.float64)).astype(left.dtype)
    a, b, p, q = (part(x).astype(np.float64) for x in (left, right) for part in (real_part, imaginary_part))
    return make_complex(_real(a, p) - _real(b, q), _real(a, q) + _real(b, p)).astype(left.dtype)


def _real(left: Array, right: Array) -> Array:
    rows, columns, depth = left.shape[-2], right.shape[-1], left.shape[-1]
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    out = np.zeros((*stack, rows, columns))
    if rows * columns >= _LARGE:
        for k in range(depth):
            out += left[..., :, k, None] * right[..., None, k, :]
        return out
    turned = np.ascontiguousarray(np.swapaxes(right, -1, -2))
    step = max(1, _AT_ONCE // max(1, out.size))
    for start in range(0, depth, step):
        part = slice(start, start + step)
        out += np.add.reduce(left[..., :, None, part] * turned[..., None, :, part], axis=-1)
    return out
