"""The check of many kernels by ptxas: one of those that are equal but for names and floats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hlo_run import parse
from hlo_run.artifact import Kernel
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import ptxas_check
from hlo_run.pipeline.compile import plan_module
from hlo_run.runtime.kernel_requests import KernelRequest
from hlo_run.target import DEFAULT_TARGET, preset

PTX = """.version 8.6
.target sm_90
	// .globl	NAME
.visible .entry NAME(
	.param .u64 .ptr NAME_param_0
)
	ld.param.b64 	%rd1, [NAME_param_0];
	add.rn.f32 	%f2, %f1, FLOAT;
	shl.b32 	%r2, %r1, BITS;
"""


def _kernel(name: str, number: str, bits: int) -> Kernel:
    text = PTX.replace("NAME", name).replace("FLOAT", number).replace("BITS", str(bits))
    return Kernel(name, text, (1, 1, 1), (1, 1, 1), 0)


def test_kernels_that_differ_in_floats_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = PassContext(preset(DEFAULT_TARGET), Options(compile_processes=1))
    module = parse("HloModule m\nENTRY e { x = f32[8] parameter(0) ROOT r = f32[8] add(x, x) }")
    (request,) = plan_module(ctx, module).requests
    checked: list[str] = []

    def check(_: PassContext, pairs: Sequence[tuple[KernelRequest, Kernel]]) -> None:
        checked.extend(kernel.name for _, kernel in pairs)

    def found(_: str) -> Path:
        return Path("ptxas")

    monkeypatch.setattr(ptxas_check, "_check_part", check)
    monkeypatch.setattr(ptxas_check, "find_ptxas", found)
    kernels = [
        _kernel("one", "0f40000000", 1),
        _kernel("two", "0f3F800000", 1),
        _kernel("r", "0f40000000", 2),  # another shift
        _kernel("f3", "%f3", 1),  # no number
        _kernel("five", "0d3FF0000000000000", 1),  # of another type
    ]
    ptxas_check.check_together(ctx, [request] * len(kernels), kernels, 1)
    assert checked == ["one", "r", "f3", "five"]
