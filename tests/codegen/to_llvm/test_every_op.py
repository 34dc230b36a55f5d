"""Every op of arith and math, for every type it supports, becomes PTX that assembles for GPUs of every generation."""

from __future__ import annotations

import functools
import re

import pytest
from xdsl.context import Context

from hlo_run.codegen.kernel_passes.expand_float_ops import ExpandFloatOps
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.print import llvm_ir_text
from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas
from hlo_run.codegen.llvm.toolkit import LIBDEVICE, find_in_toolkit
from hlo_run.codegen.to_llvm.arith import ARITH
from hlo_run.codegen.to_llvm.lower_to_llvm_gpu import LowerToLlvmGpu
from hlo_run.codegen.to_llvm.math import MATH
from hlo_run.dialects.parse import parse_module
from hlo_run.target import preset

pytestmark = pytest.mark.skipif(find_in_toolkit(LIBDEVICE) is None, reason="no libdevice on this machine")

CARDS = ("v100", "a100", "h100", "b200", "rtx6000pro")
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
UNARY_MATH = (
    "absf acos acosh asin asinh atan atanh cbrt ceil cos cosh erf exp exp2 expm1 floor log log10 log1p log2 round "
    "roundeven rsqrt sin sinh sqrt tan tanh trunc"
).split()
FAST_MATH = "cos exp log log10 log2 sin tan".split()
BINARY_MATH = "atan2 copysign powf".split()
BINARY_FLOAT = "addf subf mulf divf remf maximumf minimumf maxnumf minnumf".split()
COMPARE_FLOAT = "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno".split()
BINARY_INTEGER = "addi subi muli divui divsi remui remsi andi ori xori shli shrui shrsi maxsi minsi maxui minui".split()
COMPARE_INTEGER = "eq ne slt sle sgt sge ult ule ugt uge".split()


def _float_ops(type_: str) -> list[tuple[str, str]]:
    """Return ops on %x, %y and %z of the float type, each with its result type."""
    ops = [(f"math.{name} %x : {type_}", type_) for name in UNARY_MATH]
    ops += [(f"math.{name} %x fastmath<afn> : {type_}", type_) for name in FAST_MATH]
    ops += [(f"math.{name} %x, %y : {type_}", type_) for name in BINARY_MATH]
    ops += [(f"arith.{name} %x, %y : {type_}", type_) for name in BINARY_FLOAT]
    ops += [(f"arith.cmpf {name}, %x, %y : {type_}", "i1") for name in COMPARE_FLOAT]
    ops += [(f"math.fma %x, %y, %z : {type_}", type_), (f"arith.negf %x : {type_}", type_)]
    ops += [(f"arith.select %c, %x, %y : {type_}", type_), (f"arith.bitcast %x : {type_} to i{BITS[type_]}", f"i{BITS[type_]}")]
    ops += [(f"arith.{name} %x : {type_} to {to}", to) for to in INTEGERS for name in ("fptosi", "fptoui")]
    ops += [(f"arith.extf %x : {type_} to {to}", to) for to in FLOATS if BITS[to] > BITS[type_]]
    ops += [(f"arith.truncf %x : {type_} to {to}", to) for to in FLOATS if BITS[to] < BITS[type_]]
    return ops


def _integer_ops(type_: str) -> list[tuple[str, str]]:
    ops = [(f"arith.{name} %x, %y : {type_}", type_) for name in BINARY_INTEGER]
    ops += [(f"arith.cmpi {name}, %x, %y : {type_}", "i1") for name in COMPARE_INTEGER]
    ops += [(f"math.{name} %x : {type_}", type_) for name in ("absi", "ctlz", "ctpop")]
    ops += [(f"arith.select %c, %x, %y : {type_}", type_)]
    ops += [(f"arith.{name} %x : {type_} to {to}", to) for to in FLOATS for name in ("sitofp", "uitofp")]
    ops += [
        (f"arith.{name} %x : {type_} to {to}", to) for to in INTEGERS if BITS[to] > BITS[type_] for name in ("extsi", "extui")
    ]
    ops += [(f"arith.trunci %x : {type_} to {to}", to) for to in INTEGERS if BITS[to] < BITS[type_]]
    ops += [(f"arith.{name} %x : {type_} to index", "index") for name in ("index_cast", "index_castui")]
    return ops


