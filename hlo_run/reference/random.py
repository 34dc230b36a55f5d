"""Random numbers that are the same on every machine: Philox's raw bits, converted by exactly rounded arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.literal import float_info
from hlo_run.reference.bits import from_element_bits
from hlo_run.reference.values import CHUNK_ELEMENTS, Array, narrow

# The range of ordinary floats, half open.
LOW, HIGH = -0.1, 0.2
# Of each of the six values ±0, ±1, ±inf in the large range.
SPECIAL_PROBABILITY = 1e-6


class RandomEngine:
    """One stream of random bits; every draw continues where the last one ended.

    numpy guarantees the raw bits of a bit generator for a key, but not the numbers of a `Generator`. So only `random_raw`
    is used, and the conversions below add, multiply, compare and round. They use no function of the C library, whose
    last bit may differ between machines.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=seed % (1 << 64))

    def words(self, count: int) -> Array:
        """Return `count` random u64."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64).reshape(count)

    def integers(self, dtype: DType, low: int, high: int, count: int) -> Array:
        """Return integers (or pred) uniform in the closed interval [low, high], which must be within the type's range."""
        return _in_chunks(partial(self._some_integers, dtype, low, high), dtype, count)

    def _some_integers(self, dtype: DType, low: int, high: int, count: int) -> Array:
        words = self.words(count)
        span = high - low + 1
        offsets = words if span >= 1 << 64 else words % np.uint64(span)
        # Two's complement: adding the lower bound modulo 2^64 is right for signed intervals too.
        values = offsets + np.uint64(low % (1 << 64))
        return values != 0 if dtype.kind == "pred" else narrow(values.view(np.int64) if low < 0 else values, dtype)

    def unit(self, count: int) -> Array:
        """Return f64 numbers uniform in [0, 1), multiples of 2^-53."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int) -> Array:
        """Return the numbers below `count` in random order."""
        return np.argsort(self.words(count), kind="stable")

    def floats(self, dtype: DType, count: int, low: float = LOW, high: float = HIGH) -> Array:
        """Return floats uniform in [low, high), drawn in f32 (f64 for f64) and rounded to the type."""
        return _in_chunks(partial(self._some_floats, dtype, low, high), dtype, count)

    def large_floats(self, dtype: DType, count: int) -> Array:
        """Return floats ±2^u, with u uniform over the type's exponents; rarely ±0, ±1 or ±inf."""
        return _in_chunks(partial(self._some_large_floats, dtype), dtype, count)

    def _some_floats(self, dtype: DType, low: float, high: float, count: int) -> Array:
        drawn = np.dtype(np.float64 if dtype.bits == 64 else np.float32)
        digits = 53 if dtype.bits == 64 else 24
        unit = (self.words(count) >> np.uint64(64 - digits)).astype(drawn) * drawn.type(2.0**-digits)
        values = unit * drawn.type(high - low) + drawn.type(low)
        # The rounding of the last line may reach the excluded bound.
        values = np.minimum(values, np.nextafter(drawn.type(high), drawn.type(low)))
        return narrow(_with_sign_of(dtype, values), dtype)

    def _some_large_floats(self, dtype: DType, count: int) -> Array:
        lowest, highest = exponent_range(dtype)
        words = self.words(count)
        exponent = self.unit(count) * float(highest - lowest) + float(lowest)
        whole = np.floor(exponent)
        values = np.ldexp(_two_to_the(exponent - whole), whole.astype(np.int32))
        values = np.where(words >> np.uint64(63) != 0, -values, values)
        choice = (words & np.uint64(2**62 - 1)).astype(np.float64) * (2.0**-62 / SPECIAL_PROBABILITY)
        specials = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf])
        special = specials[np.minimum(choice, len(specials) - 1).astype(np.int64)]
        values = np.where(choice < len(specials), special, values)
        return narrow(_with_sign_of(dtype, values), dtype)

    def patterns(self, dtype: DType, count: int) -> Array:
        """Return random bit patterns of a float type; it must have no infinity and no NaN."""
        return _in_chunks(partial(self._some_patterns, dtype), dtype, count)

    def _some_patterns(self, dtype: DType, count: int) -> Array:
        return from_element_bits(self.words(count) & np.uint64((1 << dtype.bits) - 1), dtype)


def exponent_range(dtype: DType) -> tuple[int, int]:
    """Return the exponents of the large range [low, high): C++'s min_exponent - 1 and max_exponent - 1."""
    info = float_info(dtype)
    return int(info.minexp), int(info.maxexp) - 1


def _with_sign_of(dtype: DType, values: Array) -> Array:
    """Return absolute values for f8e8m0fnu, which has no sign: negative numbers would become NaN."""
    return np.abs(values) if dtype.name == "f8e8m0fnu" else values


def _in_chunks(make: Callable[[int], Array], dtype: DType, count: int) -> Array:
    """Return `count` values, made in chunks: their raw bits take four times the memory of bf16 values."""
    out = np.empty(count, dtype.numpy)
    for start in range(0, count, CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, count)
        out[start:stop] = make(stop - start)
    return out


def _two_to_the(fraction: Array) -> Array:
    """Return 2^fraction for fractions in [0, 1), truncated to 30 bits: the product of three factors, one per ten bits.

    Square roots and products round the same on every machine, exp2 does not.
    """
    digits = (fraction * 2.0**30).astype(np.int64)
    tables = _factors()
    return tables[0][digits >> 20] * tables[1][(digits >> 10) & 1023] * tables[2][digits & 1023]


@cache
def _factors() -> tuple[Array, Array, Array]:
    """Return 2^(k / 2^10), 2^(k / 2^20) and 2^(k / 2^30) for k below 2^10, from square roots of two."""
    root = 2.0
    found: list[Array] = []
    for _ in range(3):
        table = np.ones(1024)
        for bit in reversed(range(10)):
            root = math.sqrt(root)
            table = np.where((np.arange(1024) >> bit) & 1 != 0, table * root, table)
        found.append(table)
    return found[0], found[1], found[2]
