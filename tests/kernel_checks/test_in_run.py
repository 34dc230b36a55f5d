"""The errors of kernels in a run: a kernel that is right alone has the errors of those before it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hlo_run.backends.host.backend import HostBackend
from hlo_run.execution.kernel_meter import kernels_of
from hlo_run.kernel_checks.checks import KernelChecks
from hlo_run.kernel_checks.in_run import compare_in_run
from hlo_run.kernel_checks.outcomes import Outcome, rows_of
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.ops.parse import parse
from hlo_run.options.compile import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.reference.compare.compare import ErrorSpec
from hlo_run.reference.sensitivity.recorded_run import RecordedRun
from hlo_run.target import preset

BOUNDS = ErrorSpec(1e-3, 1e-3)
TEXT = """HloModule m, is_scheduled=true
f {
  x = f32[40] parameter(0)
  ROOT a = f32[40] add(x, x)
}
g {
  x = f32[40] parameter(0)
  ROOT n = f32[40] negate(x)
}
h {
  i = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT j = s32[] add(i, one)
}
k {
  i = s32[] parameter(0)
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
body {
  s = (s32[], f32[40]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[40] get-tuple-element(s), index=1
  inside = f32[40] fusion(x), kind=kLoop, calls=g
  next = s32[] fusion(i), kind=kLoop, calls=h
  ROOT t = (s32[], f32[40]) tuple(next, inside)
}
cond {
  s = (s32[], f32[40]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  ROOT goes_on = pred[] fusion(i), kind=kLoop, calls=k
}
ENTRY e {
  p = f32[40] parameter(0)
  i = s32[] parameter(1)
  first = f32[40] fusion(p), kind=kLoop, calls=f
  state = (s32[], f32[40]) tuple(i, first)
  loop = (s32[], f32[40]) while(state), condition=cond, body=body
  ROOT r = f32[40] get-tuple-element(loop), index=1
}
"""


def _outcomes(is_planted: bool, keeps_results: bool = True) -> dict[str, Outcome]:
    module = parse(TEXT)
    executable = compile_module(PassContext(preset("h100"), CompileOptions()), module)
    if is_planted:
        wrong = [replace(k, ptx=re.sub(r"\badd(\.rn)?(\.ftz)?\.f32", r"mul\1\2.f32", k.ptx)) for k in executable.kernels]
        executable = replace(executable, kernels=tuple(wrong))
    backend = HostBackend()
    arguments = [np.linspace(3, 4, 40, dtype=np.float32), np.array(0, np.int32)]
    verdicts = Verdicts(BOUNDS, fixed_bounds=False)
    checks = KernelChecks(module, executable, verdicts, backend.run_aside, keeps_results=keeps_results)
    backend.watch_next_run(checks)
    backend.run(executable, arguments)
    assert checks.begin_last(), "the loop has no known number of iterations"
    backend.watch_next_run(checks)
    backend.run(executable, arguments)
    checks.finish()
    run = RecordedRun(module, kernels_of(module, executable.thunks), arguments)
    compare_in_run(checks.outcomes.values(), run.last_values, BOUNDS)
    return {unit.name: outcome for unit, outcome in checks.outcomes.items()}


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_kernel_has_the_errors_of_those_before_it(is_planted: bool) -> None:
    outcomes = _outcomes(is_planted)
    assert outcomes["first"].differs is is_planted
    assert not outcomes["inside"].differs, "it is right alone"
    for name in ("first", "inside"):
        error = outcomes[name].record()["worst_abs_error_in_run"]
        assert isinstance(error, float), name
        assert (error > 1) is is_planted, name
    head, rows = rows_of(list(outcomes.values()))
    column = head.index("worst abs in the run")
    assert all((row[column] != 0) is is_planted for row in rows if row[1] in ("%first", "%inside"))


def test_results_are_kept_for_a_report_alone() -> None:
    outcome = _outcomes(False, keeps_results=False)["first"]
    assert not outcome.result
    assert outcome.record()["worst_abs_error_in_run"] is None
