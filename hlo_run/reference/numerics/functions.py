"""Elementwise functions that numpy lacks or defines differently from HLO, on arrays of the computing type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.values import Array, Function


def sign(x: Array) -> Array:
    """Return ±1; NaN stays and zeros keep their sign."""
    return np.where((x == 0) | np.isnan(x), x, np.copysign(x.dtype.type(1), x))


def round_half_away(x: Array) -> Array:
    """Round to the nearest integer, halves away from zero; floor(x + 0.5) would round 0.49999997 up."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), whole)


def maximum(x: Array, y: Array) -> Array:
    """Return the larger number, or NaN if one is NaN; +0 is larger than -0, which numpy leaves open."""
    larger = np.maximum(x, y)
    if _is_plus_zero(x) or _is_plus_zero(y):
        # A cheap path for the common bound +0.
        return larger + larger.dtype.type(0)
    if _is_never_zero(x) or _is_never_zero(y) or not (larger == 0).any():
        return larger
    # The sum of two zeros is -0 only if both are -0.
    return np.where((x == 0) & (y == 0), x + y, larger)


def minimum(x: Array, y: Array) -> Array:
    """Return the smaller number, or NaN if one is NaN; -0 is smaller than +0, which numpy leaves open."""
    smaller = np.minimum(x, y)
    if _is_never_zero(x) or _is_never_zero(y) or not (smaller == 0).any():
        return smaller
    return np.where((x == 0) & (y == 0), -(-x - y), smaller)


def _is_plus_zero(x: Array) -> bool:
    """True if the array is a broadcast +0."""
    return not any(x.strides) and x.size > 0 and x.item(0) == 0 and not np.signbit(x.item(0))


def _is_never_zero(x: Array) -> bool:
    """True if the array is a broadcast number other than 0, which needs a look at one element only."""
    return not any(x.strides) and x.size > 0 and x.item(0) != 0


def clamp(low: Array, x: Array, high: Array) -> Array:
    """Return min(high, max(x, low)): NaN in any operand gives NaN, and `high` wins over `low`."""
    return np.minimum(np.maximum(low, x), high)


