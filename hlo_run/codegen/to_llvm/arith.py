"""Lowers the arith dialect to the LLVM dialect."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from xdsl.dialects import arith, llvm
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    VectorType,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from hlo_run.codegen.to_llvm.builder import NO_PROPERTIES, Builder, Handler
from hlo_run.dialects import llvm_extra
from hlo_run.dialects.arith_extra import IndexCastUIOp, RemFOp
from hlo_run.dialects.types import is_vector
from hlo_run.errors import InternalError, Unsupported

NO_FAST_MATH = llvm.FastMathAttr("none")
_OVERFLOW_BIT = {"nsw": 1, "nuw": 2}


@lru_cache(maxsize=64)
def fast_math(flags: arith.FastMathFlagsAttr | None) -> llvm.FastMathAttr:
    """Return the LLVM dialect's attribute for arith's fast-math flags."""
    return NO_FAST_MATH if flags is None else llvm.FastMathAttr(flags.data)


@lru_cache(maxsize=64)
def _overflow(flags: arith.IntegerOverflowAttr | None) -> IntegerAttr[IntegerType]:
    return IntegerAttr(0 if flags is None else sum(_OVERFLOW_BIT[flag.value] for flag in flags.data), i32)


def plain(kind: type[Operation], properties: Mapping[str, Attribute] = NO_PROPERTIES) -> Handler:
    """Return the lowering to one LLVM op with the same operands and results, with fixed properties and no flags."""

    def lower(builder: Builder, op: Any) -> None:
        result: SSAValue = op.results[0]
        builder.values[result] = builder.add(kind, builder.operands(op), builder.convert(result.type), properties)

    return lower


def _with_fast_math(kind: type[Operation]) -> Handler:
    def lower(builder: Builder, op: Any) -> None:
        result: SSAValue = op.results[0]
        properties = {"fastmathFlags": fast_math(op.properties.get("fastmath"))}
        builder.values[result] = builder.add(kind, builder.operands(op), builder.convert(result.type), properties)

    return lower


def _with_overflow(kind: type[Operation]) -> Handler:
    def lower(builder: Builder, op: Any) -> None:
        result: SSAValue = op.results[0]
        properties = {"overflowFlags": _overflow(op.properties.get("overflowFlags"))}
        builder.values[result] = builder.add(kind, builder.operands(op), builder.convert(result.type), properties)

    return lower


def _shift(kind: type[Operation]) -> Handler:
    """Lower a shift; a 64-bit amount that is not constant is masked to its 6 bits.

    LLVM 22 folds a shift and the choice of 0 for amounts of 64 or more into PTX's `shl.b64` or `shr.u64`, which saturates,
    but takes 32 bits of the amount: 2^32 + 1 then shifts by 1. Amounts of 64 or more are undefined in LLVM, so that the mask
    changes nothing else, and without equal amounts LLVM does not fold.
    """

    def lower(builder: Builder, op: Any) -> None:
        value, amount = builder.operands(op)
        type_ = builder.convert(op.results[0].type)
        if type_ == i64 and not isinstance(op.operands[1].owner, arith.ConstantOp):
            mask = builder.constant(IntegerAttr(63, i64), type_)
            amount = builder.add(llvm.AndOp, (amount, mask), type_)
        properties = {"overflowFlags": _overflow(op.properties.get("overflowFlags"))} if kind is llvm.ShlOp else {}
        builder.values[op.results[0]] = builder.add(kind, (value, amount), type_, properties)

    return lower


def _constant(builder: Builder, op: arith.ConstantOp) -> None:
    type_ = builder.convert(op.result.type)
    builder.values[op.result] = builder.constant(_constant_value(op.value, type_), type_)


def _constant_value(value: Attribute, type_: Attribute) -> Attribute:
    """Return the constant with its type converted: index to an integer, 8-bit floats to their bits."""
    if _is_integer(value) and isa(type_, IntegerType):
        return IntegerAttr(value.value.data, type_)
    if _is_float(value):
        return IntegerAttr(value.type.pack((value.value.data,))[0], type_) if isa(type_, IntegerType) else value
    if _is_dense(value) and is_vector(type_):
        if value.type == type_:
            return value
        element = type_.get_element_type()
        if isa(element, IntegerType):
            numbers = [number for number in value.get_values() if isinstance(number, int)]
            return DenseIntOrFPElementsAttr.from_list(VectorType(element, type_.get_shape()), numbers)
    raise InternalError(f"a constant {value} of type {type_} has no lowering to LLVM")


def _is_integer(value: Attribute) -> TypeGuard[IntegerAttr]:
    return isinstance(value, IntegerAttr)


def _is_float(value: Attribute) -> TypeGuard[FloatAttr[AnyFloat]]:
    return isinstance(value, FloatAttr)


def _is_dense(value: Attribute) -> TypeGuard[DenseIntOrFPElementsAttr]:
    return isinstance(value, DenseIntOrFPElementsAttr)


def _compare_integers(builder: Builder, op: arith.CmpiOp) -> None:
    # Both dialects have the same predicate numbers.
    builder.values[op.result] = builder.add(
        llvm.ICmpOp, builder.operands(op), op.result.type, {"predicate": IntegerAttr(op.predicate.value.data, i64)}
    )


def _compare_floats(builder: Builder, op: arith.CmpfOp) -> None:
    builder.values[op.result] = builder.add(
        llvm.FCmpOp,
        builder.operands(op),
        op.result.type,
        {"predicate": IntegerAttr(op.predicate.value.data, i64), "fastmathFlags": fast_math(op.fastmath)},
    )


def _index_cast(builder: Builder, op: arith.IndexCastOp | IndexCastUIOp) -> None:
    value, type_ = builder.value(op.input), builder.convert(op.result.type)
    assert isa(value.type, IntegerType), "index casts are between integers"
    assert isa(type_, IntegerType), "index casts are between integers"
    width, wanted = value.type.width.data, type_.width.data
    if width < wanted:
        widen = llvm.SExtOp if isinstance(op, arith.IndexCastOp) else llvm.ZExtOp
        value = builder.add(widen, [value], type_)
    elif width > wanted:
        value = builder.add(llvm.TruncOp, [value], type_, _NO_OVERFLOW_FLAGS)
    builder.values[op.result] = value


def _bitcast(builder: Builder, op: arith.BitcastOp) -> None:
    value, type_ = builder.value(op.input), builder.convert(op.result.type)
    builder.values[op.result] = value if value.type == type_ else builder.add(llvm.BitcastOp, [value], type_)


def _remainder(builder: Builder, op: RemFOp) -> None:
    builder.values[op.result] = call_libdevice(builder, "fmod", builder.operands(op), op.result.type)


def _extend_float(builder: Builder, op: arith.ExtFOp) -> None:
    _no_small_float(op.input.type)
    builder.values[op.result] = builder.add(llvm.FPExtOp, builder.operands(op), op.result.type)


def _truncate_float(builder: Builder, op: arith.TruncFOp) -> None:
    _no_small_float(op.result.type)
    builder.values[op.result] = builder.add(llvm.FPTruncOp, builder.operands(op), op.result.type)


def _no_small_float(type_: Attribute) -> None:
    if isa(type_, AnyFloat) and type_.bitwidth <= 8:
        raise Unsupported(f"conversions of {type_} in a kernel")


def call_libdevice(builder: Builder, name: str, arguments: list[SSAValue], type_: Attribute, *, fast: bool = False) -> SSAValue:
    """Call a function of libdevice: f64 by its plain name, f32 with suffix `f`, f16 and bf16 by way of f32.

    `fast` selects the approximate f32 function. Raises InternalError for other types.
    """
    if type_ == f64:
        return builder.call(f"__nv_{name}", arguments, f64)
    if not isa(type_, AnyFloat) or type_.bitwidth not in (16, 32):
        raise InternalError(f"{name} of {type_} has no lowering to LLVM")
    wide = arguments if type_ == f32 else [builder.add(llvm.FPExtOp, [argument], f32) for argument in arguments]
    result = builder.call(f"__nv_{'fast_' if fast else ''}{name}f", wide, f32)
    return result if type_ == f32 else builder.add(llvm.FPTruncOp, [result], type_)


_NO_OVERFLOW_FLAGS = {"overflowFlags": llvm.OverflowAttr("none")}

ARITH: dict[type[Operation], Handler] = {
    arith.ConstantOp: _constant,
    arith.AddiOp: _with_overflow(llvm.AddOp),
    arith.SubiOp: _with_overflow(llvm.SubOp),
    arith.MuliOp: _with_overflow(llvm.MulOp),
    arith.ShLIOp: _shift(llvm.ShlOp),
    arith.DivUIOp: plain(llvm.UDivOp),
    arith.DivSIOp: plain(llvm.SDivOp),
    arith.RemUIOp: plain(llvm.URemOp),
    arith.RemSIOp: plain(llvm.SRemOp),
    arith.AndIOp: plain(llvm.AndOp),
    arith.OrIOp: plain(llvm.OrOp),
    arith.XOrIOp: plain(llvm.XOrOp),
    arith.ShRUIOp: _shift(llvm.LShrOp),
    arith.ShRSIOp: plain(llvm.AShrOp),
    arith.MaxSIOp: plain(llvm_extra.SMaxOp),
    arith.MinSIOp: plain(llvm_extra.SMinOp),
    arith.MaxUIOp: plain(llvm_extra.UMaxOp),
    arith.MinUIOp: plain(llvm_extra.UMinOp),
    arith.ExtSIOp: plain(llvm.SExtOp),
    arith.ExtUIOp: plain(llvm.ZExtOp),
    arith.TruncIOp: plain(llvm.TruncOp, _NO_OVERFLOW_FLAGS),
    arith.CmpiOp: _compare_integers,
    arith.IndexCastOp: _index_cast,
    IndexCastUIOp: _index_cast,
    arith.AddfOp: _with_fast_math(llvm.FAddOp),
    arith.SubfOp: _with_fast_math(llvm.FSubOp),
    arith.MulfOp: _with_fast_math(llvm.FMulOp),
    arith.DivfOp: _with_fast_math(llvm.FDivOp),
    arith.NegfOp: _with_fast_math(llvm.FNegOp),
    arith.MaximumfOp: _with_fast_math(llvm_extra.MaximumOp),
    arith.MinimumfOp: _with_fast_math(llvm_extra.MinimumOp),
    arith.MaxnumfOp: _with_fast_math(llvm.VectorFMaxOp),
    arith.MinnumfOp: _with_fast_math(llvm.VectorFMinOp),
    RemFOp: _remainder,
    arith.CmpfOp: _compare_floats,
    arith.ExtFOp: _extend_float,
    arith.TruncFOp: _truncate_float,
    arith.SIToFPOp: plain(llvm.SIToFPOp),
    arith.UIToFPOp: plain(llvm_extra.UIToFPOp),
    arith.FPToSIOp: plain(llvm_extra.FPToSIOp),
    arith.FPToUIOp: plain(llvm_extra.FPToUIOp),
    arith.BitcastOp: _bitcast,
    arith.SelectOp: plain(llvm.SelectOp, {"fastmathFlags": NO_FAST_MATH}),
}
