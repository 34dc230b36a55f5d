"""The error function on f64 arrays, by two polynomials that interpolate the C library's values; made at first use.

Near 0, erf(x) / x is a polynomial in x². Farther out, erfc(x)·exp(x²) is a polynomial in x. The relative error is
at most 1e-14: far below the last digit of any narrower type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev

from hlo_run.reference.values import Array

# The first polynomial is for |x| < _NEAR, the second up to _ONE. Beyond _ONE, erf is ±1 in f64.
_NEAR = 1.0
_ONE = 6.0
_DEGREES = (12, 26)


def erf(x: Array) -> Array:
    """Return the error function of f64 numbers; NaN stays."""
    near, far = _polynomials()
    size = np.minimum(np.abs(x), _ONE)
    square = size * size
    small = x * _value(near, np.minimum(square, _NEAR), 0.0, _NEAR)
    complement = np.exp(-square) * _value(far, np.maximum(size, _NEAR), _NEAR, _ONE)
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
    far = _interpolate(lambda x: math.erfc(x) * math.exp(x * x), _NEAR, _ONE, _DEGREES[1])
    return near, far


def _interpolate(function: Callable[[float], float], low: float, high: float, degree: int) -> list[float]:
    """Return the polynomial through the Chebyshev points of [low, high], mapped to [-1, 1]; lowest power first."""
    points = [math.cos(math.pi * (k + 0.5) / (degree + 1)) for k in range(degree + 1)]
    values = [function(point * (high - low) / 2 + (low + high) / 2) for point in points]
    return [float(c) for c in chebyshev.cheb2poly(chebyshev.chebfit(points, values, degree))]
