"""Constants and tables of the elementary functions, made by integer arithmetic: an integer n means n / 2^BITS."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from hlo_run.elementary.double_double import Array, Pair

# More bits than any table needs.
BITS = 240
ONE = 1 << BITS


@cache
def log2() -> int:
    """Return ln 2, as 2 atanh(1/3)."""
    total, term, k = 0, ONE // 3, 1
    while term:
        total += term // k
        term //= 9
        k += 2
    return 2 * total


@cache
def pi() -> int:
    """Return pi, by Machin's formula."""
    return 4 * (4 * arctangent(1, 5) - arctangent(1, 239))


def arctangent(numerator: int, denominator: int) -> int:
    """Return atan(numerator / denominator) for quotients from 0 to 1, by Euler's series."""
    square, whole = numerator * numerator, numerator * numerator + denominator * denominator
    term, total, n = (numerator * denominator << BITS) // whole, 0, 1
    while term:
        total += term
        term = term * 2 * n * square // ((2 * n + 1) * whole)
        n += 1
    return total


def logarithm(numerator: int, denominator: int) -> int:
    """Return ln(numerator / denominator) for quotients near 1, as 2 atanh((n - d) / (n + d))."""
    top, bottom = numerator - denominator, numerator + denominator
    term, total, k = (abs(top) << BITS) // bottom, 0, 1
    while term:
        total += term // k
        term = term * top * top // (bottom * bottom)
        k += 2
    return 2 * total if top >= 0 else -2 * total


def exponential(x: int) -> int:
    """Return e^x for 0 <= x < 1."""
    total, term, n = 0, ONE, 1
    while term:
        total += term
        term = term * x // (n << BITS)
        n += 1
    return total


def sine_and_cosine(x: int) -> tuple[int, int]:
    """Return sin x and cos x for 0 <= x < 1."""
    totals, term, n = [0, 0, 0, 0], ONE, 0
    while term:
        totals[n % 4] += term
        n += 1
        term = term * x // (n << BITS)
    return totals[1] - totals[3], totals[0] - totals[2]


def split(n: int, last_bit: int) -> tuple[float, float]:
    """Return a number as a sum of two floats, of which the first is a multiple of 2^last_bit."""
    unit = BITS + last_bit
    first = (n + (1 << (unit - 1))) >> unit << unit
    return first / ONE, (n - first) / ONE


def pair(n: int, bits: int = 53) -> tuple[float, float]:
    """Return a number as a sum of two floats, of which the first has at most `bits` bits."""
    return split(n, n.bit_length() - bits - BITS) if n.bit_length() > bits else (n / ONE, 0.0)


def parts(n: int, bits: int, count: int) -> list[float]:
    """Return a number as a sum of floats, of at most `bits` bits but the last."""
    found: list[float] = []
    for _ in range(count - 1):
        unit = n.bit_length() - bits
        first = n >> unit << unit
        found.append(first / ONE)
        n -= first
    return [*found, n / ONE]


def columns(rows: Iterable[tuple[float, ...]]) -> list[Array]:
    """Return the columns of a table as arrays."""
    return [np.array(column) for column in zip(*rows, strict=True)]


def table(numbers: Iterable[int], bits: int = 53) -> Pair:
    """Return numbers as two arrays of floats; see `pair`."""
    first, second = columns(pair(n, bits) for n in numbers)
    return first, second
