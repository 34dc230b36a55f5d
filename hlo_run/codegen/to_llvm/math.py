"""Lowers the math dialect to LLVM: calls of libdevice, or intrinsics if it has no function or an instruction is as good."""

from __future__ import annotations

from typing import Any

from xdsl.dialects import math
from xdsl.dialects.builtin import BoolAttr, f64
from xdsl.ir import Operation, SSAValue

from hlo_run.codegen.to_llvm.arith import NO_FAST_MATH, call_libdevice, plain
from hlo_run.codegen.to_llvm.builder import Builder, Handler
from hlo_run.dialects import llvm_extra


def _libdevice(name: str) -> Handler:
    def lower(builder: Builder, op: Any) -> None:
        result: SSAValue = op.results[0]
        builder.values[result] = call_libdevice(builder, name, builder.operands(op), result.type)

    return lower


def _libdevice_or_fast(name: str) -> Handler:
    """Return the lowering to libdevice, with the fast approximate f32 function if the op has the flag `afn`."""

    def lower(builder: Builder, op: Any) -> None:
        result: SSAValue = op.results[0]
        flags = op.properties.get("fastmath")
        fast = flags is not None and result.type != f64 and any(flag.value == "afn" for flag in flags.data)
        builder.values[result] = call_libdevice(builder, name, builder.operands(op), result.type, fast=fast)

    return lower


_FALSE = BoolAttr.from_bool(False)

MATH: dict[type[Operation], Handler] = {
    math.AbsFOp: _libdevice("fabs"),
    math.AcosOp: _libdevice("acos"),
    math.AcoshOp: _libdevice("acosh"),
    math.AsinOp: _libdevice("asin"),
    math.AsinhOp: _libdevice("asinh"),
    math.AtanOp: _libdevice("atan"),
    math.Atan2Op: _libdevice("atan2"),
    math.AtanhOp: _libdevice("atanh"),
    math.CbrtOp: _libdevice("cbrt"),
    math.CeilOp: _libdevice("ceil"),
    math.CopySignOp: _libdevice("copysign"),
    math.CosOp: _libdevice_or_fast("cos"),
    math.CoshOp: _libdevice("cosh"),
    math.ErfOp: _libdevice("erf"),
    math.ExpOp: _libdevice_or_fast("exp"),
    math.Exp2Op: _libdevice("exp2"),
    math.ExpM1Op: _libdevice("expm1"),
    math.FloorOp: _libdevice("floor"),
    math.FmaOp: _libdevice("fma"),
    math.LogOp: _libdevice_or_fast("log"),
    math.Log10Op: _libdevice_or_fast("log10"),
    math.Log1pOp: _libdevice("log1p"),
    math.Log2Op: _libdevice_or_fast("log2"),
    math.PowFOp: _libdevice_or_fast("pow"),
    math.RoundOp: _libdevice("round"),
    math.RoundEvenOp: _libdevice("rint"),
    math.RsqrtOp: _libdevice("rsqrt"),
    math.SinOp: _libdevice_or_fast("sin"),
    math.SinhOp: _libdevice("sinh"),
    math.SqrtOp: _libdevice("sqrt"),
    math.TanOp: _libdevice_or_fast("tan"),
    math.TanhOp: _libdevice("tanh"),
    math.TruncOp: plain(llvm_extra.TruncOp, {"fastmathFlags": NO_FAST_MATH}),
    math.AbsIOp: plain(llvm_extra.AbsOp, {"is_int_min_poison": _FALSE}),
    math.CountLeadingZerosOp: plain(llvm_extra.CountLeadingZerosOp, {"is_zero_poison": _FALSE}),
    math.CtPopOp: plain(llvm_extra.CtPopOp),
}
