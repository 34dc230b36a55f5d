"""Evaluate elementwise ops: each computes in the computing type of its operands and rounds to the result's type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array, NumpyType
from hlo_run.elementary import complex_functions as z
from hlo_run.elementary import functions as e
from hlo_run.elementary.rounding import Elementary
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference import complex_functions as c
from hlo_run.reference.numerics import functions as f
from hlo_run.reference.numerics.precision import IS_WIDENED
from hlo_run.reference.numerics.total_order import total_order_key
from hlo_run.reference.values import (
    Function,
    Kernel,
    Row,
    computing_type,
    in_chunks,
    narrow,
    precise_type,
    prepared_row,
    table,
    unsupported,
)


class _ByKind(Struct, frozen=True):
    """The numpy function of an op per kind of its first operand's type; None if HLO does not define the op there.

    `sized` makes the integer function from the type, for ops whose result depends on its width. `precise` means that
    the floating-point function is inexact: it is always computed in f64 (complex: c128).
    """

    pred: Function | None = None
    signed: Function | None = None
    unsigned: Function | None = None
    float_: Function | None = None
    complex_: Function | None = None
    sized: Callable[[DType], Function] | None = None
    precise: bool = False

    def function(self, dtype: DType) -> Function | None:
        if dtype.is_integer and self.sized:
            return self.sized(dtype)
        kinds = {"pred": self.pred, "signed": self.signed, "unsigned": self.unsigned, "float": self.float_}
        return kinds.get(dtype.kind, self.complex_)


def _row(opcode: Opcode, by_kind: _ByKind) -> Row:
    def prepare(instruction: HloInstruction) -> Kernel:
        types = [operand.shape.dtype for operand in instruction.operands]
        function = by_kind.function(types[0])
        if function is None:
            raise unsupported(instruction)
        inexact = by_kind.precise and types[0].kind in ("float", "complex")
        if isinstance(function, Elementary):
            function = _rounded(function, instruction)
        return _kernel(function, types, instruction.shape.dtype, inexact)

    return prepared_row(opcode, prepare)


def _rounded(function: Elementary, instruction: HloInstruction) -> Function:
    """Return the function as exact as the result needs it."""
    result = instruction.shape.dtype
    if result.bits < 64:
        return function.narrowed(result.float_format.mantissa_bits + 1, 2.0 ** (1 - result.float_format.bias))
    return function.rough if instruction.attrs.get(IS_WIDENED) else function


def _kernel(function: Function, types: Sequence[DType], result: DType, inexact: bool) -> Kernel:
    """Return a kernel that applies `function` to the widened operands and rounds to `result`."""
    # Operands of mixed precision (f32 with narrower floats, f64 with f32) compute in the wider type.
    computing: NumpyType = np.result_type(*(computing_type(dtype) for dtype in types))
    if inexact:
        computing = precise_type(computing)
    if all(dtype.numpy == computing for dtype in types) and _gives(function, computing, len(types)) == result.numpy:
        # One pass over the elements, without intermediate arrays.
        return function

    def chunk(*parts: Array) -> Array:
        return narrow(np.asarray(function(*(part.astype(computing, copy=False) for part in parts))), result)

    return in_chunks(chunk, result.numpy)


def _gives(function: Function, computing: NumpyType, count: int) -> NumpyType | None:
    """Return the result type of a ufunc on `count` operands of type `computing`; None if it is not a ufunc."""
    if not isinstance(function, np.ufunc):
        return None
    return function.resolve_dtypes((*(computing,) * count, None))[-1]


def _number(opcode: Opcode, function: Function, **kinds: Function | None) -> Row:
    """Return the row of an op with one function for ints, floats and complex numbers; `kinds` has the exceptions."""
    filled = {"signed": function, "unsigned": function, "float_": function, "complex_": function, "pred": None, **kinds}
    by_kind = _ByKind(filled["pred"], filled["signed"], filled["unsigned"], filled["float_"], filled["complex_"])
    return _row(opcode, by_kind)


def _inexact(opcode: Opcode, function: Function, complex_: Function | None = None) -> Row:
    """Return the row of a transcendental function on floats, and on complex numbers if `complex_` is given."""
    return _row(opcode, _ByKind(float_=function, complex_=complex_, precise=True))


def _bits(opcode: Opcode, function: Function) -> Row:
    return _row(opcode, _ByKind(pred=function, signed=function, unsigned=function))


def _sized(opcode: Opcode, function: Callable[[DType], Function]) -> Row:
    return _row(opcode, _ByKind(sized=function))


_DIRECTIONS: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def _compare(instruction: HloInstruction) -> Kernel:
    types = [operand.shape.dtype for operand in instruction.operands]
    compare = _DIRECTIONS[instruction.comparison_direction]
    if types[0].is_float and instruction.comparison_order == "TOTAL":

        def compare_keys(x: Array, y: Array) -> Array:
            return compare(total_order_key(x, types[0]), total_order_key(y, types[0]))

        return in_chunks(compare_keys, np.dtype(np.bool_))
    return _kernel(compare, types, instruction.shape.dtype, inexact=False)


def _select(_instruction: HloInstruction) -> Kernel:
    return np.where


def _zero(x: Array) -> Array:
    return np.zeros_like(x)


EVALUATE = table(
    # unary
    _number("abs", np.abs, complex_=z.absolute),
    _number("negate", np.negative),
    _number("sign", np.sign, float_=f.sign, complex_=c.complex_sign),
    _row("not", _ByKind(pred=np.logical_not, signed=np.invert, unsigned=np.invert)),
    _row("floor", _ByKind(float_=np.floor)),
    _row("ceil", _ByKind(float_=np.ceil)),
    _row("round-nearest-afz", _ByKind(float_=f.round_half_away)),
    _row("round-nearest-even", _ByKind(float_=np.rint)),
    _row("is-finite", _ByKind(float_=np.isfinite)),
    _row("real", _ByKind(float_=np.array, complex_=c.real_part)),
    _row("imag", _ByKind(float_=_zero, complex_=c.imaginary_part)),
    _sized("popcnt", f.population_count),
    _sized("count-leading-zeros", f.leading_zeros),
    # Correctly rounded in every real type.
    _row("sqrt", _ByKind(float_=np.sqrt, complex_=z.sqrt)),
    _inexact("rsqrt", e.rsqrt, z.rsqrt),
    _inexact("cbrt", e.cbrt),
    _inexact("exponential", e.exp, z.exp),
    _inexact("exp2", e.exp2, z.exp2),
    _inexact("exponential-minus-one", e.expm1, z.expm1),
    _inexact("log", e.log, z.log),
    _inexact("log2", e.log2, z.log2),
    _inexact("log-plus-one", e.log1p, z.log1p),
    _inexact("logistic", e.logistic, z.logistic),
    _inexact("erf", e.erf),
    _inexact("sine", e.sin, z.sin),
    _inexact("cosine", e.cos, z.cos),
    _inexact("tan", e.tan, z.tan),
    _inexact("sinh", e.sinh, z.sinh),
    _inexact("cosh", e.cosh, z.cosh),
    _inexact("tanh", e.tanh, z.tanh),
    _inexact("asin", e.asin, z.asin),
    _inexact("acos", e.acos, z.acos),
    _inexact("asinh", e.asinh, z.asinh),
    _inexact("acosh", e.acosh, z.acosh),
    _inexact("atanh", e.atanh, z.atanh),
    # binary
    _number("add", np.add, pred=np.logical_or),
    _number("subtract", np.subtract),
    _number("multiply", np.multiply, pred=np.logical_and, complex_=z.multiplied),
    _sized("mulhi", f.multiply_high),
    _number("divide", np.divide, signed=f.divide_signed, unsigned=f.divide_unsigned, complex_=c.divide_complex),
    _number("remainder", np.fmod, signed=f.remainder_signed, unsigned=f.remainder_unsigned, complex_=None),
    _row(
        "power",
        _ByKind(signed=f.power_integer, unsigned=f.power_integer, float_=e.power, complex_=z.power, precise=True),
    ),
    _inexact("atan2", e.atan2, c.complex_arctan2),
    _number("maximum", np.maximum, pred=np.logical_or, float_=f.maximum, complex_=c.complex_maximum),
    _number("minimum", np.minimum, pred=np.logical_and, float_=f.minimum, complex_=c.complex_minimum),
    _bits("and", np.bitwise_and),
    _bits("or", np.bitwise_or),
    _bits("xor", np.bitwise_xor),
    _sized("shift-left", f.shift_left),
    _sized("shift-right-arithmetic", f.shift_right_arithmetic),
    _sized("shift-right-logical", f.shift_right_logical),
    _row("complex", _ByKind(float_=c.make_complex)),
    prepared_row("compare", _compare),
    # ternary
    _number("clamp", f.clamp, pred=f.clamp, complex_=None),
    prepared_row("select", _select),
)
