"""Emits scalar IR of the opcodes on complex numbers: mostly one op of the complex dialect each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.dialects import arith, complex
from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, Operation, SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.codegen.elemental.convert import widen
from hlo_run.dialects.types import is_complex
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

Emit: TypeAlias = "Callable[[IrBuilder, HloInstruction, Sequence[SSAValue]], SSAValue]"


_LOG_TWO = math.log(2)
_LOG2_E = 1 / math.log(2)


def _number(op: type[Operation]) -> Emit:
    """Return the emitter of an op from complex numbers to a complex number."""

    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        del instruction
        return b.create(op, values, values[0].type)

    return emit


def _part(op: type[Operation]) -> Emit:
    """Return the emitter of an op from a complex number to a real number."""

    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        del instruction
        type_ = values[0].type
        assert is_complex(type_), "the operand is complex"
        return b.create(op, values, type_.element_type)

    return emit


def _logistic(b: IrBuilder, _instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    (value,) = values
    one = b.constant(value.type, 1)
    exponential = b.unary(complex.ExpOp, b.unary(complex.NegOp, value))
    return b.binary(complex.DivOp, one, b.binary(complex.AddOp, one, exponential))


def _scaled(b: IrBuilder, value: SSAValue, factor: float) -> SSAValue:
    """Multiply both parts by a real number."""
    part = _part_type(value)
    constant = b.constant(part, factor)
    parts = [b.create(op, (value,), part) for op in (complex.ReOp, complex.ImOp)]
    return b.create(complex.CreateOp, [b.binary(arith.MulfOp, number, constant) for number in parts], value.type)


def _exp2(b: IrBuilder, _instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    return b.unary(complex.ExpOp, _scaled(b, values[0], _LOG_TWO))


def _log2(b: IrBuilder, _instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    return _scaled(b, b.unary(complex.LogOp, values[0]), _LOG2_E)


def _compare(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    left, right = values
    match instruction.comparison_direction:
        case "EQ":
            return widen(b, b.create(complex.EqualOp, values, i1))
        case "NE":
            return widen(b, b.create(complex.NotEqualOp, values, i1))
        case direction:
            return widen(b, _ordered(b, direction.lower(), left, right))


def _ordered(b: IrBuilder, direction: str, left: SSAValue, right: SSAValue) -> SSAValue:
    """Compare lexicographically: real parts first, then imaginary parts."""
    first, second = (
        [b.create(op, (value,), _part_type(value)) for value in (left, right)] for op in (complex.ReOp, complex.ImOp)
    )
    decided = b.cmpf(f"o{direction[0]}t", *first)
    tied = b.binary(arith.AndIOp, b.cmpf("oeq", *first), b.cmpf(f"o{direction}", *second))
    return b.binary(arith.OrIOp, decided, tied)


def _extremum(direction: str) -> Emit:
    def emit(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
        del instruction
        left, right = values
        return b.select(_ordered(b, direction, left, right), left, right)

    return emit


def _part_type(value: SSAValue) -> Attribute:
    assert is_complex(value.type), "the operand is complex"
    return value.type.element_type


def emit_complex(b: IrBuilder, instruction: HloInstruction, values: Sequence[SSAValue]) -> SSAValue:
    """Emit an opcode with complex operands. Raises Unsupported if the opcode does not support them."""
    emit = EMIT.get(instruction.opcode)
    if emit is None:
        raise Unsupported(f"'{instruction.opcode}' on complex numbers in a kernel", instruction.where)
    return emit(b, instruction, values)


EMIT: dict[Opcode, Emit] = {
    "add": _number(complex.AddOp),
    "subtract": _number(complex.SubOp),
    "multiply": _number(complex.MulOp),
    "divide": _number(complex.DivOp),
    "power": _number(complex.PowOp),
    "negate": _number(complex.NegOp),
    "sign": _number(complex.SignOp),
    "exponential": _number(complex.ExpOp),
    "exp2": _exp2,
    "log2": _log2,
    "exponential-minus-one": _number(complex.Expm1Op),
    "log": _number(complex.LogOp),
    "log-plus-one": _number(complex.Log1pOp),
    "sqrt": _number(complex.SqrtOp),
    "rsqrt": _number(complex.RsqrtOp),
    "sine": _number(complex.SinOp),
    "cosine": _number(complex.CosOp),
    "tan": _number(complex.TanOp),
    "tanh": _number(complex.TanhOp),
    "atan2": _number(complex.Atan2Op),
    "logistic": _logistic,
    "abs": _part(complex.AbsOp),
    "real": _part(complex.ReOp),
    "imag": _part(complex.ImOp),
    "compare": _compare,
    "maximum": _extremum("ge"),
    "minimum": _extremum("le"),
}
