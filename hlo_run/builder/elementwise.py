"""Builder methods of elementwise opcodes (`abs` to `xor`)."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from typing import Any

from hlo_run.builder.core import BuilderCore, HloValue, Operand
from hlo_run.builder.values import TypeLike, type_of
from hlo_run.errors import UsageError
from hlo_run.hlo.opcodes.definition import Opcode
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape

# `result_accuracy` is text: `{mode=highest}` or `{tolerance={atol=..,rtol=..,ulps=..}}`.
_Accuracy = str | None


class ElementwiseMethods(BuilderCore):
    """Numbers become constants of the other operand's type; scalars are broadcast to the other operand's dimensions."""

    def _unary(self, opcode: str, operand: HloValue, **attributes: Any) -> HloValue:
        return self.instruction(opcode, [operand], **attributes)

    def abs(self, operand: HloValue) -> HloValue:
        """Return the magnitude; that of a complex operand is a float."""
        return self._unary("abs", operand)

    def ceil(self, operand: HloValue) -> HloValue:
        return self._unary("ceil", operand)

    def floor(self, operand: HloValue) -> HloValue:
        return self._unary("floor", operand)

    def round_nearest_afz(self, operand: HloValue) -> HloValue:
        """Round to the nearest integer, halves away from zero."""
        return self._unary("round-nearest-afz", operand)

    def round_nearest_even(self, operand: HloValue) -> HloValue:
        """Round to the nearest integer, halves to even."""
        return self._unary("round-nearest-even", operand)

    def not_(self, operand: HloValue) -> HloValue:
        """Negate a pred, or invert every bit of an integer."""
        return self._unary("not", operand)

    def negate(self, operand: HloValue) -> HloValue:
        return self._unary("negate", operand)

    def sign(self, operand: HloValue) -> HloValue:
        return self._unary("sign", operand)

    def real(self, operand: HloValue) -> HloValue:
        return self._unary("real", operand)

    def imag(self, operand: HloValue) -> HloValue:
        return self._unary("imag", operand)

    def is_finite(self, operand: HloValue) -> HloValue:
        return self._unary("is-finite", operand)

    def popcnt(self, operand: HloValue) -> HloValue:
        """Count the bits that are 1."""
        return self._unary("popcnt", operand)

    def count_leading_zeros(self, operand: HloValue) -> HloValue:
        return self._unary("count-leading-zeros", operand)

    def acos(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("acos", operand, result_accuracy=result_accuracy)

    def acosh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("acosh", operand, result_accuracy=result_accuracy)

    def asin(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("asin", operand, result_accuracy=result_accuracy)

    def asinh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("asinh", operand, result_accuracy=result_accuracy)

    def atanh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("atanh", operand, result_accuracy=result_accuracy)

    def cbrt(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("cbrt", operand, result_accuracy=result_accuracy)

    def cosine(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("cosine", operand, result_accuracy=result_accuracy)

    def cosh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("cosh", operand, result_accuracy=result_accuracy)

    def erf(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("erf", operand, result_accuracy=result_accuracy)

    def exponential(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("exponential", operand, result_accuracy=result_accuracy)

    def exponential_minus_one(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("exponential-minus-one", operand, result_accuracy=result_accuracy)

    def log(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("log", operand, result_accuracy=result_accuracy)

    def log_plus_one(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("log-plus-one", operand, result_accuracy=result_accuracy)

    def logistic(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("logistic", operand, result_accuracy=result_accuracy)

    def rsqrt(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("rsqrt", operand, result_accuracy=result_accuracy)

    def sine(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("sine", operand, result_accuracy=result_accuracy)

    def sinh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("sinh", operand, result_accuracy=result_accuracy)

    def sqrt(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("sqrt", operand, result_accuracy=result_accuracy)

    def tan(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("tan", operand, result_accuracy=result_accuracy)

    def tanh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        return self._unary("tanh", operand, result_accuracy=result_accuracy)

    def add(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("add", [lhs, rhs])

    def subtract(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("subtract", [lhs, rhs])

    def multiply(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("multiply", [lhs, rhs])

    def mulhi(self, lhs: Operand, rhs: Operand) -> HloValue:
        """Return the upper half of the double-width product of integers."""
        return self.elementwise("mulhi", [lhs, rhs])

    def divide(self, lhs: Operand, rhs: Operand) -> HloValue:
        """Divide; integer quotients are truncated."""
        return self.elementwise("divide", [lhs, rhs])

    def remainder(self, lhs: Operand, rhs: Operand) -> HloValue:
        """Return the remainder, which has the sign of `lhs`."""
        return self.elementwise("remainder", [lhs, rhs])

    def power(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("power", [lhs, rhs])

    def maximum(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("maximum", [lhs, rhs])

    def minimum(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("minimum", [lhs, rhs])

    def and_(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("and", [lhs, rhs])

    def or_(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("or", [lhs, rhs])

    def xor(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("xor", [lhs, rhs])

    def atan2(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("atan2", [lhs, rhs])

    def complex(self, real: Operand, imag: Operand) -> HloValue:
        return self.elementwise("complex", [real, imag])

    def shift_left(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("shift-left", [lhs, rhs])

    def shift_right_arithmetic(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("shift-right-arithmetic", [lhs, rhs])

    def shift_right_logical(self, lhs: Operand, rhs: Operand) -> HloValue:
        return self.elementwise("shift-right-logical", [lhs, rhs])

    def compare(self, lhs: Operand, rhs: Operand, direction: str, type: str | None = None) -> HloValue:
        """`direction` is EQ, NE, GE, GT, LE or LT; `type` FLOAT, TOTALORDER, SIGNED or UNSIGNED (default: by element type)."""
        return self.elementwise("compare", [lhs, rhs], direction=direction, type=type)

    def select(self, pred: HloValue, on_true: Operand, on_false: Operand) -> HloValue:
        """`pred` may be a scalar."""
        return self.elementwise("select", [pred, on_true, on_false], scalars=(0,))

    def clamp(self, low: Operand, operand: HloValue, high: Operand) -> HloValue:
        """`low` and `high` may be scalars."""
        return self.elementwise("clamp", [low, operand, high], scalars=(0, 2))

    def convert(self, operand: HloValue, element_type: TypeLike) -> HloValue:
        return self._unary("convert", operand, shape=operand.shape.with_element_type(type_of(element_type)))

    def bitcast_convert(self, operand: HloValue, element_type: TypeLike) -> HloValue:
        """Reinterpret the bits as another type; a wider type removes the last dimension, a narrower one adds a dimension."""
        return self._unary("bitcast-convert", operand, shape=_bitcast_shape(operand.shape, type_of(element_type)))

    def stochastic_convert(self, operand: HloValue, random: HloValue, element_type: TypeLike) -> HloValue:
        """Round up or down at random; `random` has unsigned integers of the operand's width."""
        shape = operand.shape.with_element_type(type_of(element_type))
        return self.instruction("stochastic-convert", [operand, random], shape)

    def reduce_precision(self, operand: HloValue, exponent_bits: int, mantissa_bits: int) -> HloValue:
        return self.instruction(
            "reduce-precision", [operand], operand.shape, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits
        )

    def copy(self, operand: HloValue, shape: Any = None) -> HloValue:
        """Copy the operand, in the layout of `shape` if it is given."""
        return self._unary("copy", operand, shape=shape)


