"""Cube root and reciprocal square root as pairs: an approximation in f64, then its exact error."""

from __future__ import annotations

import numpy as np

from hlo_run.elementary.double_double import Array, Pair, multiply, of, quick_two_sum, subtract, two_product


def cbrt(x: Array) -> tuple[Pair, Array]:
    """Return the cube root of x as a pair and a power of two, for finite x other than 0."""
    size, extra = _normal(x, 162)
    exponent = (size.view(np.int64) >> 52) - 1023
    third = exponent // 3
    scaled = (size.view(np.int64) - (third * 3 << 52)).view(np.float64)  # from 1 to 8
    root = 0.65 + scaled * (0.4 - scaled * 0.03)
    for _ in range(4):
        root = (2 * root + scaled / (root * root)) * (1 / 3)
    cube = multiply(two_product(root, root), of(root))
    error = ((scaled - cube[0]) - cube[1]) / (3 * root * root)
    value, low = quick_two_sum(root, error)
    sign = np.copysign(1.0, x)
    return (value * sign, low * sign), third - extra // 3


def rsqrt(x: Array) -> tuple[Pair, Array]:
    """Return 1 / sqrt(x) as a pair and a power of two, for finite x > 0."""
    size, extra = _normal(x, 108)
    half = ((size.view(np.int64) >> 52) - 1023) >> 1
    scaled = (size.view(np.int64) - (half * 2 << 52)).view(np.float64)  # from 1 to 4
    root = 1 / np.sqrt(scaled)
    left = subtract(of(np.ones_like(x)), multiply(two_product(root, root), of(scaled)))
    return quick_two_sum(root, 0.5 * root * left[0]), extra // 2 - half


def _normal(x: Array, exponent: int) -> tuple[Array, Array]:
    """Return |x|, subnormal numbers times 2^exponent, and the exponents."""
    size = np.abs(x)
    small = size < 2.0**-1022
    if not small.any():
        return size, np.zeros(x.shape, np.int64)
    return np.where(small, size * 2.0**exponent, size), np.where(small, exponent, 0)
