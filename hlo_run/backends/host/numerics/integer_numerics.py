"""Integer arithmetic of PTX on whole arrays, where numpy differs from PTX or lacks the operation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlo_run.arrays import Array, NumpyType

Ints = Array  # a fixed-width integer type; each function says which
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]

_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def select(condition: Bool, a: Ints, b: Ints) -> Ints:
    """Return `a` where `condition`, else `b`, for unsigned integers. Unlike `np.where` it has no branch per element."""
    difference = a ^ b
    return (difference * condition) ^ b


def _bits(a: Ints) -> int:
    return 8 * a.dtype.itemsize


# ---- shifts ---------------------------------------------------------------------------------------------------------


def shift_left(a: Ints, amount: U32) -> Ints:
    """Shift unsigned values left. Amounts of the width or more give 0."""
    inside = amount < _bits(a)
    return np.where(inside, a << np.where(inside, amount, 0).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Ints, amount: U32) -> Ints:
    """Shift right, and fill with the sign for signed types. Amounts above the width act like the width."""
    width = _bits(a)
    if a.dtype.kind == "i":
        return a >> np.minimum(amount, np.uint32(width - 1)).astype(a.dtype)
    inside = amount < width
    return np.where(inside, a >> np.where(inside, amount, 0).astype(a.dtype), a.dtype.type(0))


def funnel_shift(low: U32, high: U32, amount: U32, *, left: bool, wrap: bool) -> U32:
    """`shf`: shift the 64-bit value high:low and return its upper (left) or lower (right) word."""
    amount = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
    both = (high.astype(np.uint64) << _32) | low
    wide = amount.astype(np.uint64)
    result = (both << wide) >> _32 if left else both >> wide
    return result.astype(np.uint32)


# ---- products and quotients -----------------------------------------------------------------------------------------


def multiply_high(a: Ints, b: Ints) -> Ints:
    """Return the upper half of the product, in the operands' type."""
    width = _bits(a)
    if width < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(width)).astype(a.dtype)
    if a.dtype.kind == "u":
        return _multiply_high_u64(a, b)
    high = _multiply_high_u64(a.view(np.uint64), b.view(np.uint64))
    correction = np.where(a < 0, b, 0).view(np.uint64) + np.where(b < 0, a, 0).view(np.uint64)
    return (high - correction).view(np.int64)


def _multiply_high_u64(a: U64, b: U64) -> U64:
    low_a, high_a, low_b, high_b = a & _LOW32, a >> _32, b & _LOW32, b >> _32
    middle = low_a * high_b + ((low_a * low_b) >> _32)
    other = high_a * low_b + (middle & _LOW32)
    return high_a * high_b + (middle >> _32) + (other >> _32)


def multiply_wide(a: Ints, b: Ints) -> Ints:
    """Return the full product in the type of twice the width."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


def divide(a: Ints, b: Ints) -> Ints:
    """Divide towards zero. Division by zero gives all bits set, as on the hardware."""
    if a.dtype.kind == "u":
        quotient = a // np.where(b == 0, a.dtype.type(1), b)
    else:
        safe = np.where(b == 0, a.dtype.type(1), b)
        floored = a // safe
        # numpy rounds down. Add one where the signs differ and the division is inexact.
        quotient = floored + ((floored * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, ~a.dtype.type(0), quotient)


def remainder(a: Ints, b: Ints) -> Ints:
    """Return the remainder with the sign of the dividend. For a division by zero it is the dividend."""
    safe = np.where(b == 0, a.dtype.type(1), b)
    return np.where(b == 0, a, np.fmod(a, safe))


def saturating_add_s32(a: Ints, b: Ints) -> Ints:
    """Add s32 values, clamped to the range of s32."""
    return _clamp_s32(a.astype(np.int64) + b)


def saturating_sub_s32(a: Ints, b: Ints) -> Ints:
    """Subtract s32 values, clamped to the range of s32."""
    return _clamp_s32(a.astype(np.int64) - b)


def saturating_mad_high_s32(a: Ints, b: Ints, c: Ints) -> Ints:
    """`mad.hi.sat.s32`."""
    return _clamp_s32(multiply_high(a, b).astype(np.int64) + c)


def _clamp_s32(x: NDArray[np.int64]) -> Ints:
    return np.clip(x, -(2**31), 2**31 - 1).astype(np.int32)


def absolute_difference(a: Ints, b: Ints) -> Ints:
    """Return |a - b| modulo the width, as the hardware's `sad` computes it."""
    return np.where(a < b, b - a, a - b)


