"""`--xla_diff`: compares with recorded results of XLA, and with XLA's compiler itself where it is installed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hlo_run.analysis.cost.side_by_side import XlaDiff, diff_sides, make_side
from hlo_run.cli import parse_arguments, run
from hlo_run.commands import xla_diff
from hlo_run.errors import UsageError
from hlo_run.formats.xla_gpu import XlaCompilation, find_plugin
from hlo_run.terminal import xla_diff_view

MODULE = """HloModule softplus

ENTRY e {
  p = f32[300,40] parameter(0)
  x = f32[300,40] exponential(p)
  one = f32[] constant(1)
  ones = f32[300,40] broadcast(one), dimensions={}
  y = f32[300,40] add(x, ones)
  ROOT z = f32[300,40] log(y)
}
"""
# What another compiler might make of it: two kernels, where ours makes one.
XLAS = """HloModule softplus, is_scheduled=true

first {
  p = f32[300,40]{1,0} parameter(0)
  ROOT x = f32[300,40]{1,0} exponential(p)
}

second {
  p = f32[300,40]{1,0} parameter(0)
  ROOT x = f32[300,40]{1,0} log-plus-one(p)
}

ENTRY e {
  p = f32[300,40]{1,0} parameter(0)
  x = f32[300,40]{1,0} fusion(p), kind=kLoop, calls=first
  ROOT z = f32[300,40]{1,0} fusion(x), kind=kLoop, calls=second
}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    path = tmp_path / "module.hlo"
    path.write_text(MODULE, encoding="utf-8")
    return path


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let XLA make the recorded module; return the flags that it gets."""
    flags: list[list[str]] = []

    def compile_with_xla(text: str, file: str, target: str, given: list[str], cuda: Path | None) -> XlaCompilation:
        assert "log(" in text
        assert "core_count: 132" in target
        del file, cuda
        flags.append(given)
        return XlaCompilation(XLAS, ("kCustomKernel", "kCustomKernel"), 144000)

    monkeypatch.setattr(xla_diff, "compile_with_xla", compile_with_xla)
    return flags


def test_the_text_and_the_report(module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = _recorded(monkeypatch)
    report = module.with_suffix(".json")
    assert run(["--xla_diff", f"--report_json={report}", str(module)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "softplus for h100_sxm, compared with XLA:GPU (native emitters and libraries, no Triton)"
    assert lines[5].split() == ["kernels", "1", "2", "0.500"]
    assert [line.split() for line in lines[9:11]] == [
        ["bytes", "accessed", "96000", "192000", "0.500"],
        ["planned", "memory,", "bytes", "96000", "144000", "0.667"],
    ]
    assert "0 alike on both sides, 2 not" in lines
    record = json.loads(report.read_text())["files"][0]["xla_diff"]
    assert record["totals"]["kernels"] == {"ours": 1, "xla": 2, "ratio": 0.5}
    assert {pair["ours"] is None for pair in record["work"]} == {False, True}
    assert flags == [
        ["--xla_gpu_enable_triton_gemm=false", "--xla_disable_hlo_passes=triton-softmax-rewriter,fusion-block-level-rewriter"]
    ]


def test_xla_gets_the_flags_that_both_know(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = _recorded(monkeypatch)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_fast_min_max=true --xla_dump_to=/nowhere")
    arguments = ["--xla_diff=default", "--xla_allow_excess_precision=false", "--disable=algsimp", "--xla_dump_to=", str(module)]
    assert run(arguments) == 0
    shared = ["--xla_allow_excess_precision=false", "--xla_disable_hlo_passes=algsimp"]
    assert flags == [["--xla_gpu_enable_fast_min_max=true", *shared]]


def test_bad_uses_are_refused(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--xla_diff=everything", str(module)]) == 2
    assert run(["--xla_diff", "--stage=hlo", str(module)]) == 2
    said = capsys.readouterr().err
    assert "--xla_diff=everything is unknown" in said
    assert "--stage and --xla_diff cannot be used together" in said


def _diff() -> XlaDiff:
    options, _, _ = parse_arguments(["--xla_diff", "x.hlo"])
    made = XlaCompilation(XLAS, ("kCustomKernel", "kCustomKernel"), 144000)
    theirs = xla_diff.xla_side(made)
    return diff_sides("m", "h100", options.xla_diff, make_side(["kCopy"] * 3, 300000, theirs.work[:1]), theirs)


def test_on_a_terminal_it_is_a_table() -> None:
    file = io.StringIO()
    Console(file=file, width=100, highlight=False, color_system=None).print(xla_diff_view(_diff()))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["copies", "3", "0", "-"] in lines
    assert ["planned", "memory,", "bytes", "300000", "144000", "2.083"] in lines
    assert ["-", "-", "z", "96000", "log-plus-one"] in lines


def test_beside_real_xla(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_plugin()
    except UsageError as missing:
        pytest.skip(missing.message)
    assert run(["--xla_diff", str(module)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["kernels", "1", "1", "1.000"] in lines
    assert ["planned", "memory,", "bytes", "96000", "96000", "1.000"] in lines
