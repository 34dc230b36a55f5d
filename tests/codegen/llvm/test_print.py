"""LLVM IR text: the exact text of a module, and constants without loss."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from xdsl.dialects.builtin import AnyFloat, ModuleOp, bf16, f16, f32, f64

from hlo_run.codegen.llvm.nvptx import Module
from hlo_run.codegen.llvm.print import llvm_ir_text
from hlo_run.codegen.llvm.print_values import float_text, type_text
from hlo_run.dialects.parse import parse_module
from hlo_run.errors import InternalError

KERNEL = """
llvm.mlir.global private @shared_0() {addr_space = 3 : i32} : !llvm.array<8 x f32>
llvm.mlir.global private constant @cst(dense<[1.0, 2.5, 0.1]> : tensor<3xf32>) {addr_space = 0 : i32} : !llvm.array<3 x f32>
llvm.func @__nv_expf(f32) -> f32
llvm.func @kernel(%in: !llvm.ptr {llvm.align = 16 : index, llvm.dereferenceable = 64 : index, llvm.noalias, xla.invariant},
                  %n: i32) attributes {xla.entry} {
  %c0 = llvm.mlir.constant(0 : i32) : i32
  %c1 = llvm.mlir.constant(1 : i32) : i32
  %true = llvm.mlir.constant(true) : i1
  %half = llvm.mlir.constant(4.467770e-02 : bf16) : bf16
  %zeros = llvm.mlir.constant(dense<0.0> : vector<2xbf16>) : vector<2xbf16>
  %tid = nvvm.read.ptx.sreg.tid.x : i32
  %cta = nvvm.read.ptx.sreg.ctaid.y : i32
  %again = nvvm.read.ptx.sreg.tid.x : i32
  %s = llvm.mlir.addressof @shared_0 : !llvm.ptr<3>
  %g = llvm.addrspacecast %s : !llvm.ptr<3> to !llvm.ptr
  %p = llvm.getelementptr inbounds %in[%tid] : (!llvm.ptr, i32) -> !llvm.ptr, bf16
  %v = llvm.load %p invariant {alignment = 2 : i64} : !llvm.ptr -> vector<2xbf16>
  %x = llvm.extractelement %v[%c1 : i32] : vector<2xbf16>
  %y = llvm.fmul %x, %half {fastmathFlags = #llvm.fastmath<nsz>} : bf16
  %w = llvm.insertelement %y, %zeros[%c0 : i32] : vector<2xbf16>
  llvm.store %w, %g {alignment = 4 : i64} : vector<2xbf16>, !llvm.ptr
  nvvm.barrier
  llvm.br ^head(%c0, %again : i32, i32)
^head(%i: i32, %acc: i32):
  %go = llvm.icmp "slt" %i, %n : i32
  llvm.cond_br %go, ^body, ^exit
^body:
  %q = llvm.add %i, %c1 overflow<nsw> : i32
  %r = llvm.call @pair(%acc, %true) : (i32, i1) -> !llvm.struct<(i32, i1)>
  %r0 = llvm.extractvalue %r[0] : !llvm.struct<(i32, i1)>
  %m = llvm.intr.smax(%r0, %cta) : (i32, i32) -> i32
  %z = "llvm.intr.ctlz"(%m) <{is_zero_poison = false}> : (i32) -> i32
  llvm.br ^head(%q, %z : i32, i32)
^exit:
  llvm.switch %acc : i32, ^end [ 1: ^one ]
^one:
  llvm.br ^end
^end:
  llvm.return
}
llvm.func internal @pair(%a: i32, %b: i1) -> !llvm.struct<(i32, i1)> {
  %u = llvm.mlir.poison : !llvm.struct<(i32, i1)>
  %v = llvm.insertvalue %a, %u[0] : !llvm.struct<(i32, i1)>
  %w = llvm.insertvalue %b, %v[1] : !llvm.struct<(i32, i1)>
  llvm.return %w : !llvm.struct<(i32, i1)>
}
"""

GOLDEN = """\
@shared_0 = private addrspace(3) global [8 x float] undef
@cst = private constant [3 x float] [float 1.000000e+00, float 2.500000e+00, float 0x3FB99999A0000000]
declare float @__nv_expf(float)

define ptx_kernel void @kernel(ptr noalias align 16 dereferenceable(64) %0, i32 %1) #0 {
  %3 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !0
  %4 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y(), !range !1
  %5 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !0
  %6 = addrspacecast ptr addrspace(3) @shared_0 to ptr
  %7 = getelementptr inbounds bfloat, ptr %0, i32 %3
  %8 = load <2 x bfloat>, ptr %7, align 2, !invariant.load !2
  %9 = extractelement <2 x bfloat> %8, i32 1
  %10 = fmul nsz bfloat %9, 0xR3D37
  %11 = insertelement <2 x bfloat> zeroinitializer, bfloat %10, i32 0
  store <2 x bfloat> %11, ptr %6, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %12

12:
  %13 = phi i32 [ 0, %2 ], [ %17, %16 ]
  %14 = phi i32 [ %5, %2 ], [ %21, %16 ]
  %15 = icmp slt i32 %13, %1
  br i1 %15, label %16, label %22

16:
  %17 = add nsw i32 %13, 1
  %18 = call { i32, i1 } @pair(i32 %14, i1 true)
  %19 = extractvalue { i32, i1 } %18, 0
  %20 = call i32 @llvm.smax.i32(i32 %19, i32 %4)
  %21 = call i32 @llvm.ctlz.i32(i32 %20, i1 false)
  br label %12

22:
  switch i32 %14, label %24 [ i32 1, label %23 ]

23:
  br label %24

24:
  ret void
}

