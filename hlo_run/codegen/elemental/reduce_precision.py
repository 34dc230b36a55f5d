"""Emits reduce-precision: rounds a float to fewer exponent and mantissa bits, on its bit pattern."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.hlo.values.dtype import DType


def reduce_precision(b: IrBuilder, value: SSAValue, dtype: DType, exponent_bits: int, mantissa_bits: int) -> SSAValue:
    """Return `value` rounded to nearest even. Overflow gives infinity, underflow a signed zero.

    A NaN stays NaN, as on XLA:CPU. With `mantissa_bits` 0, XLA:GPU makes it infinity instead.
    """
    exponent, mantissa = dtype.float_format.exponent_bits, dtype.float_format.mantissa_bits
    if exponent_bits >= exponent and mantissa_bits >= mantissa:
        return value
    type_ = IntegerType(dtype.bits)
    bits = b.cast(arith.BitcastOp, value, type_)
    if mantissa_bits < mantissa:
        bits = _round_mantissa(b, bits, mantissa - mantissa_bits)
    if exponent_bits < exponent:
        bits = _clip_exponent(b, bits, dtype.bits, mantissa, exponent_bits)
    result = b.cast(arith.BitcastOp, bits, value.type)
    return b.select(b.cmpf("uno", value, value), value, result)


def _round_mantissa(b: IrBuilder, bits: SSAValue, dropped: int) -> SSAValue:
    """Round to nearest even: add half of the last kept bit, minus one unless that bit is odd, and truncate."""
    type_ = bits.type
    last = b.binary(arith.ShRUIOp, bits, b.constant(type_, dropped))
    is_odd = b.binary(arith.AndIOp, last, b.constant(type_, 1))
    bias = b.binary(arith.AddiOp, is_odd, b.constant(type_, (1 << (dropped - 1)) - 1))
    return b.binary(arith.AndIOp, b.binary(arith.AddiOp, bits, bias), b.constant(type_, -(1 << dropped)))


def _clip_exponent(b: IrBuilder, bits: SSAValue, width: int, mantissa: int, exponent_bits: int) -> SSAValue:
    """Replace values above the largest exponent by infinity, and values at or below the smallest by zero (also subnormals)."""
    type_ = bits.type
    exponent = width - 1 - mantissa
    bias, reduced_bias = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
    infinity = ((1 << exponent) - 1) << mantissa
    own = b.binary(arith.AndIOp, bits, b.constant(type_, infinity))
    too_large = b.cmpi("ugt", own, b.constant(type_, (bias + reduced_bias) << mantissa))
    too_small = b.cmpi("ule", own, b.constant(type_, (bias - reduced_bias) << mantissa))
    zero = b.binary(arith.AndIOp, bits, b.constant(type_, 1 << (width - 1)))
    bits = b.select(too_large, b.binary(arith.OrIOp, zero, b.constant(type_, infinity)), bits)
    return b.select(too_small, zero, bits)
