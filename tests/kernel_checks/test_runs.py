"""The command line with a fault in a kernel that the result of the module does not show."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from hlo_run.artifact import Kernel
from hlo_run.cli import run
from hlo_run.pipeline import compile as compiling
from hlo_run.records import replace

_MODULE = """HloModule m, is_scheduled=true
f {
  x = f32[40] parameter(0)
  y = f32[40] parameter(1)
  ROOT s = f32[40] add(x, y)
}
g {
  a = f32[40] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[40] broadcast(zero), dimensions={}
  ROOT p = f32[40] multiply(a, zeros)
}
ENTRY e {
  x = f32[40] parameter(0)
  y = f32[40] parameter(1)
  first = f32[40] fusion(x, y), kind=kLoop, calls=f
  ROOT second = f32[40] fusion(first), kind=kLoop, calls=g
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "m.hlo"
    path.write_text(_MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return str(path)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subtract where kernels add."""
    compiled = compiling._compile_kernels  # pyright: ignore[reportPrivateUsage]  (the only place that all kernels pass)

    def wrong(*arguments: Any) -> tuple[Kernel, ...]:
        return tuple(replace(k, ptx=re.sub(r"\badd(\.rn)?\.f32", r"sub\1.f32", k.ptx)) for k in compiled(*arguments))

    monkeypatch.setattr(compiling, "_compile_kernels", wrong)


def _run(*words: str) -> int:
    return run(["--platform=Host", "--cache=off", *words])


def test_the_verdict_has_a_line_on_kernels(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(file) == 0
    line = "1 of 2 kernels agree alone, worst error 0; 1 shows nothing on any operands tried: %second"
    assert f"\n{line}\n" in capsys.readouterr().err
    assert _run("--check_kernels=off", file) == 0
    assert "alone" not in capsys.readouterr().err


@pytest.mark.usefixtures("planted")
def test_a_kernel_that_differs_alone_fails(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--report_json=r.json", "--report_junit=r.xml", file) == 1
    errors = capsys.readouterr().err
    assert "kernel 'loop_add_fusion' (%first) differs alone: 40 of 40 elements" in errors or "(%first) differs alone" in errors
    assert "0 of 2 kernels agree alone" in errors
    assert f"next: hlo-run --platform=Host --localize {file}" in errors or "--localize" in errors
    record = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["files"][0]
    first, second = record["iterations"][0]["kernels"]
    assert (first["name"], first["verdict"], second["verdict"]) == ("first", "differs", "shows nothing")
    assert second["unseen_results"] == [[]]
    assert record["iterations"][0]["comparison"]["agrees"] is True
    assert record["signature"]["bucket"] == "compare: mismatch: kernel differs alone: wrong values"
    failure = ET.parse(tmp_path / "r.xml").getroot().find(".//failure")
    assert failure is not None
    assert "(%first) differs alone" in failure.attrib["message"]


@pytest.mark.usefixtures("planted")
def test_localize_finds_a_fault_that_the_operands_hide(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--localize", "--random_init_input_literals=false", file) == 1
    errors = capsys.readouterr().err
    assert "(%first) is the first that computes a wrong result on operands of its own" in errors
    assert (tmp_path / "m.localize").is_dir()
