"""Complex numbers whose parts are pairs, and the functions of real pairs that complex functions are made of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from hlo_run.elementary import exponential, logarithm
from hlo_run.elementary.double_double import (
    Array,
    Pair,
    add,
    choose,
    divide,
    multiply,
    of,
    power_of_two,
    scale,
    square_root,
    times_power_of_two,
)
from hlo_run.elementary.inverse_trigonometric import angle

Complex: TypeAlias = tuple[Pair, Pair]

_TINY = 2.0**-60
# e^x overflows even times the smallest cosine, or nearly so.
_END = 745.0


def one_like(x: Array) -> Pair:
    """Return 1."""
    return of(np.ones_like(x))


def shifted(x: Pair, exponent: Array) -> Pair:
    """Return x · 2^exponent."""
    return times_power_of_two(x[0], exponent), times_power_of_two(x[1], exponent)


def square(x: Pair) -> Pair:
    """Return x²."""
    return multiply(x, x)


def product(x: Pair, y: Pair) -> Pair:
    """Return x · y; a zero has the sign of the factors."""
    value, low = multiply(x, y)
    return np.where(value == 0, x[0] * y[0], value), low


def value(x: Pair) -> Array:
    """Return the nearest f64; a zero keeps its sign."""
    return np.where(x[1] == 0, x[0], x[0] + x[1])


def modulus(z: Complex) -> Pair:
    """Return |z|, for parts between 2^-480 and 2^480 in size, or 0."""
    return square_root(add(square(z[0]), square(z[1])))


def root(z: Complex) -> Complex:
    """Return the principal square root of a + ib for b >= 0."""
    a, b = z
    left = a[0] < 0
    size = choose(left, (-a[0], -a[1]), a)
    long = square_root(scale(add(size, modulus(z)), 0.5))
    double = scale(long, 2.0)
    short = divide(b, (np.where(double[0] == 0, 1.0, double[0]), double[1]))
    return choose(left, short, long), choose(left, long, short)


def log(z: Complex) -> Complex:
    """Return ln z for b >= 0, other than 0; parts between 2^-480 and 2^480 in size, or 0."""
    a, b = z
    whole = add(square(a), square(b))
    left = a[0] < 0
    size = choose(left, (-a[0], -a[1]), a)
    return scale(logarithm.log(whole[0], whole[1]), 0.5), angle(b, size, left)


def near_one(z: Complex) -> tuple[Complex, Array]:
    """Return both parts divided by 2^e, so that the larger is from 0.5 to 4, and e, which is even."""
    a, b = z
    size = np.maximum(np.abs(a[0]), np.abs(b[0]))
    exponent = (size.view(np.int64) >> 52) - 1023
    exponent = np.where((exponent == -1) | (exponent == 0), 0, exponent) & ~1
    half = -(exponent >> 1)
    factor, other = power_of_two(half), power_of_two(-exponent - half)
    return ((a[0] * factor * other, a[1] * factor * other), (b[0] * factor * other, b[1] * factor * other)), exponent


def cosh_sinh(x: Array) -> tuple[Pair, Pair, Array]:
    """Return cosh x, sinh x and the power of two of both, for x >= 0."""
    tiny = x < _TINY
    cosh, sinh, exponent = exponential.cosh_sinh(np.where(tiny, 0.5, np.minimum(x, _END)))
    return choose(tiny, one_like(x), cosh), choose(tiny, of(x), sinh), np.where(tiny, 0, exponent)


def expm1(x: Array) -> Pair:
    """Return e^x - 1 for |x| < 50."""
    tiny = np.abs(x) < _TINY
    return choose(tiny, of(x), exponential.expm1(np.where(tiny, 0.5, x)))


def asinh(x: Pair) -> Pair:
    """Return asinh x for x >= 0 and below 2^480."""
    whole = square(x)
    one = one_like(x[0])
    return logarithm.log1p(add(x, divide(whole, add(one, square_root(add(whole, one))))))
