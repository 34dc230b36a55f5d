"""Emits integer arithmetic with HLO's rules for cases that hardware leaves undefined: zero divisors, overflow, long shifts."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FixedBitwidthType, IntegerType
from xdsl.ir import Operation, SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder

# The rounds of square and multiply. Higher bits of the exponent are ignored, as in XLA.
_POWER_ROUNDS = 6


def bit_width(value: SSAValue) -> int:
    """Return the width in bits of an integer or float value."""
    assert isinstance(value.type, FixedBitwidthType), "numbers have a width"
    return value.type.bitwidth


def divide_unsigned(b: IrBuilder, left: SSAValue, right: SSAValue) -> SSAValue:
    """Return left / right; x / 0 is all ones."""
    safe, by_zero = _nonzero(b, right)
    return b.select(by_zero, b.constant(left.type, -1), b.binary(arith.DivUIOp, left, safe))


def remainder_unsigned(b: IrBuilder, left: SSAValue, right: SSAValue) -> SSAValue:
    """Return left % right; x % 0 is x."""
    safe, by_zero = _nonzero(b, right)
    return b.select(by_zero, left, b.binary(arith.RemUIOp, left, safe))


def divide_signed(b: IrBuilder, left: SSAValue, right: SSAValue) -> SSAValue:
    """Return left / right, truncated towards zero; x / 0 is -1, MIN / -1 is MIN."""
    safe, by_zero, overflow = _safe_signed_divisor(b, left, right)
    # MIN / -1 is computed as MIN / 1.
    return b.select(by_zero, b.constant(left.type, -1), b.select(overflow, left, b.binary(arith.DivSIOp, left, safe)))


def remainder_signed(b: IrBuilder, left: SSAValue, right: SSAValue) -> SSAValue:
    """Return left % right, with the sign of the dividend; x % 0 is x, MIN % -1 is 0."""
    safe, by_zero, overflow = _safe_signed_divisor(b, left, right)
    remainder = b.binary(arith.RemSIOp, left, safe)
    return b.select(by_zero, left, b.select(overflow, b.constant(left.type, 0), remainder))


def _nonzero(b: IrBuilder, right: SSAValue) -> tuple[SSAValue, SSAValue]:
    by_zero = b.cmpi("eq", right, b.constant(right.type, 0))
    return b.select(by_zero, b.constant(right.type, 1), right), by_zero


def _safe_signed_divisor(b: IrBuilder, left: SSAValue, right: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Return a divisor that never traps, an i1 for a zero divisor, and an i1 for an overflowing quotient."""
    by_zero = b.cmpi("eq", right, b.constant(right.type, 0))
    smallest = b.cmpi("eq", left, b.constant(left.type, 1 << (bit_width(left) - 1)))
    overflow = b.binary(arith.AndIOp, smallest, b.cmpi("eq", right, b.constant(right.type, -1)))
    unsafe = b.binary(arith.OrIOp, by_zero, overflow)
    return b.select(unsafe, b.constant(right.type, 1), right), by_zero, overflow


def power(b: IrBuilder, base: SSAValue, exponent: SSAValue) -> SSAValue:
    """Return base ** exponent by square and multiply. A negative exponent gives 1 for base 1, +-1 for base -1, else 0.

    An unsigned exponent with the top bit set counts as negative: XLA uses a signed comparison for all types.
    """
    zero, one = b.constant(base.type, 0), b.constant(base.type, 1)
    result, square, rest = one, base, exponent
    for _ in range(_POWER_ROUNDS):
        is_odd = b.cmpi("ne", b.binary(arith.AndIOp, rest, one), zero)
        result = b.select(is_odd, b.binary(arith.MuliOp, result, square), result)
        square = b.binary(arith.MuliOp, square, square)
        rest = b.binary(arith.ShRUIOp, rest, one)
    minus_one = b.constant(base.type, -1)
    is_odd = b.cmpi("ne", b.binary(arith.AndIOp, exponent, one), zero)
    alternating = b.select(is_odd, minus_one, one)
    inverse = b.select(b.cmpi("eq", base, minus_one), alternating, zero)
    inverse = b.select(b.cmpi("eq", base, one), one, inverse)
    return b.select(b.cmpi("slt", exponent, zero), inverse, result)


