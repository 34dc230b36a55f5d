"""LLVM IR text to PTX, and the reports of ptxas."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.codegen.llvm import ptxas
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas
from hlo_run.errors import DeviceError, InternalError
from hlo_run.target import preset

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")

SCALE = """
@tile = private addrspace(3) global [64 x float] undef
define ptx_kernel void @scale(ptr noalias align 16 dereferenceable(1024) %in, ptr noalias align 16 %out) #0 {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !0
  %s = getelementptr inbounds float, ptr addrspacecast (ptr addrspace(3) @tile to ptr), i32 %t
  %i = mul i32 %t, 4
  %p = getelementptr inbounds float, ptr %in, i32 %i
  %v = load <4 x float>, ptr %p, align 4, !invariant.load !1
  %x = extractelement <4 x float> %v, i32 0
  store float %x, ptr %s, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %y = load float, ptr %s, align 4
  %m = fmul float %y, %y
  %a = fadd float %m, %x
  %d = fdiv float %a, %y
  %w = insertelement <4 x float> %v, float %d, i32 1
  %q = getelementptr inbounds float, ptr %out, i32 %i
  store <4 x float> %w, ptr %q, align 4
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
attributes #0 = { "nvvm.reqntid"="64,1,1" }
!0 = !{i32 0, i32 64}
!1 = !{}
"""


def test_the_ptx_of_a_kernel() -> None:
    ptx = compile_llvm(SCALE, preset("h100")).ptx
    assert ".version 8.6\n.target sm_90\n" in ptx
    assert ".visible .entry scale(" in ptx
    assert ".reqntid 64, 1, 1" in ptx
    # LLVM derives one access of 16 bytes from the arguments' alignment and the index arithmetic; the IR claims 4 bytes.
    assert "ld.global.nc.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert "st.shared.b32" in ptx
    assert "bar.sync \t0;" in ptx
    # No contraction to fma, and XLA's division.
    assert "mul.rn.f32" in ptx
    assert "add.rn.f32" in ptx
    assert "div.full.f32" in ptx


def test_the_same_text_gives_the_same_ptx() -> None:
    first = compile_llvm(SCALE, preset("a100"))
    assert compile_llvm(SCALE, preset("a100")) == first
    assert "define ptx_kernel void @scale" in first.llvm_optimized


def test_without_optimisation_it_is_the_same_kernel() -> None:
    ptx = compile_llvm(SCALE, preset("h100"), optimization_level=0).ptx
    assert ".visible .entry scale(" in ptx
    assert len(ptx) > len(compile_llvm(SCALE, preset("h100")).ptx)


@needs_ptxas
@pytest.mark.parametrize("name", ["v100", "a100", "h100", "b200", "rtx6000pro"])
def test_it_assembles_for_every_card(name: str) -> None:
    target = preset(name)
    (report,) = assemble(compile_llvm(SCALE, target).ptx)
    assert report.kernel == "scale"
    assert report.sm_name == target.sm_name
    assert 0 < report.registers < 64
    assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)
    assert report.shared_bytes == 256
    assert "256 bytes shared" in str(report)
    assert 10 < report.sass_instructions < 200


@needs_ptxas
def test_ptxas_refuses_nonsense() -> None:
    ptx = compile_llvm(SCALE, preset("h100")).ptx.replace("mul.rn.f32", "mull.rn.f32")
    with pytest.raises(InternalError, match="rejects the PTX for sm_90") as caught:
        assemble(ptx)
    assert any("mull" in note for note in caught.value.notes)


@needs_ptxas
def test_a_module_without_kernels_has_no_reports() -> None:
    assert assemble(".version 8.6\n.target sm_90\n.address_size 64\n") == ()


def test_a_text_without_a_target() -> None:
    with pytest.raises((InternalError, DeviceError)):
        assemble("no ptx")


def _found_nowhere(*_: str) -> None:
    return None


def test_without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_in_toolkit", _found_nowhere)
    with pytest.raises(DeviceError, match="ptxas is not found"):
        assemble(".target sm_90")


@pytest.mark.parametrize("cubin", [b"", bytes(64), b"\x7fELF" + b"\xff" * 60], ids=["empty", "zeros", "cut"])
def test_a_result_that_is_no_cubin(cubin: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found(*_: object) -> Path:
        return tmp_path / "ptxas"

    def ran(*_: object) -> tuple[str, bytes]:
        return "", cubin

    monkeypatch.setattr(ptxas, "find_in_toolkit", found)
    monkeypatch.setattr(ptxas, "_run", ran)
    with pytest.raises(DeviceError, match=f"the {len(cubin)} bytes that it writes are not a cubin"):
        assemble(".version 8.6\n.target sm_90\n")


def test_functions_of_some_hundred_instructions_are_inlined_as_in_xla() -> None:
    steps = "\n".join(f"  %v{n} = call float @llvm.sqrt.f32(float %v{n - 1})" for n in range(1, 300))
    calls = "\n".join(f"  %c{n} = call float @root(float %c{n - 1})" for n in range(1, 3))
    ptx = compile_llvm(
        f"""define ptx_kernel void @k(ptr noalias align 16 %in) {{
  %c0 = load float, ptr %in, align 4
{calls}
  store float %c2, ptr %in, align 4
  ret void
}}
define internal float @root(float %v0) {{
{steps}
  ret float %v299
}}
declare float @llvm.sqrt.f32(float)
""",
        preset("h100"),
    ).ptx
    assert "call" not in ptx
    assert ptx.count("sqrt") == 2 * 299