def dot_bytes(a: U32, b: U32, c: U32, width: int, a_signed: bool, b_signed: bool, upper: bool) -> U32:
    """`dp4a` (width 8) and `dp2a` (16): add to c the products of a's parts with bytes of b (`dp2a`: the lower or upper two)."""
    total = c
    for number in range(32 // width):
        part = _part(a, number, width, a_signed)
        byte = _part(b, number + (2 if upper else 0), 8, b_signed)
        total = total + part * byte
    return total


def _part(word: U32, number: int, width: int, signed: bool) -> U32:
    left = word << np.uint32(32 - width * (number + 1))
    down = np.uint32(32 - width)
    return (left.view(np.int32) >> down.astype(np.int32)).view(np.uint32) if signed else left >> down


# ---- carries --------------------------------------------------------------------------------------------------------


def add_with_carry(a: Ints, b: Ints, carry: Bool) -> tuple[Ints, Bool]:
    """Return (a + b + carry, carry out) of unsigned values."""
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def sub_with_borrow(a: Ints, b: Ints, borrow: Bool) -> tuple[Ints, Bool]:
    """Return (a - b - borrow, borrow out) of unsigned values."""
    partial = a - b
    return partial - borrow, (a < b) | ((partial == 0) & borrow)


# ---- bits -----------------------------------------------------------------------------------------------------------


def count_bits(a: Ints) -> U32:
    """Return the number of bits set."""
    return np.bitwise_count(a).astype(np.uint32)


def _fill_down(a: Ints) -> Ints:
    """Set every bit below the highest one set."""
    shift = 1
    while shift < _bits(a):
        a = a | (a >> a.dtype.type(shift))
        shift *= 2
    return a


def count_leading_zeros(a: Ints) -> U32:
    """Return the number of zero bits above the highest set bit; the width for 0."""
    return np.uint32(_bits(a)) - count_bits(_fill_down(a))


def find_highest(a: Ints, shift_amount: bool) -> U32:
    """`bfind`: return the position of the highest bit that differs from the sign (unsigned: that is set), ~0 if none does.

    With `shift_amount`, return the left shift that moves this bit to the top.
    """
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    value = np.where(a < 0, ~a, a).view(unsigned) if a.dtype.kind == "i" else a
    zeros = count_leading_zeros(value)
    position = zeros if shift_amount else np.uint32(_bits(a) - 1) - zeros
    return np.where(value == 0, np.uint32(0xFFFFFFFF), position)


def reverse_bits(a: Ints) -> Ints:
    """Return the bits in opposite order."""
    width = _bits(a)
    masks = {1: 0x5555555555555555, 2: 0x3333333333333333, 4: 0x0F0F0F0F0F0F0F0F}
    for shift, mask in masks.items():
        part, by = a.dtype.type(mask & ((1 << width) - 1)), a.dtype.type(shift)
        a = ((a >> by) & part) | ((a & part) << by)
    return a.byteswap()


def extract_bits(a: Ints, start: U32, count: U32) -> Ints:
    """`bfe`: return `count` bits from `start` (each modulo 256), sign-extended for signed types."""
    width = _bits(a)
    begin = (start & np.uint32(255)).astype(np.int64)
    length = (count & np.uint32(255)).astype(np.int64)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    taken = np.clip(length, 0, width).astype(np.uint32)
    mask = ~shift_left(np.full(taken.shape, ~unsigned.type(0), unsigned), taken)
    field = shift_right(a.view(unsigned), begin.astype(np.uint32)) & mask
    if a.dtype.kind == "u":
        return field
    top = np.minimum(begin + length - 1, width - 1)
    sign = (shift_right(a.view(unsigned), np.maximum(top, 0).astype(np.uint32)) & unsigned.type(1)).astype(np.bool_)
    # The bits above the field, and field bits from above the word, are copies of the sign.
    inside = np.clip(np.minimum(length, width - begin), 0, width).astype(np.uint32)
    above = shift_left(np.full(inside.shape, ~unsigned.type(0), unsigned), inside)
    extended = np.where(sign, (field & ~above) | above, field & ~above)
    return np.where(length == 0, unsigned.type(0), extended).view(a.dtype)


def insert_bits(a: Ints, b: Ints, start: U32, count: U32) -> Ints:
    """`bfi`: return `b` with `count` bits from `start` replaced by the lowest bits of `a` (positions modulo 256)."""
    begin, length = start & np.uint32(255), np.minimum(count & np.uint32(255), np.uint32(_bits(a)))
    ones = np.full(np.broadcast_shapes(begin.shape, length.shape), ~a.dtype.type(0), a.dtype)
    mask = shift_left(~shift_left(ones, length), begin)
    return (shift_left(a, begin) & mask) | (b & ~mask)


def permute_bytes(a: U32, b: U32, selector: U32, mode: str) -> U32:
    """`prmt`: select four of the eight bytes of b:a. Bit 3 of a selector selects copies of the byte's sign bit instead."""
    both = (b.astype(np.uint64) << _32) | a
    result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), np.uint32)
    for position in range(4):
        index, replicate = _byte_choice(selector, mode, position)
        byte = ((both >> (index.astype(np.uint64) << np.uint64(3))) & np.uint64(0xFF)).astype(np.uint32)
        byte = np.where(replicate, np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0)), byte)
        result |= byte << np.uint32(8 * position)
    return result


