"""`hlo-tool fuzz`: random modules, their failures, and the limit of time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hlo_run.fuzz import hunt
from hlo_run.fuzz.check import Outcome
from hlo_run.fuzz.generate import RandomModule
from hlo_run.tool import run_tool


def test_modules_that_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(["fuzz", "--count=3", "--seed=5", "--jobs=1"]) == 0
    assert capsys.readouterr().out.startswith("3 modules: 3 ok\n")


def test_failures_are_grouped_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_when_odd(module: RandomModule, options: object) -> Outcome:
        del options
        return Outcome(module.seed, "failed", "wrong", "details") if module.seed % 2 else Outcome(module.seed, "ok")

    monkeypatch.setattr(hunt, "check", fail_when_odd)
    assert run_tool(["fuzz", "--count=4", "--jobs=1", f"--keep={tmp_path}"]) == 1
    text = capsys.readouterr().out
    assert "seed 1: failed: wrong\n" in text
    assert "     2 failed: wrong  (seeds 1, 3)\n" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed_1.hlo", "seed_1.txt", "seed_3.hlo", "seed_3.txt"]
    assert (tmp_path / "seed_3.hlo").read_text(encoding="utf-8").startswith("HloModule")


def test_the_limit_of_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wait(module: object, options: object) -> Outcome:
        del module, options
        signal.pause()  # until the hunt kills the process
        return Outcome(0, "ok")

    monkeypatch.setattr(hunt, "check", wait)
    assert run_tool(["fuzz", "--count=4", "--time=0.1"]) == 0
    assert capsys.readouterr().out.startswith("0 modules: \n")
