"""The natural logarithm and its relatives as pairs: a table of ln c, and a polynomial on x/c - 1, at most 2^-8."""

from __future__ import annotations

from functools import cache

import numpy as np

from hlo_run.elementary import constants
from hlo_run.elementary.double_double import (
    Array,
    Pair,
    add,
    divide,
    head,
    multiply,
    negative,
    of,
    power_of_two,
    quick_two_sum,
    scale,
    square_root,
    two_product,
    two_sum,
)

# Mantissas are taken from 0.707 to 1.414, in 256 intervals.
_FIRST = 0x3FE6A00000000000
_SHIFT = 44
_BITS_OF_INVERSE = 11
_LAST_BIT = -42


@cache
def _table() -> list[Array]:
    """Return 1 / c with 12 bits, and -ln of it in two parts; 1 and 0 beside 1."""
    rows: list[tuple[float, ...]] = []
    for j in range(256):
        low, high = (np.array([_FIRST + (i << _SHIFT)]).view(np.float64).item() for i in (j, j + 1))
        scaled = 1 << _BITS_OF_INVERSE if 1.0 in (low, high) else round((1 << _BITS_OF_INVERSE) * 2 / (low + high))
        value = -constants.logarithm(scaled, 1 << _BITS_OF_INVERSE)
        rows.append((scaled / (1 << _BITS_OF_INVERSE), *constants.split(value, _LAST_BIT)))
    return constants.columns(rows)


@cache
def _log2() -> tuple[float, float]:
    return constants.split(constants.log2(), _LAST_BIT)


def log(x: Array, low: Array | None = None, lowest: Array | None = None, doublings: int = 0) -> Pair:
    """Return ln(2^doublings · (x + low + lowest)) for positive x; the others are small beside it, but maybe not beside x - 1."""
    small = x < 2.0**-1022
    if small.any():
        x = np.where(small, x * 2.0**54, x)
    bits = x.view(np.int64)
    place = bits - _FIRST
    k = place >> 52
    m = (bits - (k << 52)).view(np.float64)
    inverses, firsts, seconds = _table()
    j = (place >> _SHIFT) & 255
    inverse = inverses.take(j)
    top = head(m)
    r, rest = two_sum(top * inverse - 1, (m - top) * inverse)
    if low is not None:
        factor = power_of_two(np.maximum(-k, -1000)) * inverse
        r, error = two_sum(r, low * factor)
        rest = rest + error if lowest is None else rest + (error + lowest * factor)
    if small.any():
        k = k - 54 * small
    log_first, log_second = _log2()
    exponent = (k + doublings).astype(np.float64)
    whole = exponent * log_first + firsts.take(j)
    top = head(r)
    tail = (r - top) * (r + top) * 0.5 + r * rest
    series = 1 / 5 - r * (1 / 6 - r * (1 / 7 - r * (1 / 8 - r * (1 / 9))))
    cubic = (r * r) * r * (1 / 3 - r * (0.25 - r * series))
    value, error = quick_two_sum(whole, r)
    value, other = quick_two_sum(value, top * top * -0.5)
    return quick_two_sum(value, (error + other) + (rest + (exponent * log_second + seconds.take(j)) + (cubic - tail)))


def log1p(u: Pair) -> Pair:
    """Return ln(1 + u) for u > -1."""
    whole, low = two_sum(np.ones_like(u[0]), u[0])
    return log(whole, low, u[1])


def _square(x: Array) -> Pair:
    return two_product(x, x)


def asinh(x: Array) -> Pair:
    """Return asinh |x| for numbers from 2^-60."""
    size = np.abs(x)
    near = np.minimum(size, 2.0**100)
    one = of(np.ones_like(x))
    square = _square(near)
    # |x| + sqrt(x² + 1) = 1 + (|x| + x² / (1 + sqrt(x² + 1)))
    value = log1p(add(of(near), divide(square, add(one, square_root(add(square, one))))))
    return _far(size, value)


def acosh(x: Array) -> Pair:
    """Return acosh x for x > 1."""
    near = np.minimum(x, 2.0**100)
    less, more = two_sum(near, np.full_like(x, -1.0)), two_sum(near, np.ones_like(x))
    return _far(x, log1p(add(less, square_root(multiply(less, more)))))


def _far(size: Array, near: Pair) -> Pair:
    """Return ln(2 size) where it is large, else `near`."""
    far = size >= 2.0**100
    if not far.any():
        return near
    other = log(size, doublings=1)
    return np.where(far, other[0], near[0]), np.where(far, other[1], near[1])


def atanh(x: Array) -> Pair:
    """Return atanh |x| for |x| < 1."""
    size = np.abs(x)
    return scale(log1p(divide(of(2 * size), two_sum(np.ones_like(x), -size))), 0.5)


def signed(value: Pair, x: Array) -> Pair:
    """Return a pair of positive numbers with the signs of x."""
    below = x < 0
    other = negative(value)
    return np.where(below, other[0], value[0]), np.where(below, other[1], value[1])