def _bitcast_shape(source: Shape, element_type: str) -> Shape:
    old_bits, new_bits = source.dtype.bits, DTYPES[element_type].bits
    if old_bits == new_bits:
        return source.with_element_type(element_type)
    if old_bits > new_bits:
        return Shape.array(element_type, (*source.dims, old_bits // new_bits))
    if not source.rank or source.dims[-1] != new_bits // old_bits:
        wanted = f"a last dimension of {new_bits // old_bits}"
        raise UsageError(f"bitcast_convert of {source.to_string(layout=False)} to {element_type} needs {wanted}")
    return Shape.array(element_type, source.dims[:-1])


def plain_method(opcode: Opcode) -> Callable[..., HloValue]:
    """Return the method of a plain elementwise opcode: it takes the operands, and the attributes by name."""

    def method(self: ElementwiseMethods, *operands: Operand, **attributes: Any) -> HloValue:
        return self.elementwise(opcode.name, operands, **attributes)

    method.__name__ = opcode.name.replace("-", "_")
    return method


# An opcode that has no method above, with its types, has a plain one.
for _opcode in OPCODES.values():
    if _opcode.takes and not keyword.iskeyword(_opcode.name) and not hasattr(ElementwiseMethods, _opcode.name.replace("-", "_")):
        setattr(ElementwiseMethods, _opcode.name.replace("-", "_"), plain_method(_opcode))
