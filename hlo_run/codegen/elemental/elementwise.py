"""Emits scalar IR of elementwise opcodes, whose operands are read at the index of the result: one row per opcode.

PRED is an i8 of 0 or 1. Signedness is that of the HLO type. Comparisons give i1, which is widened to PRED at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from xdsl.dialects import arith, complex, math
from xdsl.dialects.builtin import i1
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Operation, SSAValue

from hlo_run.codegen.elemental import integer
from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.codegen.elemental.convert import bitcast_convert, convert, widen
from hlo_run.codegen.elemental.reduce_precision import reduce_precision
from hlo_run.codegen.elemental.types import element_type
from hlo_run.dialects.arith_extra import RemFOp
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

Emit: TypeAlias = "Callable[[IrBuilder, HloInstruction, Sequence[SSAValue]], SSAValue]"
OpType: TypeAlias = "type[Operation]"
Row: TypeAlias = "tuple[Opcode, Emit]"


def unsupported(instruction: HloInstruction) -> Unsupported:
    """Return the error for an element type that the opcode does not support."""
    types = ", ".join(operand.shape.to_string(layout=False) for operand in instruction.operands)
    return Unsupported(f"'{instruction.opcode}' on {types} in a kernel", instruction.where, notes=(f"in {instruction.name}",))


def _operand_kind(instruction: HloInstruction) -> str:
    return instruction.operands[0].shape.dtype.kind


def floats(opcode: Opcode, op: OpType) -> Row:
    """Return the row of an opcode on floats, which is one op of the math or arith dialect.

    The emitter raises Unsupported for other types.
    """

    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        if _operand_kind(instruction) != "float":
            raise unsupported(instruction)
        return b.create(op, values, values[0].type)

    return opcode, emit


def approximate_floats(opcode: Opcode, op: OpType) -> Row:
    """Return the row of `floats`, but 16-bit types may use the approximate function: its error is below their precision."""
    fast = {"fastmath": arith.FastMathFlagsAttr((FastMathFlag.APPROX_FUNC,))}

    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        if _operand_kind(instruction) != "float":
            raise unsupported(instruction)
        return b.create(op, values, values[0].type, fast if instruction.operands[0].shape.dtype.bits == 16 else None)

    return opcode, emit


def integers(opcode: Opcode, op: OpType, pred: OpType | None = None) -> Row:
    """Return the row of an opcode on signed and unsigned integers, and on PRED with the op `pred`."""
    return by_kind(opcode, signed=_one(op), unsigned=_one(op), pred=_one(pred) if pred else None)


def arithmetic(
    opcode: Opcode, float_op: OpType, signed: OpType, unsigned: OpType | None = None, pred: OpType | None = None
) -> Row:
    """Return the row of a binary opcode on numbers. Without `unsigned`, unsigned integers use the op `signed`."""
    return by_kind(opcode, _one(float_op), _one(signed), _one(unsigned or signed), _one(pred) if pred else None)


def by_kind(
    opcode: Opcode, float_: Emit | None = None, signed: Emit | None = None, unsigned: Emit | None = None, pred: Emit | None = None
) -> Row:
    """Return the row of an opcode that chooses its emitter by the kind of the first operand's element type.

    The emitter raises Unsupported for a kind without emitter.
    """
    choices = {"float": float_, "signed": signed, "unsigned": unsigned, "pred": pred}

    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        chosen = choices.get(_operand_kind(instruction))
        if chosen is None:
            raise unsupported(instruction)
        return chosen(b, instruction, values)

    return opcode, emit


def _one(op: OpType) -> Emit:
    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        del instruction
        return b.create(op, values, values[0].type)

    return emit


def _bare(function: Callable[..., SSAValue], **options: bool) -> Emit:
    """Return an emitter that calls `function` with the builder and the operands, without the instruction."""

    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        del instruction
        return function(b, *values, **options)

    return emit


def _sign(b: IrBuilder, value: SSAValue) -> SSAValue:
    zero = b.constant(value.type, 0)
    magnitude = b.cast(arith.UIToFPOp, b.cmpf("one", value, zero), value.type)
    signed = b.binary(math.CopySignOp, magnitude, value)
    return b.select(b.cmpf("uno", value, value), value, signed)


def _logistic(b: IrBuilder, value: SSAValue) -> SSAValue:
    one = b.constant(value.type, 1)
    exponential = b.unary(math.ExpOp, b.unary(arith.NegfOp, value))
    return b.binary(arith.DivfOp, one, b.binary(arith.AddfOp, one, exponential))


def _is_finite(b: IrBuilder, value: SSAValue) -> SSAValue:
    return widen(b, b.cmpf("one", b.unary(math.AbsFOp, value), b.constant(value.type, float("inf"))))


def _not_pred(b: IrBuilder, value: SSAValue) -> SSAValue:
    return widen(b, b.cmpi("eq", value, b.constant(value.type, 0)))


def _identity(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    del b, instruction
    return values[0]


def _imaginary_part(b: IrBuilder, value: SSAValue) -> SSAValue:
    return b.constant(value.type, 0)


def _make_complex(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    return b.create(complex.CreateOp, values, element_type(instruction.shape.element_type, instruction.where))


def _clamp(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    low, value, high = values
    larger = EMIT["maximum"](b, instruction, (low, value))
    return EMIT["minimum"](b, instruction, (larger, high))


def _select(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    del instruction
    predicate, on_true, on_false = values
    return b.select(b.cast(arith.TruncIOp, predicate, i1), on_true, on_false)


# With a NaN operand, NE is true and every other comparison is false.
_FLOAT_PREDICATE = {"EQ": "oeq", "NE": "une", "GE": "oge", "GT": "ogt", "LE": "ole", "LT": "olt"}


def _compare(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    left, right = values
    direction = instruction.comparison_direction
    dtype = instruction.operands[0].shape.dtype
    match dtype.kind:
        case "float" if instruction.comparison_order == "TOTAL":
            keys = [integer.total_order_key(b, value) for value in values]
            return widen(b, b.cmpi(_integer_predicate(direction, "s"), *keys))
        case "float":
            return widen(b, b.cmpf(_FLOAT_PREDICATE[direction], left, right))
        case "signed" | "unsigned" | "pred":
            return widen(b, b.cmpi(_integer_predicate(direction, "s" if dtype.is_signed else "u"), left, right))
        case "complex":
            raise unsupported(instruction)
        case _:
            assert_never(dtype.kind)


def _integer_predicate(direction: str, sign: str) -> str:
    return direction.lower() if direction in ("EQ", "NE") else sign + direction.lower()


def _convert(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    target = instruction.shape.dtype
    return convert(b, values[0], instruction.operands[0].shape.dtype, target, element_type(target.name, instruction.where))


def _bitcast_convert(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    return bitcast_convert(b, values[0], element_type(instruction.shape.element_type, instruction.where))


def _reduce_precision(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    if instruction.shape.dtype.float_format.special == "exponent":
        raise unsupported(instruction)
    bits = instruction.exponent_bits, instruction.mantissa_bits
    return reduce_precision(b, values[0], instruction.shape.dtype, *bits)


EMIT: dict[Opcode, Emit] = dict(
    (
        arithmetic("add", arith.AddfOp, arith.AddiOp, pred=arith.OrIOp),
        arithmetic("subtract", arith.SubfOp, arith.SubiOp),
        arithmetic("multiply", arith.MulfOp, arith.MuliOp, pred=arith.AndIOp),
        arithmetic("maximum", arith.MaximumfOp, arith.MaxSIOp, arith.MaxUIOp, pred=arith.OrIOp),
        arithmetic("minimum", arith.MinimumfOp, arith.MinSIOp, arith.MinUIOp, pred=arith.AndIOp),
        by_kind("divide", _one(arith.DivfOp), _bare(integer.divide_signed), _bare(integer.divide_unsigned)),
        by_kind("remainder", _one(RemFOp), _bare(integer.remainder_signed), _bare(integer.remainder_unsigned)),
        by_kind("power", _one(math.PowFOp), _bare(integer.power), _bare(integer.power)),
        by_kind("negate", _one(arith.NegfOp), _bare(integer.negate), _bare(integer.negate)),
        by_kind("abs", _one(math.AbsFOp), _bare(integer.absolute)),
        by_kind("sign", _bare(_sign), _bare(integer.sign)),
        by_kind("not", None, _bare(integer.invert), _bare(integer.invert), _bare(_not_pred)),
        integers("and", arith.AndIOp, pred=arith.AndIOp),
        integers("or", arith.OrIOp, pred=arith.OrIOp),
        integers("xor", arith.XOrIOp, pred=arith.XOrIOp),
        by_kind("shift-left", None, _bare(integer.shift_left), _bare(integer.shift_left)),
        by_kind("shift-right-logical", None, _bare(integer.shift_right_logical), _bare(integer.shift_right_logical)),
        by_kind("shift-right-arithmetic", None, _bare(integer.shift_right_arithmetic), _bare(integer.shift_right_arithmetic)),
        by_kind("mulhi", None, _bare(integer.multiply_high, signed=True), _bare(integer.multiply_high, signed=False)),
        integers("popcnt", math.CtPopOp),
        integers("count-leading-zeros", math.CountLeadingZerosOp),
        floats("floor", math.FloorOp),
        floats("ceil", math.CeilOp),
        floats("round-nearest-afz", math.RoundOp),
        floats("round-nearest-even", math.RoundEvenOp),
        approximate_floats("exponential", math.ExpOp),
        approximate_floats("log", math.LogOp),
        floats("exp2", math.Exp2Op),
        floats("log2", math.Log2Op),
        floats("exponential-minus-one", math.ExpM1Op),
        floats("log-plus-one", math.Log1pOp),
        floats("sqrt", math.SqrtOp),
        floats("rsqrt", math.RsqrtOp),
        floats("cbrt", math.CbrtOp),
        floats("sine", math.SinOp),
        floats("cosine", math.CosOp),
        floats("tan", math.TanOp),
        floats("tanh", math.TanhOp),
        floats("erf", math.ErfOp),
        floats("acos", math.AcosOp),
        floats("acosh", math.AcoshOp),
        floats("asin", math.AsinOp),
        floats("asinh", math.AsinhOp),
        floats("atanh", math.AtanhOp),
        floats("atan2", math.Atan2Op),
        floats("sinh", math.SinhOp),
        floats("cosh", math.CoshOp),
        by_kind("logistic", _bare(_logistic)),
        by_kind("is-finite", _bare(_is_finite)),
        by_kind("real", _identity),
        by_kind("imag", _bare(_imaginary_part)),
        by_kind("complex", _make_complex),
        ("compare", _compare),
        ("select", _select),
        ("clamp", _clamp),
        ("convert", _convert),
        ("copy", _convert),
        ("bitcast-convert", _bitcast_convert),
        ("reduce-precision", _reduce_precision),
    )
)