def divide_signed(x: Array, y: Array) -> Array:
    """Return the quotient truncated toward zero; x/0 = -1, MIN/-1 = MIN."""
    divisor = _safe_divisor(x, y)
    return np.where(y == 0, x.dtype.type(-1), (x - np.fmod(x, divisor)) // divisor)


def remainder_signed(x: Array, y: Array) -> Array:
    """Return the remainder with the sign of the dividend; x%0 = x, MIN%-1 = 0."""
    return np.where(y == 0, x, np.fmod(x, _safe_divisor(x, y)))


def _safe_divisor(x: Array, y: Array) -> Array:
    """Return `y`, but 1 where the CPU's division would trap; MIN/1 and MIN%1 are HLO's results for MIN/-1 and MIN%-1."""
    lowest = np.iinfo(x.dtype).min
    return np.where((y == 0) | ((x == lowest) & (y == -1)), x.dtype.type(1), y)


def divide_unsigned(x: Array, y: Array) -> Array:
    """Return the quotient; x/0 has all bits set."""
    return np.where(y == 0, ~x.dtype.type(0), x // np.where(y == 0, x.dtype.type(1), y))


def remainder_unsigned(x: Array, y: Array) -> Array:
    """Return the remainder; x%0 = x."""
    return np.where(y == 0, x, x % np.where(y == 0, x.dtype.type(1), y))


def power_integer(base: Array, exponent: Array) -> Array:
    """Return the wrapped power by square and multiply; a negative exponent gives 1 for base 1, ±1 for base -1, else 0.

    Only the low 6 bits of the exponent are used, and the top bit of an unsigned exponent makes it negative, as in XLA's
    code for CPU and GPU: 3^65 is 3, and in u8 3^128 is 0.
    """
    base, exponent = np.broadcast_arrays(base, exponent)
    out, square, left = np.ones_like(base), base, exponent & exponent.dtype.type(63)
    while left.any():
        out = np.where(left & 1, out * square, out)
        square = square * square
        left = left >> left.dtype.type(1)
    signed = np.dtype(f"i{base.dtype.itemsize}")
    odd = (exponent & 1).astype(np.bool_)
    inverse = np.where(base == 1, 1, np.where(base.astype(signed) == -1, np.where(odd, -1, 1), 0)).astype(base.dtype)
    return np.where(exponent.astype(signed) < 0, inverse, out)


def multiply_high(dtype: DType) -> Function:
    """Return the function that computes the upper half of the double-width product of two `dtype` ints."""
    if dtype.bits == 64:
        return _multiply_high_signed_64 if dtype.is_signed else _multiply_high_unsigned_64
    wide = np.dtype(np.int64 if dtype.is_signed else np.uint64)

    def narrow_product(x: Array, y: Array) -> Array:
        return (x.astype(wide) * y.astype(wide)) >> wide.type(dtype.bits)

    return narrow_product


def _multiply_high_unsigned_64(x: Array, y: Array) -> Array:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    other = x_low * y_high + (middle & mask)
    return x_high * y_high + (middle >> half) + (other >> half)


def _multiply_high_signed_64(x: Array, y: Array) -> Array:
    high = _multiply_high_unsigned_64(x.view(np.uint64), y.view(np.uint64)).view(np.int64)
    return high - np.where(x < 0, y, 0) - np.where(y < 0, x, 0)


def population_count(dtype: DType) -> Function:
    """Return the function that counts the set bits of a `dtype` int."""

    def count(x: Array) -> Array:
        return np.bitwise_count(as_unsigned(x, dtype.bits))

    return count


def leading_zeros(dtype: DType) -> Function:
    """Return the function that counts the zeros above the highest set bit of a `dtype` int; all bits for 0."""

    def count(x: Array) -> Array:
        smeared = as_unsigned(x, dtype.bits)
        shift = 1
        while shift < dtype.bits:
            smeared = smeared | (smeared >> smeared.dtype.type(shift))
            shift *= 2
        return dtype.bits - np.bitwise_count(smeared)

    return count


def shift_left(dtype: DType) -> Function:
    """Return the function x << y; an unsigned amount of at least the width gives 0."""

    def shift(x: Array, y: Array) -> Array:
        return _shifted(dtype.bits, np.left_shift, as_unsigned(x, dtype.bits), y, 0).astype(x.dtype)

    return shift


def shift_right_logical(dtype: DType) -> Function:
    """Return the function x >> y that shifts in zeros; an unsigned amount of at least the width gives 0."""

    def shift(x: Array, y: Array) -> Array:
        return _shifted(dtype.bits, np.right_shift, as_unsigned(x, dtype.bits), y, 0).astype(x.dtype)

    return shift


def shift_right_arithmetic(dtype: DType) -> Function:
    """Return the function x >> y that shifts in the sign bit; an unsigned amount of at least the width gives 0 or -1.

    The top bit of an unsigned type is its sign too, as in XLA.
    """

    def shift(x: Array, y: Array) -> Array:
        unused = 8 * x.dtype.itemsize - dtype.bits
        signed = x.view(np.dtype(f"i{x.dtype.itemsize}"))
        signed = (signed << signed.dtype.type(unused)) >> signed.dtype.type(unused)
        fill = signed >> signed.dtype.type(8 * x.dtype.itemsize - 1)
        return _shifted(dtype.bits, np.right_shift, signed, y, fill).astype(x.dtype)

    return shift


def _shifted(bits: int, shift: Callable[..., Array], x: Array, amount: Array, otherwise: object) -> Array:
    """Return shift(x, amount), or `otherwise` where the unsigned amount is at least `bits`."""
    count = as_unsigned(amount, bits)
    inside = count < bits
    return np.where(inside, shift(x, np.where(inside, count, 0).astype(x.dtype)), np.asarray(otherwise, x.dtype))


def as_unsigned(x: Array, bits: int) -> Array:
    """Return the low `bits` bits of ints as unsigned numbers of the same item size."""
    unsigned = x.view(_unsigned(x.dtype))
    return unsigned if bits == 8 * x.dtype.itemsize else unsigned & unsigned.dtype.type((1 << bits) - 1)


def _unsigned(dtype: NumpyType) -> NumpyType:
    return np.dtype(f"u{dtype.itemsize}")
