"""The arithmetic of kernel IR in numpy, by the names of the operations of arith, math, complex and llvm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from hlo_run.arrays import Array, NumpyType
from hlo_run.elementary import functions

Function: TypeAlias = "Callable[..., Any]"

DTYPES: dict[str, Any] = {
    "i1": np.bool_,
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "index": np.dtype("int64"),
    "!llvm.ptr": np.dtype("int64"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype("float16"),
    "f32": np.dtype("float32"),
    "f64": np.dtype("float64"),
    "complex<f32>": np.dtype("complex64"),
    "complex<f64>": np.dtype("complex128"),
}

_LOG10_E = 0.4342944819032518


class NotInterpreted(Exception):
    """The interpreter does not know an operation, a type or a form of them."""


class BadAccess(NotInterpreted):
    """The IR accesses memory that it does not have, or without alignment."""


def dtype_of(text: str) -> NumpyType:
    """Return the numpy type of a scalar type; raises NotInterpreted for others."""
    if text.startswith("!llvm.ptr"):
        text = "!llvm.ptr"
    if text not in DTYPES:
        raise NotInterpreted(f"type {text}")
    return np.dtype(DTYPES[text])


def unsigned(value: Array) -> Array:
    """Return the bits of an integer as an unsigned integer."""
    return value.astype(np.uint8) if value.dtype == np.bool_ else value.view(f"uint{value.dtype.itemsize * 8}")


def _on_unsigned(function: Function) -> Function:
    def run(left: Array, right: Array) -> Array:
        return np.asarray(function(unsigned(left), unsigned(right))).astype(unsigned(left).dtype).view(left.dtype)

    return run


def _quotient(left: Array, right: Array) -> Array:
    whole = np.floor_divide(left, right)
    return whole + ((whole < 0) & (whole * right != left)).astype(whole.dtype)


def _remainder(left: Array, right: Array) -> Array:
    return left - right * _quotient(left, right)


def _floor_quotient(left: Array, right: Array) -> Array:
    return np.floor_divide(left, right)


def _ceiling_quotient(left: Array, right: Array) -> Array:
    return -np.floor_divide(-left, right)


def _unsigned_ceiling(left: Array, right: Array) -> Array:
    whole = np.floor_divide(left, right)
    return whole + (whole * right != left).astype(whole.dtype)


def _shift(function: Function) -> Function:
    def run(left: Array, right: Array) -> Array:
        # A long shift is poison, which a select drops.
        return function(left, np.minimum(unsigned(right), left.dtype.itemsize * 8 - 1).astype(left.dtype))

    return run


def _wide(function: Function) -> Function:
    def run(*values: Array) -> Array:
        return np.asarray(function(*[value.astype(np.float64) for value in values])).astype(values[0].dtype)

    return run


def _round_away(value: Array) -> Array:
    whole = np.trunc(value)
    return np.where(np.abs(value - whole) >= 0.5, whole + np.copysign(1, value), whole)


def _atan(value: Array) -> Array:
    return functions.atan2(value, np.ones_like(value))


def _log10(value: Array) -> Array:
    return functions.log(value) * _LOG10_E


def _fused(one: Array, two: Array, three: Array) -> Array:
    return one * two + three


def _ones(value: Array) -> Array:
    return np.bitwise_count(unsigned(value)).astype(value.dtype)


def _leading_zeros(value: Array) -> Array:
    bits = value.dtype.itemsize * 8
    lengths = np.array([int(item).bit_length() for item in unsigned(value).reshape(-1)])
    return (bits - lengths).reshape(value.shape).astype(value.dtype)


def _larger(left: Array, right: Array) -> Array:
    return np.where(np.isnan(left) | np.isnan(right), left + right, np.maximum(left, right))


def _smaller(left: Array, right: Array) -> Array:
    return np.where(np.isnan(left) | np.isnan(right), left + right, np.minimum(left, right))


_SIGNED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_ORDERED = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal, 6: np.not_equal}


def compare_integers(predicate: int, left: Array, right: Array) -> Array:
    """Return icmp's and cmpi's result; predicates from 6 on are unsigned."""
    if predicate >= 6:
        return _SIGNED[predicate - 4](unsigned(left), unsigned(right))
    return _SIGNED[predicate](left, right)


def compare_floats(predicate: int, left: Array, right: Array) -> Array:
    """Return fcmp's and cmpf's result: predicates 1 to 6 are ordered, 8 to 13 unordered, 7 is ord and 14 uno."""
    unordered = np.isnan(left) | np.isnan(right)
    match predicate:
        case 0 | 15:
            return np.full(unordered.shape, predicate == 15)
        case 7 | 14:
            return ~unordered if predicate == 7 else unordered
        case _ if predicate < 7:
            return np.asarray(_ORDERED[predicate](left, right)) & ~unordered
        case _:
            return np.asarray(_ORDERED[predicate - 7](left, right)) | unordered


def to_integer(value: Array, dtype: NumpyType, *, signed: bool) -> Array:
    """Convert floats; out of range is poison, here 0."""
    bits = dtype.itemsize * 8
    wide = np.trunc(value.astype(np.float64))
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    fits = (wide >= low) & (wide < high)
    return np.where(fits, wide, 0).astype(dtype if signed else f"uint{bits}").view(dtype)


_BINARY: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "udiv": _on_unsigned(np.floor_divide),
    "urem": _on_unsigned(np.remainder),
    "sdiv": _quotient,
    "srem": _remainder,
    "floordivsi": _floor_quotient,
    "ceildivsi": _ceiling_quotient,
    "ceildivui": _on_unsigned(_unsigned_ceiling),
    "shl": _shift(np.left_shift),
    "ashr": _shift(np.right_shift),
    "lshr": _shift(_on_unsigned(np.right_shift)),
    "smax": np.maximum,
    "smin": np.minimum,
    "umax": _on_unsigned(np.maximum),
    "umin": _on_unsigned(np.minimum),
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
    "fdiv": np.divide,
    "frem": np.fmod,
    "maximum": _larger,
    "minimum": _smaller,
    "maxnum": np.fmax,
    "minnum": np.fmin,
    "pow": _wide(functions.power),
    "atan2": _wide(functions.atan2),
    "copysign": np.copysign,
}
_UNARY: dict[str, Function] = {
    "fneg": np.negative,
    "fabs": np.abs,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc_float": np.trunc,
    "rint": np.rint,
    "round": _wide(_round_away),
    "ctpop": _ones,
    "ctlz": _leading_zeros,
    **{
        name: _wide(function)
        for name, function in (
            *(("exp", functions.exp), ("exp2", functions.exp2), ("expm1", functions.expm1), ("erf", functions.erf)),
            *(("log", functions.log), ("log1p", functions.log1p), ("log2", functions.log2), ("log10", _log10)),
            *(("sqrt", np.sqrt), ("rsqrt", functions.rsqrt), ("cbrt", functions.cbrt)),
            *(("sin", functions.sin), ("cos", functions.cos), ("tan", functions.tan), ("sinh", functions.sinh)),
            *(("cosh", functions.cosh), ("tanh", functions.tanh), ("asin", functions.asin), ("acos", functions.acos)),
            *(("asinh", functions.asinh), ("acosh", functions.acosh), ("atan", _atan), ("atanh", functions.atanh)),
        )
    },
}
_TERNARY: dict[str, Function] = {"fma": _wide(_fused)}
# Names of operations -> names above.
_ALIASES = {
    **{f"arith.{a}": b for a, b in (("addi", "add"), ("subi", "sub"), ("muli", "mul"), ("andi", "and"), ("ori", "or"))},
    **{f"arith.{a}": b for a, b in (("xori", "xor"), ("divui", "udiv"), ("remui", "urem"), ("divsi", "sdiv"))},
    **{f"arith.{a}": b for a, b in (("remsi", "srem"), ("shli", "shl"), ("shrsi", "ashr"), ("shrui", "lshr"))},
    **{f"arith.{a}": b for a, b in (("maxsi", "smax"), ("minsi", "smin"), ("maxui", "umax"), ("minui", "umin"))},
    **{f"arith.{a}": b for a, b in (("addf", "fadd"), ("subf", "fsub"), ("mulf", "fmul"), ("divf", "fdiv"))},
    **{f"arith.{a}": b for a, b in (("remf", "frem"), ("maximumf", "maximum"), ("minimumf", "minimum"))},
    **{f"arith.{a}": b for a, b in (("maxnumf", "maxnum"), ("minnumf", "minnum"), ("negf", "fneg"))},
    **{f"arith.{name}": name for name in ("floordivsi", "ceildivsi", "ceildivui")},
    **{f"math.{a}": b for a, b in (("absf", "fabs"), ("absi", "abs"), ("powf", "pow"), ("roundeven", "rint"))},
    **{f"math.{a}": a for a in (*_BINARY, *_UNARY, *_TERNARY)},
    "math.trunc": "trunc_float",
    **{f"llvm.{a}": a for a in (*_BINARY, *_UNARY) if not a.startswith("trunc")},
    **{f"llvm.intr.{a}": a for a in (*_BINARY, *_UNARY, *_TERNARY)},
    "llvm.intr.trunc": "trunc_float",
    "llvm.intr.vector.fmax": "maxnum",
    "complex.add": "fadd",
    "complex.sub": "fsub",
    "complex.mul": "fmul",
    "complex.neg": "fneg",
    "complex.abs": "abs",
}
_DEVICE_ALIASES = {"fmax": "maxnum", "fmin": "minnum", "fmod": "frem", "trunc": "trunc_float", "abs": "fabs"}


def function_of(name: str) -> Function | None:
    """Return the numpy function of an operation, or None."""
    word = _ALIASES.get(name, "")
    return _BINARY.get(word) or _UNARY.get(word) or _TERNARY.get(word)


def device_function(name: str) -> Function | None:
    """Return the numpy function of a libdevice function `__nv_*`, or None."""
    word = name.removeprefix("__nv_").removeprefix("fast_")
    for each in (word, word.removesuffix("f")):
        each = _DEVICE_ALIASES.get(each, each)
        if found := _BINARY.get(each) or _UNARY.get(each):
            return found
    return _wide(_fused) if word.startswith("fma") else None
