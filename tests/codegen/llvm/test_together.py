"""Kernels that LLVM compiles together: each gets the PTX that it gets alone."""

from __future__ import annotations

import pytest

from hlo_run import parse
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.together import compile_together, join_kernels
from hlo_run.errors import HloRunError, InternalError
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import kernels
from hlo_run.pipeline.compile import plan_module
from hlo_run.pipeline.kernels import compile_kernel, compile_kernels
from hlo_run.runtime.kernel_requests import KernelRequest
from hlo_run.target import DEFAULT_TARGET, preset

TARGET = preset(DEFAULT_TARGET)
# Branches, whose labels LLVM numbers by function; ids with metadata; shared memory and libdevice, which are left out.
MODULE = """HloModule m
ENTRY e {
  x = f32[300,70] parameter(0)
  y = f32[900] parameter(1)
  i = s32[] parameter(2)
  d = f32[7] dynamic-slice(y, i), dynamic_slice_sizes={7}
  q = f32[7] divide(d, d)
  g = f32[300,70] multiply(x, x)
  t = f32[70,300] transpose(x), dimensions={1,0}
  u = f32[600] slice(y), slice={[100:700]}
  v = f32[300] slice(y), slice={[600:900]}
  c = f32[1500] concatenate(y, u), dimensions={0}
  b = f32[900] concatenate(v, u), dimensions={0}
  s = f32[900] sine(y)
  ROOT r = tuple(q, g, t, c, b, s)
}"""
ALONE = """; ModuleID = 'NAME'
source_filename = "NAME"
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"


define ptx_kernel void @NAME(ptr %0) #0 {
  %2 = load float, ptr %0
  %3 = fadd float %2, 1.0
  store float %3, ptr %0
  ret void
}

attributes #0 = { "nvvm.reqntid"="1,1,1" }
"""


@pytest.fixture(scope="module")
def planned() -> tuple[PassContext, list[KernelRequest]]:
    ctx = PassContext(TARGET, Options(compile_processes=1), assembles=False)
    return ctx, plan_module(ctx, parse(MODULE)).requests


def test_kernels_get_the_ptx_that_they_get_alone(planned: tuple[PassContext, list[KernelRequest]]) -> None:
    ctx, requests = planned
    counted: list[None] = []
    together = compile_kernels(ctx, requests, lambda: counted.append(None))
    assert together == [compile_kernel(ctx, request) for request in requests]
    assert len(counted) == len(requests)
    assert sum("$L__BB0_" in kernel.ptx for kernel in together) > 2


def test_what_needs_more_than_its_kernel_is_left_out(
    planned: tuple[PassContext, list[KernelRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, requests = planned
    joined: list[int] = []
    compile_joined = kernels.compile_together

    def counting(*arguments: object) -> dict[int, str]:
        made = compile_joined(*arguments)  # type: ignore[arg-type]
        joined.extend(made)
        return made

    monkeypatch.setattr(kernels, "compile_together", counting)
    compile_kernels(ctx, requests, lambda: None)
    names = [request.kernel for request in requests]
    left_out = {names[number] for number in range(len(names)) if number not in joined}
    assert {name.split("_")[1] for name in left_out} == {"transpose", "sine"}, left_out


def test_texts_that_can_be_joined() -> None:
    one, two = ALONE.replace("NAME", "one"), ALONE.replace("NAME", "two")
    assert join_kernels([one]) is None
    assert join_kernels([one, one]) is None
    assert join_kernels([one, two.replace("define", "@g = global i32 0\n\ndefine")]) is None
    assert join_kernels([one, two.replace("ret void", 'call void asm sideeffect "ret;", ""()\n  ret void')]) is None
    joined = join_kernels([one, "", two])
    assert joined is not None
    assert joined.numbers == {"one": 0, "two": 2}
    ptx = compile_together(joined, TARGET)
    assert ptx == {0: compile_llvm(one, TARGET).ptx, 2: compile_llvm(two, TARGET).ptx}


def test_an_error_is_that_of_its_kernel(
    planned: tuple[PassContext, list[KernelRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, requests = planned
    texts = iter([ALONE.replace("NAME", "one"), ALONE.replace("NAME", "two").replace("fadd float", "fadd i32")])

    def lowered(*arguments: object) -> str:
        del arguments
        return next(texts)

    monkeypatch.setattr(kernels, "_lowered", lowered)
    with pytest.raises(InternalError, match="LLVM cannot parse the IR") as raised:
        compile_kernels(ctx, requests[:2], lambda: None)
    error = raised.value
    assert isinstance(error, HloRunError)
    assert error.where == requests[1].fusion.where
