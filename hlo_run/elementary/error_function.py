"""The error function as a pair: Taylor series about multiples of 1/64, made by integer arithmetic; and an approximation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev

from hlo_run.elementary import constants
from hlo_run.elementary.double_double import Array, Pair, head, quick_two_sum, two_sum

# Beyond it erf is 1 - 2^-55 at most.
LAST = 6.0
_STEPS = 64
_TERMS = 10
_BITS = 160
# The approximation has one polynomial for |x| < _NEAR, in x², and one up to LAST, of erfc(x) exp(x²).
_NEAR = 1.0
_DEGREES = (12, 26)


@cache
def _table() -> list[Array]:
    """Return the value (two parts), the derivative (two parts, 26 bits first) and the further coefficients at each center."""
    one = 1 << _BITS
    value = 0
    slope = (2 << (2 * _BITS)) // math.isqrt(constants.pi() << (2 * _BITS - constants.BITS))
    rows: list[tuple[float, ...]] = []
    for j in range(int(LAST * _STEPS) + 1):
        coefficients = _series(value, slope, j)
        wide = constants.BITS - _BITS
        rows.append(
            (
                *constants.pair(coefficients[0] << wide),
                *constants.pair(coefficients[1] << wide, 26),
                *(n / one for n in coefficients[2:_TERMS]),
            )
        )
        value = sum(n >> (6 * power) for power, n in enumerate(coefficients))
        slope = sum(power * n >> (6 * (power - 1)) for power, n in enumerate(coefficients) if power)
    return constants.columns(rows)


def _series(value: int, slope: int, j: int) -> list[int]:
    """Return the coefficients b of erf(j/64 + d): b(n+1) (n+1) = -2 (c b(n) + b(n-1)), by those of the derivative."""
    derivative = [slope, -2 * j * slope // _STEPS]
    while len(derivative) < 28:
        n = len(derivative) - 1
        derivative.append(-2 * (j * derivative[n] // _STEPS + derivative[n - 1]) // (n + 1))
    return [value, *(b // (n + 1) for n, b in enumerate(derivative))]


def erf(x: Array) -> Pair:
    """Return erf x for 2^-60 <= |x| <= 6."""
    size = np.abs(x)
    j = np.rint(size * _STEPS)
    d = size - j * (1 / _STEPS)
    value, low, slope, slope_low, *others = (column.take(j.astype(np.int64)) for column in _table())
    tail = others[-1]
    for coefficient in others[-2::-1]:
        tail = coefficient + d * tail
    top = head(d)
    first, error = two_sum(value, slope * top)
    small = slope * (d - top) + slope_low * d + d * d * tail
    first, low = quick_two_sum(first, error + (low + small))
    return np.copysign(first, x), np.where(x < 0, -low, low)


def approximate(x: Array) -> Array:
    """Return erf x with a relative error of about 1e-14, which depends on the machine."""
    near, far = _polynomials()
    size = np.minimum(np.abs(x), LAST)
    square = size * size
    small = x * _value(near, np.minimum(square, _NEAR), 0.0, _NEAR)
    complement = np.exp(-square) * _value(far, np.maximum(size, _NEAR), _NEAR, LAST)
    return np.where(size < _NEAR, small, np.copysign(1 - complement, x))


def _value(coefficients: list[float], x: Array, low: float, high: float) -> Array:
    """Evaluate a polynomial, whose variable is x mapped from [low, high] to [-1, 1]."""
    place = (x - (low + high) / 2) * (2 / (high - low))
    out = np.full_like(place, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        out *= place
        out += coefficient
    return out


@cache
def _polynomials() -> tuple[list[float], list[float]]:
    near = _interpolate(lambda square: math.erf(math.sqrt(square)) / math.sqrt(square), 0.0, _NEAR, _DEGREES[0])
    far = _interpolate(lambda x: math.erfc(x) * math.exp(x * x), _NEAR, LAST, _DEGREES[1])
    return near, far


def _interpolate(function: Callable[[float], float], low: float, high: float, degree: int) -> list[float]:
    """Return the polynomial through the Chebyshev points of [low, high], mapped to [-1, 1]; lowest power first."""
    points = [math.cos(math.pi * (k + 0.5) / (degree + 1)) for k in range(degree + 1)]
    values = [function(point * (high - low) / 2 + (low + high) / 2) for point in points]
    return [float(c) for c in chebyshev.cheb2poly(chebyshev.chebfit(points, values, degree))]
