"""The angle of a point as a pair: a table of atan(j / 128), and a polynomial on the rest of the quotient."""

from __future__ import annotations

from functools import cache

import numpy as np

from hlo_run.elementary import constants
from hlo_run.elementary.double_double import (
    Array,
    Pair,
    choose,
    divide,
    head,
    multiply,
    of,
    quick_two_sum,
    square_root,
    subtract,
    two_sum,
)

_STEPS = 128


@cache
def _table() -> Pair:
    return constants.table(constants.arctangent(j, _STEPS) if j else 0 for j in range(_STEPS + 1))


@cache
def _pi() -> tuple[tuple[float, float], tuple[float, float]]:
    return constants.pair(constants.pi()), constants.pair(constants.pi() // 2)


def angle(y: Pair, x: Pair, is_left: Array | None = None) -> Pair:
    """Return the angle of (x, y), which are not negative; of (-x, y) where `is_left`. The larger is near 1, or both are 0."""
    steep = y[0] > x[0]
    short, long = choose(steep, x, y), choose(steep, y, x)
    if (long[0] == 0).any():
        long = np.where(long[0] == 0, 1.0, long[0]), long[1]
    j = np.rint(short[0] / long[0] * _STEPS)
    c = j * (1 / _STEPS)
    # (short - c long) / (long + c short), whose arctangent is what c lacks
    top = head(long[0])
    value, error = two_sum(short[0], -c * top)
    value, other = two_sum(value, -c * (long[0] - top))
    above = quick_two_sum(value, (error + other) + (short[1] - c * long[1]))
    top = head(short[0])
    value, error = quick_two_sum(long[0], c * top)
    below = quick_two_sum(value, error + (c * (short[0] - top) + (long[1] + c * short[1])))
    d, rest = divide(above, below)
    square = d * d
    cubic = d * square * (1 / 3 - square * (1 / 5 - square * (1 / 7 - square * (1 / 9))))
    firsts, seconds = _table()
    places = j.astype(np.int64)
    value, error = quick_two_sum(firsts.take(places), d)
    found = quick_two_sum(value, error + (seconds.take(places) + (rest - cubic)))
    pi, half = _pi()
    if steep.any():
        found = choose(steep, subtract(_constant(half, d), found), found)
    if is_left is not None and is_left.any():
        found = choose(is_left, subtract(_constant(pi, d), found), found)
    return found


def _constant(value: tuple[float, float], like: Array) -> Pair:
    return np.full_like(like, value[0]), np.full_like(like, value[1])


def _other_leg(x: Array) -> Pair:
    """Return sqrt(1 - x²) for |x| <= 1."""
    one = np.ones_like(x)
    return square_root(multiply(two_sum(one, -x), two_sum(one, x)))


def asin(x: Array) -> Pair:
    """Return asin |x| for 2^-60 <= |x| <= 1."""
    size = np.abs(x)
    return angle(of(size), _other_leg(size))


def acos(x: Array) -> Pair:
    """Return acos x for |x| < 1."""
    size = np.abs(x)
    return angle(_other_leg(size), of(size), x < 0)


def atan2(y: Array, x: Array) -> Pair:
    """Return the angle of (x, |y|), for numbers whose quotient is from 2^-400 to 2^400."""
    tall, wide = np.abs(y), np.abs(x)
    exponent = (np.maximum(tall, wide).view(np.int64) >> 52) - 1023
    # In two steps: 2^-exponent may be too small or too large for one number.
    half = exponent >> 1
    one = ((1023 - half) << 52).view(np.float64)
    other = ((1023 - (exponent - half)) << 52).view(np.float64)
    return angle(of(tall * one * other), of(wide * one * other), x < 0)
