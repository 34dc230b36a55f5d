"""Converts floats of 4 and 8 bits by integer arithmetic, for GPUs and formats without a conversion instruction.

The magnitude of a narrow float is its exponent and mantissa bits as one integer, so rounding may carry from the mantissa
into the exponent. Overflow gives infinity, NaN in formats without infinity, and the largest number in f4E2M1FN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, IntegerType, bf16, f16, f32, f64, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from hlo_run.hlo.values.dtype import DTYPES, FloatFormat

Add: TypeAlias = Callable[[Operation], SSAValue]


def is_small_float(type_: Attribute) -> bool:
    """True for floats of at most 8 bits."""
    return isa(type_, AnyFloat) and type_.bitwidth <= 8


def format_of(type_: Attribute) -> FloatFormat:
    """Return the bits of a float type's format; IR types have HLO's names but for capitals."""
    assert isa(type_, AnyFloat), "only floats have a format"
    return DTYPES[type_.name.lower()].float_format


class _Integers(Struct):
    """Builds arithmetic on integers of one type; `add` inserts an op and returns its result."""

    add: Add
    type: IntegerType

    def number(self, value: int) -> SSAValue:
        bits = self.type.width.data
        value &= (1 << bits) - 1
        return self.add(arith.ConstantOp(IntegerAttr(value - (1 << bits) if value >> (bits - 1) else value, self.type)))

    def plus(self, value: SSAValue, number: int) -> SSAValue:
        return self.add(arith.AddiOp(value, self.number(number)))

    def mask(self, value: SSAValue, number: int) -> SSAValue:
        return self.add(arith.AndIOp(value, self.number(number)))

    def up(self, value: SSAValue, places: int) -> SSAValue:
        return self.add(arith.ShLIOp(value, self.number(places)))

    def down(self, value: SSAValue, places: int) -> SSAValue:
        return self.add(arith.ShRUIOp(value, self.number(places)))

    def select(self, left: SSAValue, predicate: str, right: int, then: SSAValue | int, otherwise: SSAValue) -> SSAValue:
        """Return `left predicate right ? then : otherwise`."""
        condition = self.add(arith.CmpiOp(left, self.number(right), predicate))
        chosen = self.number(then) if isinstance(then, int) else then
        return self.add(arith.SelectOp(condition, chosen, otherwise))


def extend(add: Add, value: SSAValue, result: Attribute) -> SSAValue:
    """Convert a small float to the wider type `result`; the conversion is exact. `add` inserts an op."""
    form = format_of(value.type)
    integers = _Integers(add, i32)
    bits = add(arith.ExtUIOp(add(arith.BitcastOp(value, IntegerType(form.bits))), i32))
    wide = _power_of_two(integers, bits) if form.special == "exponent" else _extended_bits(integers, bits, form)
    number = add(arith.BitcastOp(wide, f32))
    if result == f32:
        return number
    return add(arith.ExtFOp(number, f64) if result == f64 else arith.TruncFOp(number, result))


def _power_of_two(integers: _Integers, bits: SSAValue) -> SSAValue:
    """Return the f32 bits of 2^(bits - 127). 2^-127 is subnormal in f32, so 0 is a special case."""
    wide = integers.select(bits, "eq", 0, 1 << 22, integers.up(bits, 23))
    return integers.select(bits, "eq", 0xFF, 0x7FC00000, wide)


def _extended_bits(integers: _Integers, bits: SSAValue, form: FloatFormat) -> SSAValue:
    wide_form = format_of(f32)
    mantissa, bias = wide_form.mantissa_bits, wide_form.bias
    magnitude = integers.mask(bits, form.magnitude)
    shifted = integers.up(magnitude, mantissa - form.mantissa_bits)
    normal = integers.plus(shifted, (bias - form.bias) << mantissa)
    step = integers.add(arith.ConstantOp(FloatAttr(form.step, f32)))
    steps = integers.add(arith.UIToFPOp(magnitude, f32))
    subnormal = integers.add(arith.BitcastOp(integers.add(arith.MulfOp(steps, step)), i32))
    wide = integers.select(magnitude, "ult", 1 << form.mantissa_bits, subnormal, normal)
    if form.special == "ieee":
        wide = integers.select(magnitude, "uge", form.infinity, integers.plus(shifted, (255 - _top(form)) << mantissa), wide)
    elif form.special == "fn":
        wide = integers.select(magnitude, "eq", form.magnitude, 0x7FC00000, wide)
    elif form.special == "fnuz":
        wide = integers.select(bits, "eq", 1 << (form.bits - 1), 0x7FC00000, wide)
    sign = integers.up(integers.mask(bits, 1 << (form.bits - 1)), 32 - form.bits)
    return integers.add(arith.OrIOp(wide, sign))


def _top(form: FloatFormat) -> int:
    """The largest exponent field."""
    return form.infinity >> form.mantissa_bits


def truncate(add: Add, value: SSAValue, result: Attribute) -> SSAValue:
    """Convert a float to the small float type `result`, rounded to nearest even. `add` inserts an op."""
    form = format_of(result)
    if value.type in (f16, bf16) or is_small_float(value.type):
        value = extend(add, value, f32) if is_small_float(value.type) else add(arith.ExtFOp(value, f32))
    wide_form = format_of(value.type)
    mantissa, bias = wide_form.mantissa_bits, wide_form.bias
    width = 32 if value.type == f32 else 64
    integers = _Integers(add, IntegerType(width))
    bits = add(arith.BitcastOp(value, integers.type))
    magnitude = integers.mask(bits, (1 << (width - 1)) - 1)
    not_a_number = ((1 << (width - 1 - mantissa)) - 1) << mantissa
    if form.special == "exponent":
        code = _rounded_exponent(integers, bits, magnitude, mantissa, bias)
    else:
        code = _rounded(integers, value.type, magnitude, form)
        code = _with_specials(integers, code, bits, magnitude, not_a_number, form)
    narrow = add(arith.TruncIOp(code, IntegerType(form.bits)))
    return add(arith.BitcastOp(narrow, result))


def _rounded(integers: _Integers, type_: Attribute, magnitude: SSAValue, form: FloatFormat) -> SSAValue:
    """Return the magnitude in the narrow format, which is too large for it where the number is."""
    wide_form = format_of(type_)
    mantissa, bias = wide_form.mantissa_bits, wide_form.bias
    dropped = mantissa - form.mantissa_bits
    odd = integers.mask(integers.down(magnitude, dropped), 1)
    half = integers.plus(odd, (1 << (dropped - 1)) - 1)
    normal = integers.down(integers.add(arith.AddiOp(magnitude, half)), dropped)
    normal = integers.plus(normal, -((bias - form.bias) << form.mantissa_bits))
    # Beside this number, floats are a subnormal step apart: the addition rounds to it.
    assert isa(type_, AnyFloat), "a float is rounded"
    anchor = integers.add(arith.ConstantOp(FloatAttr(2.0**mantissa * form.step, type_)))
    moved = integers.add(arith.AddfOp(integers.add(arith.BitcastOp(magnitude, type_)), anchor))
    anchor_bits = integers.add(arith.BitcastOp(anchor, integers.type))
    subnormal = integers.add(arith.SubiOp(integers.add(arith.BitcastOp(moved, integers.type)), anchor_bits))
    smallest_normal = (1 - form.bias + bias) << mantissa
    return integers.select(magnitude, "ult", smallest_normal, subnormal, normal)


def _with_specials(
    integers: _Integers, code: SSAValue, bits: SSAValue, magnitude: SSAValue, infinity: int, form: FloatFormat
) -> SSAValue:
    """Return the narrow bits with sign, overflow and NaN. `infinity` is the magnitude of infinity in the wide format."""
    overflow = {"ieee": form.infinity, "finite": form.largest}.get(form.special, form.nan)
    sign = integers.down(integers.mask(bits, 1 << (integers.type.width.data - 1)), integers.type.width.data - form.bits)
    if form.special == "fnuz":
        signed = integers.select(code, "eq", 0, code, integers.add(arith.OrIOp(code, sign)))
        return integers.select(code, "ugt", form.largest, 1 << (form.bits - 1), signed)
    code = integers.select(code, "ugt", form.largest, overflow, code)
    if form.special == "finite":
        # The format has no NaN: a NaN becomes a zero with the opposite sign.
        sign = integers.select(magnitude, "ugt", infinity, integers.add(_flipped(integers, sign, form)), sign)
        code = integers.select(magnitude, "ugt", infinity, 0, code)
    else:
        code = integers.select(magnitude, "ugt", infinity, form.nan, code)
    return integers.add(arith.OrIOp(code, sign))


def _flipped(integers: _Integers, sign: SSAValue, form: FloatFormat) -> Operation:
    return arith.XOrIOp(sign, integers.number(1 << (form.bits - 1)))


def _rounded_exponent(integers: _Integers, bits: SSAValue, magnitude: SSAValue, mantissa: int, bias: int) -> SSAValue:
    """Return the code of the nearest power of two; a tie rounds up. NaN if the number is not positive or too large."""
    code = integers.down(integers.plus(magnitude, 1 << (mantissa - 1)), mantissa)
    code = integers.plus(code, 127 - bias)
    # 2^-127 is the smallest number; numbers between it and 2^-126 round up. In f32, 2^-127 is subnormal.
    least = 1 << (mantissa - 1) if bias == 127 else (bias - 127) << mantissa
    smallest = integers.select(magnitude, "ugt", least, 1, integers.number(0))
    code = integers.select(magnitude, "ult", (bias - 126) << mantissa, smallest, code)
    code = integers.select(code, "ugt", 0xFF, 0xFF, code)
    code = integers.select(magnitude, "eq", 0, 0xFF, code)
    sign = integers.down(bits, integers.type.width.data - 1)
    return integers.select(sign, "eq", 1, 0xFF, code)
