"""e^x and its relatives as pairs: a table of 2^(j/256), and a polynomial on |r| <= ln 2 / 512."""

from __future__ import annotations

from functools import cache

import numpy as np

from hlo_run.elementary import constants
from hlo_run.elementary.double_double import (
    Array,
    Pair,
    add,
    choose,
    divide,
    head,
    of,
    power_of_two,
    quick_two_sum,
    scale,
    times_power_of_two,
    two_sum,
)

_STEPS = 256


@cache
def _table() -> Pair:
    """Return 2^(j / 256) as pairs with 26 bits first."""
    log2 = constants.log2()
    return constants.table((constants.exponential(j * log2 // _STEPS) for j in range(_STEPS)), 26)


@cache
def _step() -> tuple[float, float, float, float]:
    """Return ln 2 / 256 in three parts, of which the products with 19-bit numbers are exact, and 256 / ln 2."""
    first, second, third = constants.parts(constants.log2() // _STEPS, 34, 3)
    return first, second, third, _STEPS * constants.ONE / constants.log2()


def _reduced(x: Array, low: Array | None) -> tuple[Array, Pair]:
    """Return k and expm1(r), for x = k ln 2 / 256 + r; the relative error is below 2^-72."""
    first, second, third, inverse = _step()
    k = np.rint(x * inverse)
    r, rest = two_sum(x - k * first, -k * second)
    rest = rest - k * third
    if low is not None:
        rest = rest + low
    top = head(r)
    tail = (r - top) * (r + top) * 0.5 + r * rest
    cubic = (r * r) * r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720))))
    value, error = quick_two_sum(r, top * top * 0.5)
    return k.astype(np.int64), (value, error + (rest + (tail + cubic)))


def _times_table(k: Array, m: Pair) -> tuple[Pair, Array]:
    """Return 2^(k / 256) (1 + m) as a pair near 1 and a power of two."""
    first, second = _table()
    j = k & (_STEPS - 1)
    big, small = first.take(j), second.take(j)
    top = head(m[0])
    value, error = quick_two_sum(big, big * top)
    return quick_two_sum(value, error + (big * ((m[0] - top) + m[1]) + (small + small * (m[0] + m[1])))), k >> 8


def exp(x: Array, low: Array | None = None) -> tuple[Pair, Array]:
    """Return e^(x + low) for |x| < 750 as a pair p and integers k: p · 2^k."""
    k, m = _reduced(x, low)
    return _times_table(k, m)


def expm1(x: Array) -> Pair:
    """Return e^x - 1, for 2^-60 <= |x| < 710."""
    k, m = _reduced(x, None)
    (value, low), exponent = _times_table(k, m)
    value, low = times_power_of_two(value, exponent), times_power_of_two(low, exponent)
    whole, error = two_sum(value, np.full_like(value, -1.0))
    return choose(k == 0, quick_two_sum(*m), quick_two_sum(whole, error + low))


def cosh_sinh(x: Array) -> tuple[Pair, Pair, Array]:
    """Return cosh x and |sinh x| as pairs and a power of two of both, for 2^-60 <= |x| < 711."""
    size = np.abs(x)
    near = np.minimum(size, 40.0)
    u = expm1(near)
    one = (np.ones_like(u[0]), np.zeros_like(u[0]))
    whole = add(u, one)
    sinh = scale(add(u, divide(u, whole)), 0.5)
    cosh = scale(add(whole, divide(one, whole)), 0.5)
    exponent = np.zeros(x.shape, np.int64)
    far = size >= 40.0
    if far.any():
        p, k = exp(size)
        sinh, cosh, exponent = choose(far, p, sinh), choose(far, p, cosh), np.where(far, k - 1, exponent)
    return cosh, sinh, exponent


def tanh(x: Array) -> Pair:
    """Return tanh x for |x| >= 2^-60."""
    u = expm1(2 * np.minimum(np.abs(x), 25.0))
    value, low = divide(u, add(u, (np.full_like(u[0], 2.0), np.zeros_like(u[0]))))
    return np.copysign(value, x), np.where(x < 0, -low, low)


def logistic(x: Array) -> tuple[Pair, Array]:
    """Return 1 / (1 + e^-x) as a pair and a power of two, for |x| < 750."""
    p, k = exp(-np.abs(x))
    below = x < 0
    factor = power_of_two(np.maximum(k, -1000))
    one = of(np.ones_like(x))
    whole = add(one, (p[0] * factor, p[1] * factor))
    return divide(choose(below, p, one), whole), np.where(below, k, 0)