def negate(b: IrBuilder, value: SSAValue) -> SSAValue:
    """Return 0 - value; MIN gives MIN."""
    return b.binary(arith.SubiOp, b.constant(value.type, 0), value)


def absolute(b: IrBuilder, value: SSAValue) -> SSAValue:
    """Return the absolute value; MIN gives MIN."""
    is_positive = b.cmpi("sge", value, b.constant(value.type, 0))
    return b.select(is_positive, value, negate(b, value))


def sign(b: IrBuilder, value: SSAValue) -> SSAValue:
    """Return -1, 0 or 1 by the sign of a signed value."""
    zero = b.constant(value.type, 0)
    fill = b.binary(arith.ShRSIOp, value, b.constant(value.type, bit_width(value) - 1))
    return b.select(b.cmpi("eq", value, zero), zero, b.binary(arith.OrIOp, fill, b.constant(value.type, 1)))


def invert(b: IrBuilder, value: SSAValue) -> SSAValue:
    """Return the value with all bits inverted."""
    return b.binary(arith.XOrIOp, value, b.constant(value.type, -1))


def shift_left(b: IrBuilder, value: SSAValue, amount: SSAValue) -> SSAValue:
    """Return value << amount. An amount of the width or more gives 0, and so does a negative amount."""
    return _shift(b, arith.ShLIOp, value, amount, b.constant(value.type, 0))


def shift_right_logical(b: IrBuilder, value: SSAValue, amount: SSAValue) -> SSAValue:
    """Return value >> amount with zero fill. Out-of-range amounts give 0, as in `shift_left`."""
    return _shift(b, arith.ShRUIOp, value, amount, b.constant(value.type, 0))


def shift_right_arithmetic(b: IrBuilder, value: SSAValue, amount: SSAValue) -> SSAValue:
    """Return value >> amount with sign fill. An amount of the width or more gives the sign in all bits."""
    fill = b.binary(arith.ShRSIOp, value, b.constant(value.type, bit_width(value) - 1))
    return _shift(b, arith.ShRSIOp, value, amount, fill)


def _shift(b: IrBuilder, op: type[Operation], value: SSAValue, amount: SSAValue, beyond: SSAValue) -> SSAValue:
    in_range = b.cmpi("ult", amount, b.constant(amount.type, bit_width(value)))
    return b.select(in_range, b.binary(op, value, amount), beyond)


def multiply_high(b: IrBuilder, left: SSAValue, right: SSAValue, signed: bool) -> SSAValue:
    """Return the upper half of the product of double width."""
    bits = bit_width(left)
    wide = IntegerType(2 * bits)
    extend = arith.ExtSIOp if signed else arith.ExtUIOp
    product = b.binary(arith.MuliOp, b.cast(extend, left, wide), b.cast(extend, right, wide))
    return b.cast(arith.TruncIOp, b.binary(arith.ShRUIOp, product, b.constant(wide, bits)), left.type)


def total_order_key(b: IrBuilder, value: SSAValue) -> SSAValue:
    """Return an integer of the float's width whose signed order is IEEE's total order: -NaN < -inf < .. < +NaN."""
    bits = bit_width(value)
    type_ = IntegerType(bits)
    number = b.cast(arith.BitcastOp, value, type_)
    fill = b.binary(arith.ShRSIOp, number, b.constant(type_, bits - 1))
    flip = b.binary(arith.AndIOp, fill, b.constant(type_, (1 << (bits - 1)) - 1))
    return b.binary(arith.XOrIOp, number, flip)
