"""Sine and cosine as pairs: a reduction by multiples of pi / 128, exact for every f64, a table, and two polynomials."""

from __future__ import annotations

from functools import cache

import numpy as np

from hlo_run.elementary import constants
from hlo_run.elementary.double_double import Array, Pair, add, divide, head, multiply, of, quick_two_sum, two_sum

_STEPS = 256  # in a circle
_PLAIN = 2.0**20  # the largest numbers that are reduced with pi / 128 in four parts
_WORDS = 6
_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
# Fractions of a circle: enough bits for the largest exponent and the words after it.
_FAR_BITS = 1300


@cache
def _table() -> list[Array]:
    """Return sin and cos of multiples of pi / 128 as pairs, with 26 bits first."""
    step = 2 * constants.pi() // _STEPS
    first = [constants.sine_and_cosine(j * step) for j in range(_STEPS // 8)]
    half = constants.sine_and_cosine(constants.pi() // 4)
    octant = [*first, half, *((cosine, sine) for sine, cosine in reversed(first))]
    quarter = [*octant[:-1]]
    rows: list[tuple[float, ...]] = []
    for turn in range(4):
        for sine, cosine in quarter:
            values = ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[turn]
            rows.append(tuple(part for n in values for part in _signed_pair(n)))
    return constants.columns(rows)


def _signed_pair(n: int) -> tuple[float, float]:
    first, second = constants.pair(abs(n), 26)
    return (first, second) if n >= 0 else (-first, -second)


@cache
def _parts() -> tuple[list[float], float, tuple[float, float]]:
    step = 2 * constants.pi() // _STEPS
    return constants.parts(step, 27, 4), constants.ONE / step, constants.pair(step)


@cache
def _far_words() -> Array:
    """Return for the exponents e from -53 to 1023 the six words of the fraction of 2^e / (2 pi) circles, as [word, e]."""
    # 1 / (2 pi) to _FAR_BITS bits, from pi to as many.
    whole = (1 << (2 * _FAR_BITS)) // (2 * _long_pi())
    rows: list[list[int]] = []
    for e in range(-53, 1024):
        shifted = whole >> (_FAR_BITS - 32 * _WORDS - e)
        fraction = shifted & ((1 << (32 * _WORDS)) - 1)
        rows.append([fraction >> (32 * word) & 0xFFFFFFFF for word in range(_WORDS)])
    return np.ascontiguousarray(np.array(rows, np.uint64).T)


def _long_pi() -> int:
    """Return pi · 2^_FAR_BITS."""

    def inverse(n: int) -> int:
        term, total, k = (1 << (_FAR_BITS + 16)) // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    return 4 * (4 * inverse(5) - inverse(239)) >> 16


def _near(x: Array, low: Array | None) -> tuple[Array, Pair]:
    (first, second, third, fourth), inverse, _ = _parts()
    k = np.rint(x * inverse)
    r, error = two_sum(x - k * first, -k * second)
    r, other = two_sum(r, -k * third)
    rest = (error + other) - k * fourth
    return k.astype(np.int64), quick_two_sum(r, rest if low is None else rest + low)


def _far(x: Array, low: Array | None) -> tuple[Array, Pair]:
    """Reduce numbers from 2^20 by products with the bits of 1 / (2 pi), in 32-bit words (Payne and Hanek)."""
    bits = x.view(np.int64)
    exponent = ((bits >> 52) & 2047) - 1075
    m = ((bits & ((1 << 52) - 1)) | (1 << 52)).astype(np.uint64)
    words = _far_words()[:, exponent + 53]
    m_low, m_high = m & _LOW, m >> _WORD
    sums = [np.zeros(x.shape, np.uint64) for _ in range(_WORDS)]
    for place, word in enumerate(words):
        for value, shift in ((m_low * word, 0), (m_high * word, 1)):
            for part, at in ((value & _LOW, place + shift), (value >> _WORD, place + shift + 1)):
                if at < _WORDS:
                    sums[at] = sums[at] + part
    for place in range(_WORDS - 1):
        sums[place + 1] = sums[place + 1] + (sums[place] >> _WORD)
        sums[place] = sums[place] & _LOW
    top = (sums[5] & _LOW).astype(np.int64)
    k = (top + (1 << 23)) >> 24
    # In steps of pi / 128: what is left of the top word, then the other words.
    total: Pair = of((top - (k << 24)).astype(np.float64) * 2.0**-24)
    for place in range(4, 0, -1):
        total = add(total, of(sums[place].astype(np.float64) * 2.0 ** (-24 - 32 * (5 - place))))
    step = _parts()[2]
    r = multiply(total, (np.full_like(x, step[0]), np.full_like(x, step[1])))
    sign = np.copysign(1.0, x)
    r = r[0] * sign, r[1] * sign
    return k * sign.astype(np.int64), r if low is None else quick_two_sum(r[0], r[1] + low)


def sine_cosine(x: Array, low: Array | None = None) -> tuple[Pair, Pair, Array]:
    """Return sin and cos of x + low, and where the reduction is not sure to 2^-66."""
    far = np.abs(x) >= _PLAIN
    if not far.any():
        k, (r, rest) = _near(x, low)
    elif far.all():
        k, (r, rest) = _far(x, low)
    else:
        k, (r, rest) = _near(np.where(far, 0.0, x), low)
        places = np.flatnonzero(far)
        k[places], (r[places], rest[places]) = _far(x[places], None if low is None else low[places])
    unsure = (np.abs(r) < 2.0**-30) & (k != 0)
    j = k & (_STEPS - 1)
    sine, sine_low, cosine, cosine_low = (column.take(j) for column in _table())
    square = r * r
    top = head(r)
    bend = top * top * 0.5  # 1 - cos r = bend + bend_low
    bend_low = (r - top) * (r + top) * 0.5 + r * rest - square * square * (1 / 24 - square * (1 / 720 - square / 40320))
    top_tail = (r - top) + (rest - square * r * (1 / 6 - square * (1 / 120 - square / 5040)))
    return (
        _rotated((sine, sine_low), (cosine, cosine_low), top, top_tail, bend, bend_low),
        _rotated((cosine, cosine_low), (-sine, -sine_low), top, top_tail, bend, bend_low),
        unsure,
    )


def _rotated(one: Pair, other: Pair, top: Array, tail: Array, bend: Array, bend_low: Array) -> Pair:
    """Return one · cos r + other · sin r, with sin r = top + tail and cos r = 1 - bend - bend_low."""
    big, big_low = one
    bend_top = head(bend)
    value, error = two_sum(other[0] * top, -big * bend_top)
    value, rest = two_sum(big, value)
    small = other[0] * tail + other[1] * (top + tail) - big * ((bend - bend_top) + bend_low) + big_low * (1 - (bend + bend_low))
    return quick_two_sum(value, (error + rest) + small)


def tangent(x: Array) -> tuple[Pair, Array]:
    """Return tan x, and where it is not sure."""
    sine, cosine, unsure = sine_cosine(x)
    return divide(sine, cosine), unsure