@functools.cache
def _llvm_ir(type_: str) -> str:
    """Return a kernel that stores the result of each op for its type, 8 bytes apart."""
    ops = _float_ops(type_) if type_ in FLOATS else _integer_ops(type_)
    lines = [f"%{name} = llvm.load %{name}p : !llvm.ptr -> {type_}" for name in "xyz"]
    lines += ["%b = llvm.load %xp : !llvm.ptr -> i8", "%c = arith.trunci %b : i8 to i1"]
    for number, (op, result) in enumerate(ops):
        lines.append(f"%v{number} = {op}")
        stored = f"%v{number}"
        if result in ("i1", "index"):
            widen = "extui" if result == "i1" else "index_cast"
            lines.append(f"%w{number} = arith.{widen} %v{number} : {result} to i32")
            stored, result = f"%w{number}", "i32"
        lines.append(f"%p{number} = llvm.getelementptr inbounds %out[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        lines.append(f"llvm.store {stored}, %p{number} : {result}, !llvm.ptr")
    body = "\n".join(lines)
    arguments = "%xp: !llvm.ptr, %yp: !llvm.ptr, %zp: !llvm.ptr, %out: !llvm.ptr {llvm.noalias}"
    module = parse_module(f"func.func @k({arguments}) attributes {{xla.entry}} {{\n{body}\nreturn\n}}")
    for row in (ExpandFloatOps(), LowerToLlvmGpu()):
        row.apply(Context(), module)
        module.verify()
    return llvm_ir_text(module, "k", (1, 1, 1), (1, 1, 1))


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("type_", [*FLOATS, *INTEGERS])
def test_every_op_becomes_ptx_that_assembles(type_: str, card: str) -> None:
    target = preset(card)
    ptx = compile_llvm(_llvm_ir(type_), target).ptx
    assert f".target {target.sm_name}\n" in ptx
    assert ".extern" not in ptx, "all of libdevice that is called is linked"
    if find_ptxas() is not None:
        (report,) = assemble(ptx)
        assert report.sm_name == target.sm_name


def test_no_op_is_forgotten() -> None:
    """The kernels above have each op with a lowering; ops that only move constants and types are tested as text."""
    tried = {re.split(r"[ ,]", op)[0] for type_ in FLOATS for op, _ in _float_ops(type_)}
    tried |= {op.split()[0] for type_ in INTEGERS for op, _ in _integer_ops(type_)}
    assert {op.name for op in (*ARITH, *MATH)} - tried == {"arith.constant"}


@pytest.mark.parametrize(("card", "instruction"), [("v100", "setp.nan.f32"), ("a100", "max.NaN.f32"), ("h100", "max.NaN.f32")])
def test_maximum_keeps_nan(card: str, instruction: str) -> None:
    assert instruction in compile_llvm(_llvm_ir("f32"), preset(card)).ptx


def test_f32_division_is_that_of_xla() -> None:
    assert "div.full.f32" in compile_llvm(_llvm_ir("f32"), preset("h100")).ptx


def test_multiply_and_add_do_not_become_fma() -> None:
    text = """
func.func @k(%p: !llvm.ptr) attributes {xla.entry} {
  %x = llvm.load %p : !llvm.ptr -> f32
  %y = arith.mulf %x, %x : f32
  %z = arith.addf %y, %x : f32
  llvm.store %z, %p : f32, !llvm.ptr
  return
}
"""
    module = parse_module(text)
    LowerToLlvmGpu().apply(Context(), module)
    ptx = compile_llvm(llvm_ir_text(module, "k", (1, 1, 1), (1, 1, 1)), preset("h100")).ptx
    assert "mul.rn.f32" in ptx
    assert "add.rn.f32" in ptx
    assert "fma" not in ptx