define internal { i32, i1 } @pair(i32 %0, i1 %1) {
  %3 = insertvalue { i32, i1 } poison, i32 %0, 0
  %4 = insertvalue { i32, i1 } %3, i1 %1, 1
  ret { i32, i1 } %4
}

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.ctlz.i32(i32, i1)

attributes #0 = { "nvvm.reqntid"="128,1,1" }

!0 = !{i32 0, i32 128}
!1 = !{i32 0, i32 40}
!2 = !{}
"""


def _text(module: ModuleOp) -> str:
    return llvm_ir_text(module, "kernel", (30, 40, 1), (128, 1, 1))


def test_the_whole_text() -> None:
    text = _text(parse_module(KERNEL))
    header, _, rest = text.partition("\n\n")
    assert header.splitlines()[1] == 'source_filename = "kernel"'
    assert 'target triple = "nvptx64-nvidia-cuda"' in header
    assert rest == GOLDEN


def test_llvm_accepts_it() -> None:
    module = Module.from_text(_text(parse_module(KERNEL)))
    module.verify()
    assert module.defined_functions() == ["kernel", "pair"]


@pytest.mark.parametrize("type_", [f16, bf16, f32, f64])
def test_no_constant_loses_a_bit(type_: AnyFloat) -> None:
    """Print a number, parse and print it with LLVM: both texts have the same bits."""
    rng = np.random.default_rng(11)
    numbers = [float(x) for x in rng.standard_normal(20) * 10.0 ** rng.uniform(-4, 4, 20)]
    numbers += [0.0, -0.0, 1.0, 65504.0, 2.0**-24, float("inf"), float("-inf"), float("nan")]
    rounded = [float(next(iter(type_.iter_unpack(type_.pack((number,)))))) for number in numbers]
    lines = [f"@g{i} = constant {type_text(type_)} {float_text(number, type_)}" for i, number in enumerate(rounded)]
    read = str(Module.from_text("\n".join(lines)))
    for i, number in enumerate(rounded):
        (line,) = (line for line in read.splitlines() if line.startswith(f"@g{i} ="))
        assert _bits(line.split()[-1]) == struct.pack("<d", number).hex() or number != number


def _bits(text: str) -> str:
    """Return the bits of the double in LLVM's text of a constant."""
    if text.startswith("0xH"):
        return struct.pack("<d", float(np.uint16(int(text[3:], 16)).view(np.float16))).hex()
    if text.startswith("0xR"):
        return struct.pack("<d", struct.unpack(">f", bytes.fromhex(text[3:] + "0000"))[0]).hex()
    if text.startswith("0x"):
        return int(text, 16).to_bytes(8, "little").hex()
    return struct.pack("<d", float(text)).hex()


def test_dense_constants_of_any_type() -> None:
    module = parse_module(
        """
llvm.mlir.global private constant @a(dense<[1, -2]> : tensor<2xi8>) {addr_space = 0 : i32} : !llvm.array<2 x i8>
llvm.mlir.global private constant @b(dense<[1.0, -0.1]> : tensor<2xbf16>) {addr_space = 0 : i32} : !llvm.array<2 x bf16>
llvm.mlir.global private constant @c(dense<3.0> : tensor<3xf16>) {addr_space = 0 : i32} : !llvm.array<3 x f16>
llvm.mlir.global private constant @d(dense<[-0.0, 1.0]> : tensor<2xf64>) {addr_space = 0 : i32} : !llvm.array<2 x f64>
llvm.mlir.global private constant @e(dense<0> : tensor<4xi64>) {addr_space = 0 : i32} : !llvm.array<4 x i64>
"""
    )
    text = _text(module)
    assert "@a = private constant [2 x i8] [i8 1, i8 254]" in text
    assert "@b = private constant [2 x bfloat] [bfloat 0xR3F80, bfloat 0xRBDCD]" in text
    assert "@c = private constant [3 x half] [half 0xH4200, half 0xH4200, half 0xH4200]" in text
    assert "@d = private constant [2 x double] [double 0x8000000000000000, double 0x3FF0000000000000]" in text
    assert "@e = private constant [4 x i64] zeroinitializer" in text
    Module.from_text(text).verify()


def test_an_op_without_text() -> None:
    module = parse_module(
        "llvm.func @kernel(%p: !llvm.ptr) {\n  %x = llvm.load %p : !llvm.ptr -> f32\n  %y = math.exp %x : f32\n  llvm.return\n}"
    )
    with pytest.raises(InternalError, match=r"'math\.exp' has no LLVM IR text"):
        _text(module)
