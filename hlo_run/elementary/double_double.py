"""Arithmetic on sums of two f64 numbers, `hi + lo`, of arrays: about 106 bits from +, -, *, / and sqrt.

Every step is an operation that IEEE 754 rounds exactly, in a fixed order, in a numpy call of its own. So no compiler can
contract a product and a sum, and every machine gives the same bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Pair: TypeAlias = tuple[Array, Array]

# Clears the low 27 bits of the mantissa: the product of two such numbers is exact.
_HEAD = np.int64(-(1 << 27))


def head(x: Array) -> Array:
    """Return `x` truncated to 26 bits."""
    return (x.view(np.int64) & _HEAD).view(np.float64)


def quick_two_sum(a: Array, b: Array) -> Pair:
    """Return the sum and its exact error, for |a| >= |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


def two_sum(a: Array, b: Array) -> Pair:
    """Return the sum and its exact error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Array) -> Pair:
    """Return the product and its error; exact but for 2^-106 of the product."""
    p = a * b
    a1, b1 = head(a), head(b)
    a2, b2 = a - a1, b - b1
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def add(x: Pair, y: Pair) -> Pair:
    """Return x + y; exact to 2^-104 of the larger operand."""
    s, e = two_sum(x[0], y[0])
    return quick_two_sum(s, e + (x[1] + y[1]))


def subtract(x: Pair, y: Pair) -> Pair:
    """Return x - y; exact to 2^-104 of the larger operand."""
    return add(x, (-y[0], -y[1]))


def multiply(x: Pair, y: Pair) -> Pair:
    """Return x · y."""
    p, e = two_product(x[0], y[0])
    return quick_two_sum(p, e + (x[0] * y[1] + x[1] * y[0]))


def divide(x: Pair, y: Pair) -> Pair:
    """Return x / y."""
    q = x[0] / y[0]
    p, e = two_product(q, y[0])
    return quick_two_sum(q, (((x[0] - p) - e) + (x[1] - q * y[1])) / y[0])


def square_root(x: Pair) -> Pair:
    """Return the square root of positive numbers; 0 for 0."""
    root = np.sqrt(x[0])
    p, e = two_product(root, root)
    safe = np.maximum(root, 2.0**-1000)
    return quick_two_sum(root, (((x[0] - p) - e) + x[1]) / (2 * safe))


def scale(x: Pair, factor: float) -> Pair:
    """Return the pair times a power of two."""
    return x[0] * factor, x[1] * factor


def negative(x: Pair) -> Pair:
    """Return -x."""
    return -x[0], -x[1]


def of(x: Array) -> Pair:
    """Return f64 numbers as pairs."""
    return x, np.zeros_like(x)


def choose(mask: Array, x: Pair, y: Pair) -> Pair:
    """Return the pairs of `x` where the mask is true, else of `y`."""
    return np.where(mask, x[0], y[0]), np.where(mask, x[1], y[1])


def power_of_two(exponent: Array) -> Array:
    """Return 2^exponent for integers (i64) from -1022 to 1023."""
    return ((exponent + 1023) << 52).view(np.float64)


def times_power_of_two(x: Array, exponent: Array) -> Array:
    """Return x · 2^exponent, rounded once, for |exponent| < 2000 and numbers near 1."""
    half = exponent >> 1
    return x * power_of_two(half) * power_of_two(exponent - half)
