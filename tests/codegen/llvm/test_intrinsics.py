"""The guard against intrinsics that would end the process."""

from __future__ import annotations

import pytest

from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.intrinsics import check_intrinsics, is_accelerated
from hlo_run.errors import InternalError
from hlo_run.target import preset


@pytest.mark.parametrize(
    "call",
    [
        "call float @llvm.maximum.f32(float %a, float %b)",
        "call bfloat @llvm.fma.bf16(bfloat %a, bfloat %b, bfloat %c)",
        "call i8 @llvm.ctlz.i8(i8 %a, i1 false)",
        "tail call <2 x float> @llvm.fabs.v2f32(<2 x float> %a)",
        "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
        "call float @llvm.nvvm.shfl.sync.down.f32(i32 -1, float %a, i32 1, i32 31)",
        "call i32 @llvm.nvvm.read.ptx.sreg.ctaid.z(), !range !0",
        "call afn float @llvm.tanh.f32(float %a)",
        "call fast float @llvm.exp2.f32(float %a)",
        "call i16 @llvm.nvvm.ff.to.e4m3x2.rn(float %a, float %b)",
        "call float @__nv_expf(float %a)",
        "call void @llvm.trap()",
    ],
)
def test_allowed(call: str) -> None:
    check_intrinsics(f"  %r = {call}\n", 90)


@pytest.mark.parametrize(
    "call",
    [
        "call float @llvm.tanh.f32(float %a)",
        "call nnan float @llvm.exp2.f32(float %a)",
        "call double @llvm.exp.f64(double %a)",
        "call afn bfloat @llvm.log2.bf16(bfloat %a)",
        "call float @llvm.pow.f32(float %a, float %b)",
        "call bfloat @llvm.canonicalize.bf16(bfloat %a)",
        "call i32 @llvm.ctlz.i32.extra(i32 %a, i1 false)",
    ],
)
def test_refused(call: str) -> None:
    with pytest.raises(InternalError, match="cannot compile to PTX"):
        check_intrinsics(f"  %r = {call}\n", 90)


def test_a_card_may_be_too_old() -> None:
    call = "  %r = call i16 @llvm.nvvm.ff.to.e4m3x2.rn(float %a, float %b)\n"
    check_intrinsics(call, 89)
    with pytest.raises(InternalError, match="sm_80"):
        check_intrinsics(call, 80)


def test_only_the_accelerated_variant_of_a_card_may_have_it() -> None:
    call = "  %r = tail call i16 @llvm.nvvm.ff.to.e2m1x2.rn.satfinite(float %a, float %b)\n"
    check_intrinsics(call, 100)
    with pytest.raises(InternalError, match="sm_90"):
        check_intrinsics(call, 90)
    assert is_accelerated(call)
    assert not is_accelerated(call.replace("e2m1", "e4m3").replace(".satfinite", ""))
    assert not is_accelerated("declare i16 @llvm.nvvm.ff.to.e2m1x2.rn.satfinite(float, float)\n")


def test_compiling_asks_the_guard_first() -> None:
    text = """
declare float @llvm.sin.f32(float)
define float @f(float %a) {
  %r = call float @llvm.sin.f32(float %a)
  ret float %r
}
"""
    with pytest.raises(InternalError, match=r"llvm\.sin\.f32"):
        compile_llvm(text, preset("h100"))
