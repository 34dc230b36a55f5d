"""The verdict says which kernels the comparison sees; --fail_on_vacuous counts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.execution.kernel_meter import kernels_of
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import plan_module
from hlo_run.target import DEFAULT_TARGET, preset

# The first sort goes behind a NaN, the second is the result.
PARTIAL = """HloModule p
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT l = pred[] compare(a, b), direction=LT }
ENTRY e {
  x = f32[8] parameter(0)
  s = f32[8] sort(x), dimensions={0}, to_apply=less
  a = f32[8] abs(x)
  one = f32[] constant(1)
  ones = f32[8] broadcast(one), dimensions={}
  b = f32[8] add(a, ones)
  n = f32[8] negate(b)
  l = f32[8] log(n)
  r = f32[8] multiply(s, l)
  q = f32[8] sine(x)
  ROOT t = (f32[8], f32[8]) tuple(r, q)
}
"""
BLIND = PARTIAL.replace("tuple(r, q)", "tuple(r, l)")
PLAIN = "HloModule p\nENTRY e { p = f32[40] parameter(0) ROOT l = f32[40] add(p, p) }"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return tmp_path / "m.hlo"


def test_the_verdict_names_kernels_that_are_not_seen(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(PARTIAL)
    report, page = file.with_suffix(".json"), file.with_suffix(".html")
    flags = ["--platform=Host", "--fail_on_vacuous", f"--report_json={report}", f"--report_html={page}"]
    assert run([*flags, str(file)]) == 0
    assert "warning: the comparison sees 1 of 2 kernels; not: s.1 (hidden by NaN in" in capsys.readouterr().err
    seen = json.loads(report.read_text())["files"][0]["iterations"][0]["kernels_seen"]
    assert (seen["seen"], seen["measured"], len(seen["kernels"])) == (1, 2, 2)
    assert [kernel["seen"] for kernel in seen["kernels"]].count(False) == 1
    assert "hidden by NaN in" in page.read_text()


def test_no_kernel_seen_is_vacuous(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BLIND)
    assert run(["--platform=Host", str(file)]) == 0
    assert "warning: the comparison sees 0 of" in capsys.readouterr().err
    assert run(["--platform=Host", "--fail_on_vacuous", str(file)]) == 6


def test_the_interpreter_has_no_kernels(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(PLAIN)
    assert run(["--platform=Interpreter", "--reference_platform=Interpreter", str(file)]) == 0
    assert "the comparison sees all 40 elements" in capsys.readouterr().err


def test_an_executable_from_the_cache_is_measured_too(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HLO_RUN_CACHE", str(tmp_path / "cache"))
    file.write_text(PLAIN)
    for _ in range(2):
        assert run(["--platform=Host", str(file)]) == 0
        assert "the comparison sees the kernel" in capsys.readouterr().err


def test_a_fused_sort_is_one_kernel_with_its_fusion() -> None:
    module = parse(PARTIAL)
    plan = plan_module(PassContext(preset(DEFAULT_TARGET), CompileOptions()), module)
    kernels = kernels_of(module, plan.thunks)
    assert len(kernels) == len(set(kernels))
    assert {kernel.parent for kernel in kernels} == {module.entry}


def test_several_devices_are_not_measured(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(PLAIN)
    assert run(["--platform=Host", "--num_replicas=2", str(file)]) == 0
    assert "the comparison sees all 80 elements" in capsys.readouterr().err
