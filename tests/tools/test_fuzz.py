"""`hlo-fuzz`: random modules, their failures, what is kept of them, and the limits."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from hlo_run.execution.signatures import Signature
from hlo_run.fuzz import hunt
from hlo_run.fuzz.case import FAILED, Fault
from hlo_run.fuzz.check import Outcome
from hlo_run.fuzz.judges import Judge
from hlo_run.fuzz.subjects import Subject
from hlo_run.options import Options
from hlo_run.tool import run_tool
from hlo_run.triage import fuzzed

MODULE = """HloModule m, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

ENTRY e {
  p = f32[8]{0} parameter(0)
  a = f32[8]{0} abs(p)
  b = f32[8]{0} cosine(a)
  c = f32[8]{0} negate(b)
  ROOT d = f32[8]{0} tanh(c)
}
"""
WRONG = Fault(FAILED, Signature("reference", "mismatch", "wrong values"), "details")


def test_modules_that_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["fuzz", "--count=3", "--seed=5", "--jobs=1"]) == 0
    assert capsys.readouterr().out.startswith("3 modules: 3 ok\n")


def test_failures_are_grouped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_when_odd(subject: Subject, options: Options, judges: Mapping[str, Judge]) -> Outcome:
        del options, judges
        return Outcome.of(subject, [WRONG] if subject.seed % 2 else [])

    monkeypatch.setattr(hunt, "check", fail_when_odd)
    report = tmp_path / "report.json"
    assert run_tool(["fuzz", "--count=4", "--jobs=1", f"--report_json={report}"]) == 1
    text = capsys.readouterr().out
    assert "seed 1: failed: reference: mismatch: wrong values\n" in text
    assert "     2 failed: reference: mismatch: wrong values  (seeds 1, 3)\n" in text
    record = json.loads(report.read_text(encoding="utf-8"))
    assert record["modules"] == {"ok": 2, "failed": 2}
    assert record["buckets"][0]["seeds"] == [1, 3]
    assert record["buckets"][0]["signature"]["kind"] == "mismatch"


def _fail_at_cosine(subject: Subject, options: Options, judges: Mapping[str, Judge], draw: int = 0) -> Outcome:
    del options, judges, draw
    return Outcome.of(subject, [WRONG] if "cosine(" in subject.text else [])


def test_failures_are_reduced_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hunt, "check_every_draw", _fail_at_cosine)
    monkeypatch.setattr(fuzzed, "check", _fail_at_cosine)
    file = tmp_path / "m.hlo"
    file.write_text(MODULE, encoding="utf-8")
    keep = tmp_path / "kept"
    assert run_tool(["fuzz", "--as_is", str(file), "--seed=3", "--jobs=1", f"--keep={keep}"]) == 1
    assert "failed: reference: mismatch: wrong values [cosine]  (seeds 3)\n" in capsys.readouterr().out
    (folder,) = keep.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["failure.txt", "original.hlo", "reduced.hlo"]
    assert (folder / "reduced.hlo").read_text(encoding="utf-8").count(" = ") == 2
    said = (folder / "failure.txt").read_text(encoding="utf-8")
    assert said.startswith("reference: mismatch: wrong values\n\nhlo-fuzz --as_is --seed=3 --against=reference")
    assert said.endswith("details\n")


def test_given_modules_are_mutated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.hlo").write_text(MODULE, encoding="utf-8")
    (tmp_path / "bad.hlo").write_text("nonsense", encoding="utf-8")
    assert run_tool(["fuzz", str(tmp_path), "--seed=1", "--count=3", "--jobs=1"]) == 0
    read = capsys.readouterr()
    assert read.out.startswith("3 modules: 3 ok\n")
    assert "bad.hlo is left out" in read.err


def test_the_limit_of_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wait(*arguments: object) -> Outcome:
        signal.pause()  # until the hunt kills the process
        return Outcome(Subject(0, ""), "ok")

    monkeypatch.setattr(hunt, "check", wait)
    assert run_tool(["fuzz", "--count=4", "--time=0.1"]) == 0
    assert capsys.readouterr().out.startswith("0 modules: \n")


def test_ctrl_c_ends_with_the_summary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hunt, "wait", interrupt)
    assert run_tool(["fuzz", "--count=4"]) == 130
    assert capsys.readouterr().out.startswith("0 modules: \n")


@pytest.mark.parametrize(
    "flags", [["--against=nothing"], ["--as_is"], ["--count=0"], ["no_such_file.hlo"], ["--time=-1"]], ids=" ".join
)
def test_bad_flags(flags: list[str]) -> None:
    assert run_tool(["fuzz", *flags]) == 2
