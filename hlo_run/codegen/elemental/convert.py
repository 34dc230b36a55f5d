"""Emits scalar conversions between element types."""

from __future__ import annotations

from xdsl.dialects import arith, complex
from xdsl.dialects.builtin import Float32Type, IntegerType
from xdsl.ir import Attribute, SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.codegen.elemental.types import element_type
from hlo_run.hlo.values.dtype import DTYPES, DType

_I8 = IntegerType(8)
_F32 = Float32Type()
_PART = {"c64": "f32", "c128": "f64"}


def widen(b: IrBuilder, condition: SSAValue) -> SSAValue:
    """Return an i1 as PRED (i8)."""
    return b.cast(arith.ExtUIOp, condition, _I8)


def convert(b: IrBuilder, value: SSAValue, source: DType, target: DType, target_type: Attribute) -> SSAValue:
    """Convert `value` from `source` to `target`, whose IR type is `target_type`.

    From float to integer, values saturate and NaN becomes 0. From integer to integer, values wrap.
    """
    if source is target:
        return value
    if source.is_complex or target.is_complex:
        return _convert_complex(b, value, source, target, target_type)
    if is_small(source):
        # Small floats convert through f32, which represents them exactly.
        return convert(b, b.cast(arith.ExtFOp, value, _F32), DTYPES["f32"], target, target_type)
    if is_small(target) and not source.is_float:
        return b.cast(arith.TruncFOp, convert(b, value, source, DTYPES["f32"], _F32), target_type)
    if target.kind == "pred":
        zero = b.constant(value.type, 0)
        return widen(b, b.cmpf("une", value, zero) if source.is_float else b.cmpi("ne", value, zero))
    if source.is_float:
        if target.is_float:
            return _float_to_float(b, value, source.bits, target.bits, target_type)
        return _float_to_integer(b, value, target, target_type)
    if target.is_float:
        # PRED counts as signed here, which is the same for 0 and 1.
        return b.cast(arith.UIToFPOp if source.is_unsigned else arith.SIToFPOp, value, target_type)
    return resize(b, value, source.bits, target.bits, target_type, signed=source.is_signed)


def is_small(dtype: DType) -> bool:
    """True for floats of at most 8 bits. Kernels do no arithmetic in them."""
    return dtype.is_float and dtype.bits <= 8


def _convert_complex(b: IrBuilder, value: SSAValue, source: DType, target: DType, type_: Attribute) -> SSAValue:
    """Convert from or to a complex type. Real types keep the real part; PRED is true if either part is not zero."""
    if not target.is_complex:
        part = DTYPES[_PART[source.name]]
        real, imaginary = (b.cast(op, value, element_type(part.name)) for op in (complex.ReOp, complex.ImOp))
        if target.kind == "pred":
            zero = b.constant(real.type, 0)
            return widen(b, b.binary(arith.OrIOp, b.cmpf("une", real, zero), b.cmpf("une", imaginary, zero)))
        return convert(b, real, part, target, type_)
    wanted = DTYPES[_PART[target.name]]
    wanted_type = element_type(wanted.name)
    if not source.is_complex:
        real = convert(b, value, source, wanted, wanted_type)
        return b.create(complex.CreateOp, (real, b.constant(wanted_type, 0)), type_)
    part = DTYPES[_PART[source.name]]
    parts = (b.cast(op, value, element_type(part.name)) for op in (complex.ReOp, complex.ImOp))
    return b.create(complex.CreateOp, [convert(b, each, part, wanted, wanted_type) for each in parts], type_)


def resize(b: IrBuilder, value: SSAValue, source_bits: int, bits: int, type_: Attribute, signed: bool) -> SSAValue:
    """Return an integer value in `bits` bits (`type_`): truncated, or extended with the signedness of its type."""
    if bits == source_bits:
        return value
    if bits < source_bits:
        return b.cast(arith.TruncIOp, value, type_)
    return b.cast(arith.ExtSIOp if signed else arith.ExtUIOp, value, type_)


def _float_to_float(b: IrBuilder, value: SSAValue, source_bits: int, target_bits: int, type_: Attribute) -> SSAValue:
    if source_bits == target_bits:
        # f16 and bf16: neither represents all values of the other.
        return b.cast(arith.TruncFOp, b.cast(arith.ExtFOp, value, _F32), type_)
    return b.cast(arith.ExtFOp if target_bits > source_bits else arith.TruncFOp, value, type_)


def _float_to_integer(b: IrBuilder, value: SSAValue, target: DType, type_: Attribute) -> SSAValue:
    low = -(1 << (target.bits - 1)) if target.is_signed else 0
    high = (1 << (target.bits - 1 if target.is_signed else target.bits)) - 1
    result = b.cast(arith.FPToSIOp if target.is_signed else arith.FPToUIOp, value, type_)
    # The bounds are rounded to the float type. If `high` rounds up, no smaller float exceeds the integer range.
    below = b.cmpf("ole", value, b.constant(value.type, low))
    result = b.select(below, b.constant(type_, low), result)
    above = b.cmpf("oge", value, b.constant(value.type, high))
    result = b.select(above, b.constant(type_, high), result)
    return b.select(b.cmpf("uno", value, value), b.constant(type_, 0), result)


def bitcast_convert(b: IrBuilder, value: SSAValue, target_type: Attribute) -> SSAValue:
    """Return the bits of `value` as another type of the same width."""
    return value if value.type == target_type else b.cast(arith.BitcastOp, value, target_type)
