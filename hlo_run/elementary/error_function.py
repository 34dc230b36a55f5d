"""The error function as a pair: Taylor series about multiples of 1/64, made by integer arithmetic."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from hlo_run.elementary import constants
from hlo_run.elementary.double_double import Array, Pair, head, quick_two_sum, two_sum

# Beyond it erf is 1 - 2^-55 at most.
LAST = 6.0
_STEPS = 64
_TERMS = 10
_BITS = 160


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
    """Return the coefficients of erf(j/64 + d): b(n+1) (n+1) = -2 (c b(n) + b(n-1)) for those of the derivative."""
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
