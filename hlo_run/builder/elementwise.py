"""Builder methods of elementwise opcodes (`abs` to `xor`)."""

from __future__ import annotations

import keyword
from collections.abc import Callable

from hlo_run.builder.core import BuilderCore, HloValue, Operand
from hlo_run.builder.shaping import Ints
from hlo_run.builder.values import ShapeLike, TypeLike, type_of
from hlo_run.errors import UsageError
from hlo_run.hlo.opcodes.definition import OpcodeDefinition
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape

# `result_accuracy` is text: `{mode=highest}` or `{tolerance={atol=..,rtol=..,ulps=..}}`.
_Accuracy = str | None


class ElementwiseMethods(BuilderCore):
    """Numbers become constants of the other operand's type; scalars are broadcast to the other operand's dimensions.

    Methods with two operands take `broadcast_dimensions`, as XLA's builder does: dimension i of the operand of lower rank is
    dimension `broadcast_dimensions[i]` of the other. Dimensions of size 1 are broadcast too.

    The operands then have equal dimensions, which are the result's. Unless a method says otherwise, the result has their
    element type, the wider one of two float types. Methods raise ParseError for other differences, and for element types
    that the opcode does not take.
    """

    def _unary(self, opcode: Opcode, operand: HloValue, **attributes: object) -> HloValue:
        return self._instruction(opcode, [operand], attributes)

    def _binary(self, opcode: Opcode, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints, **attributes: object) -> HloValue:
        if isinstance(lhs, HloValue) and isinstance(rhs, HloValue):
            lhs, rhs = self._of_equal_dims(lhs, rhs, tuple(broadcast_dimensions))
        elif broadcast_dimensions:
            raise UsageError("broadcast_dimensions needs two values, not a number")
        return self._elementwise(opcode, [lhs, rhs], attributes)

    def _of_equal_dims(self, lhs: HloValue, rhs: HloValue, places: tuple[int, ...]) -> tuple[HloValue, HloValue]:
        """Broadcast the operands to common dimensions. Scalars without `places` stay, as do dimensions that do not fit."""
        one, two = lhs.shape, rhs.shape
        if not one.is_array or not two.is_array or (one.dims == two.dims and not places):
            return lhs, rhs
        if one.rank == two.rank:
            if places not in ((), tuple(range(one.rank))):
                raise UsageError(f"broadcast_dimensions {list(places)} of operands of one rank must be all dimensions in order")
            places = tuple(range(one.rank))
        elif not places:
            return lhs, rhs
        low, high = sorted((one, two), key=lambda shape: shape.rank)
        if len(places) != low.rank or any(not 0 <= place < high.rank for place in places) or list(places) != sorted({*places}):
            known = f"{low.rank} of the dimensions 0 to {high.rank - 1} in ascending order"
            raise UsageError(f"broadcast_dimensions must be {known}, got {list(places)}")
        dims = list(high.dims)
        for size, place in zip(low.dims, places, strict=True):
            if size != dims[place] and 1 not in (size, dims[place]):
                return lhs, rhs
            dims[place] = size if dims[place] == 1 else dims[place]
        other = tuple(range(high.rank))
        return (
            self._spread_to(lhs, dims, places if one is low else other),
            self._spread_to(rhs, dims, places if two is low else other),
        )

    def _spread_to(self, value: HloValue, dims: list[int], places: tuple[int, ...]) -> HloValue:
        """Broadcast `value`, whose dimension i becomes dimension `places[i]`; one of size 1 goes away and is repeated."""
        if list(value.shape.dims) == dims:
            return value
        kept = [dim for dim, place in enumerate(places) if value.shape.dims[dim] == dims[place]]
        if len(kept) < len(places):
            shape = Shape.array(value.shape.element_type, tuple(value.shape.dims[dim] for dim in kept))
            value = self.instruction("reshape", [value], shape)
        target = Shape.array(value.shape.element_type, tuple(dims))
        return self.instruction("broadcast", [value], target, dimensions=tuple(places[dim] for dim in kept))

    def abs(self, operand: HloValue) -> HloValue:
        """Return the magnitude; a complex operand has one of a float type."""
        return self._unary("abs", operand)

    def ceil(self, operand: HloValue) -> HloValue:
        """Round floats up to an integer."""
        return self._unary("ceil", operand)

    def floor(self, operand: HloValue) -> HloValue:
        """Round floats down to an integer."""
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
        """Return -x of integers, floats or complex numbers. Integers wrap."""
        return self._unary("negate", operand)

    def sign(self, operand: HloValue) -> HloValue:
        """Return -1, 0 or 1 of signed integers and floats, and z / |z| of complex numbers. Zeros and NaN stay."""
        return self._unary("sign", operand)

    def real(self, operand: HloValue) -> HloValue:
        """Return the real part of complex numbers as floats; floats stay as they are."""
        return self._unary("real", operand)

    def imag(self, operand: HloValue) -> HloValue:
        """Return the imaginary part of complex numbers as floats; it is 0 for floats."""
        return self._unary("imag", operand)

    def is_finite(self, operand: HloValue) -> HloValue:
        """Return a pred that is true where a float is neither infinite nor NaN."""
        return self._unary("is-finite", operand)

    def popcnt(self, operand: HloValue) -> HloValue:
        """Count the bits that are 1."""
        return self._unary("popcnt", operand)

    def count_leading_zeros(self, operand: HloValue) -> HloValue:
        """Count the zeros above the highest 1 bit of an integer; for 0, all its bits."""
        return self._unary("count-leading-zeros", operand)

    def acos(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the arc cosine of floats, in radians in [0, pi], or of complex numbers. Floats outside [-1, 1] give NaN."""
        return self._unary("acos", operand, result_accuracy=result_accuracy)

    def acosh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the inverse hyperbolic cosine of floats or complex numbers. Floats below 1 give NaN."""
        return self._unary("acosh", operand, result_accuracy=result_accuracy)

    def asin(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the arc sine of floats, in radians in [-pi/2, pi/2], or of complex numbers. Floats outside [-1, 1] give NaN."""
        return self._unary("asin", operand, result_accuracy=result_accuracy)

    def asinh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the inverse hyperbolic sine of floats or complex numbers."""
        return self._unary("asinh", operand, result_accuracy=result_accuracy)

    def atanh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the inverse hyperbolic tangent of floats or complex numbers. Floats outside [-1, 1] give NaN."""
        return self._unary("atanh", operand, result_accuracy=result_accuracy)

    def cbrt(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the cube root of floats, which has the sign of the operand."""
        return self._unary("cbrt", operand, result_accuracy=result_accuracy)

    def exp2(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return 2 to the power of floats or complex numbers."""
        return self._unary("exp2", operand, result_accuracy=result_accuracy)

    def log2(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the logarithm to the base 2 of floats or complex numbers. Negative floats give NaN, zero gives -inf."""
        return self._unary("log2", operand, result_accuracy=result_accuracy)

    def cosine(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the cosine of floats, in radians, or of complex numbers."""
        return self._unary("cosine", operand, result_accuracy=result_accuracy)

    def cosh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the hyperbolic cosine of floats or complex numbers."""
        return self._unary("cosh", operand, result_accuracy=result_accuracy)

    def erf(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the Gauss error function of floats."""
        return self._unary("erf", operand, result_accuracy=result_accuracy)

    def exponential(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return e^x of floats or complex numbers."""
        return self._unary("exponential", operand, result_accuracy=result_accuracy)

    def exponential_minus_one(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return e^x - 1 of floats or complex numbers, accurate near x = 0."""
        return self._unary("exponential-minus-one", operand, result_accuracy=result_accuracy)

    def log(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the natural logarithm of floats or complex numbers. Floats below 0 give NaN."""
        return self._unary("log", operand, result_accuracy=result_accuracy)

    def log_plus_one(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return log(1 + x) of floats or complex numbers, accurate near x = 0. Floats below -1 give NaN."""
        return self._unary("log-plus-one", operand, result_accuracy=result_accuracy)

    def logistic(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return 1 / (1 + e^-x) of floats or complex numbers."""
        return self._unary("logistic", operand, result_accuracy=result_accuracy)

    def rsqrt(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return 1 / sqrt(x) of floats or complex numbers. Floats below 0 give NaN."""
        return self._unary("rsqrt", operand, result_accuracy=result_accuracy)

    def sine(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the sine of floats, in radians, or of complex numbers."""
        return self._unary("sine", operand, result_accuracy=result_accuracy)

    def sinh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the hyperbolic sine of floats or complex numbers."""
        return self._unary("sinh", operand, result_accuracy=result_accuracy)

    def sqrt(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the square root of floats or complex numbers. Floats below 0 give NaN."""
        return self._unary("sqrt", operand, result_accuracy=result_accuracy)

    def tan(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the tangent of floats, in radians, or of complex numbers."""
        return self._unary("tan", operand, result_accuracy=result_accuracy)

    def tanh(self, operand: HloValue, result_accuracy: _Accuracy = None) -> HloValue:
        """Return the hyperbolic tangent of floats or complex numbers."""
        return self._unary("tanh", operand, result_accuracy=result_accuracy)

    def add(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return lhs + rhs. Integers wrap; of preds it is the logical or."""
        return self._binary("add", lhs, rhs, broadcast_dimensions)

    def subtract(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return lhs - rhs of integers, floats or complex numbers. Integers wrap."""
        return self._binary("subtract", lhs, rhs, broadcast_dimensions)

    def multiply(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return lhs * rhs. Integers wrap; of preds it is the logical and."""
        return self._binary("multiply", lhs, rhs, broadcast_dimensions)

    def mulhi(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the upper half of the double-width product of integers."""
        return self._binary("mulhi", lhs, rhs, broadcast_dimensions)

    def divide(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Divide; integer quotients are truncated."""
        return self._binary("divide", lhs, rhs, broadcast_dimensions)

    def remainder(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the remainder, which has the sign of `lhs`."""
        return self._binary("remainder", lhs, rhs, broadcast_dimensions)

    def power(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return lhs to the power of rhs, of integers, floats or complex numbers.

        Integers wrap, and as in XLA only the low 6 bits of their exponent count. A negative integer exponent (unsigned: one
        with the highest bit set) gives 1 for the base 1, 1 or -1 for the base -1, and 0 for other bases.
        """
        return self._binary("power", lhs, rhs, broadcast_dimensions)

    def maximum(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the larger of lhs and rhs. A float is NaN if one operand is NaN; +0 is larger than -0.

        Complex numbers compare by real part, then by imaginary part. Of preds it is the logical or.
        """
        return self._binary("maximum", lhs, rhs, broadcast_dimensions)

    def minimum(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the smaller of lhs and rhs. A float is NaN if one operand is NaN; -0 is smaller than +0.

        Complex numbers compare by real part, then by imaginary part. Of preds it is the logical and.
        """
        return self._binary("minimum", lhs, rhs, broadcast_dimensions)

    def and_(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the logical and of preds, or the bitwise and of integers."""
        return self._binary("and", lhs, rhs, broadcast_dimensions)

    def or_(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the logical or of preds, or the bitwise or of integers."""
        return self._binary("or", lhs, rhs, broadcast_dimensions)

    def xor(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the exclusive or of preds, or of each bit of integers."""
        return self._binary("xor", lhs, rhs, broadcast_dimensions)

    def atan2(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Return the angle of the point (x = rhs, y = lhs) of floats or complex numbers, in radians in [-pi, pi]."""
        return self._binary("atan2", lhs, rhs, broadcast_dimensions)

    def complex(self, real: Operand, imag: Operand) -> HloValue:
        """Return complex numbers from two parts: c64 from f32, c128 from f64. The parts have one element type."""
        return self.elementwise("complex", [real, imag])

    def shift_left(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Shift integers left by rhs bits and fill with zeros. An amount below 0, or not below the width, gives 0."""
        return self._binary("shift-left", lhs, rhs, broadcast_dimensions)

    def shift_right_arithmetic(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Shift integers right by rhs bits and fill with copies of the highest bit, also of unsigned types.

        An amount below 0, or not below the width, gives the highest bit in every place: 0 or -1.
        """
        return self._binary("shift-right-arithmetic", lhs, rhs, broadcast_dimensions)

    def shift_right_logical(self, lhs: Operand, rhs: Operand, broadcast_dimensions: Ints = ()) -> HloValue:
        """Shift integers right by rhs bits and fill with zeros, also of signed types.

        An amount below 0, or not below the width, gives 0.
        """
        return self._binary("shift-right-logical", lhs, rhs, broadcast_dimensions)

    def compare(
        self,
        lhs: Operand,
        rhs: Operand,
        direction: str,
        type: str | None = None,
        broadcast_dimensions: Ints = (),
        order: str | None = None,
    ) -> HloValue:
        """Compare; `direction` is EQ, NE, GE, GT, LE or LT; `order` is TOTAL or PARTIAL, the default of floats.

        `type` is the older spelling of the order: TOTALORDER, SIGNED and UNSIGNED mean TOTAL, FLOAT means PARTIAL.
        """
        return self._binary("compare", lhs, rhs, broadcast_dimensions, direction=direction, type=type, order=order)

    def select(self, pred: HloValue, on_true: Operand, on_false: Operand) -> HloValue:
        """Return the elements of `on_true` where `pred` is true, else of `on_false`. `pred` may be a scalar."""
        return self.elementwise("select", [pred, on_true, on_false], scalars=(0,))

    def clamp(self, low: Operand, operand: HloValue, high: Operand) -> HloValue:
        """Return the operand's elements, limited to [low, high]. `low` and `high` may be scalars."""
        return self.elementwise("clamp", [low, operand, high], scalars=(0, 2))

    def convert(self, operand: HloValue, element_type: TypeLike) -> HloValue:
        """Return the elements as another type, in the operand's dimensions.

        Floats round to the nearest, ties to even. A float becomes an integer by truncation; it saturates out of range, and NaN
        gives 0. An integer wraps in a narrower integer type. A complex number becomes its real part. In pred, all but 0 is
        true.
        """
        return self.instruction("convert", [operand], operand.shape.with_element_type(type_of(element_type)))

    def bitcast_convert(self, operand: HloValue, element_type: TypeLike) -> HloValue:
        """Reinterpret the bits as another type; a wider type removes the last dimension, a narrower one adds a dimension.

        Raises UsageError if a wider type does not have the bits of the last dimension.
        """
        return self.instruction("bitcast-convert", [operand], _bitcast_shape(operand.shape, type_of(element_type)))

    def stochastic_convert(self, operand: HloValue, random: HloValue, element_type: TypeLike) -> HloValue:
        """Round up or down at random; `random` has unsigned integers of the operand's width."""
        shape = operand.shape.with_element_type(type_of(element_type))
        return self.instruction("stochastic-convert", [operand, random], shape)

    def reduce_precision(self, operand: HloValue, exponent_bits: int, mantissa_bits: int) -> HloValue:
        """Round floats to numbers with `exponent_bits` (at least 1) and `mantissa_bits` (at least 0), ties to even.

        The result has the operand's shape and type. Numbers above the smaller range become infinities, or NaN in types without
        infinity. Numbers below it become zeros of their sign.
        """
        return self.instruction(
            "reduce-precision", [operand], operand.shape, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits
        )

    def copy(self, operand: HloValue, shape: ShapeLike | None = None) -> HloValue:
        """Copy the operand, in the layout of `shape` if it is given."""
        return self.instruction("copy", [operand], shape)


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


def plain_method(opcode: OpcodeDefinition) -> Callable[..., HloValue]:
    """Return the method of a plain elementwise opcode: it takes the operands, and the attributes by name."""

    def method(self: ElementwiseMethods, *operands: Operand, **attributes: object) -> HloValue:
        return self._elementwise(opcode.name, operands, attributes)  # pyright: ignore[reportPrivateUsage] - a method of the class

    method.__name__ = opcode.name.replace("-", "_")
    return method


# An opcode that has no method above, with its types, has a plain one.
for _opcode in OPCODES.values():
    if _opcode.takes and not keyword.iskeyword(_opcode.name) and not hasattr(ElementwiseMethods, _opcode.name.replace("-", "_")):
        setattr(ElementwiseMethods, _opcode.name.replace("-", "_"), plain_method(_opcode))