def _byte_choice(selector: U32, mode: str, position: int) -> tuple[U32, U32]:
    """Return (index of the byte, non-zero if its sign is copied) for byte `position` of the result."""
    if not mode:
        nibble = selector >> np.uint32(4 * position)
        return nibble & np.uint32(7), nibble & np.uint32(8)
    low = selector & np.uint32(3)
    match mode:
        case "f4e":
            index = low + np.uint32(position)
        case "b4e":
            index = (low - np.uint32(position)) & np.uint32(7)
        case "rc8":
            index = low
        case "ecl":
            index = np.maximum(low, np.uint32(position))
        case "ecr":
            index = np.minimum(low, np.uint32(position))
        case _:  # rc16
            index = (low & np.uint32(1)) * np.uint32(2) + np.uint32(position & 1)
    return index, np.zeros_like(low)


def lookup3(a: U32, b: U32, c: U32, table: int) -> U32:
    """`lop3`: return, per bit, the entry of `table` at index 4a + 2b + c."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for index in range(8):
        if table >> index & 1:
            term = (a if index & 4 else ~a) & (b if index & 2 else ~b)
            result |= term & (c if index & 1 else ~c)
    return result


# ---- several values in one register ---------------------------------------------------------------------------------


def pack_halves(low: NDArray[np.uint16], high: NDArray[np.uint16]) -> U32:
    """Return the 32-bit register that holds two 16-bit values."""
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def pack_words(low: U32, high: U32) -> U64:
    """Return the 64-bit register that holds two 32-bit values."""
    return low.astype(np.uint64) | (high.astype(np.uint64) << _32)


def packed16(operation: np.ufunc, a: U32, b: U32, dtype: NumpyType) -> U32:
    """Apply an operation to the 16-bit halves of 32-bit registers."""
    wide_a, wide_b = (np.ascontiguousarray(x).view(dtype) for x in np.broadcast_arrays(a, b))
    result: Ints = operation(wide_a, wide_b)
    return result.view(np.uint32)
