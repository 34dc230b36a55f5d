"""XLA:CPU in a child process: its answers, refusals, crashes and time limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hlo_run.formats import xla_cpu
from hlo_run.formats.xla_cpu import XlaCpu

pytest.importorskip("jaxlib")

NEGATE = "HloModule m\nENTRY e { p = s4[4] parameter(0)\n ROOT n = s4[4] negate(p) }"


@pytest.fixture
def xla() -> Iterator[XlaCpu]:
    with XlaCpu(5000.0) as found:
        yield found


def _child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Replace the child process by `program`, which gets the requests."""
    file = tmp_path / "child.py"
    file.write_text("import os, pickle, signal, sys\npickle.load(sys.stdin.buffer)\n" + program, encoding="utf-8")
    monkeypatch.setattr(xla_cpu.cpu_runner, "__file__", str(file))


def test_values_and_refusals_of_one_process(xla: XlaCpu) -> None:
    values = np.array([0, 1, 2, 3], ml_dtypes.int4)
    assert xla.run(NEGATE, [values]).results[0].tolist() == [0, -1, -2, -3]
    assert xla.run("HloModule m\nENTRY e { nonsense }", []).problem == "parse"
    wrong = xla.run("HloModule m\nENTRY e { p = f32[4] parameter(0)\n ROOT n = f32[3] negate(p) }", [np.zeros(4, np.float32)])
    assert wrong.problem in ("convert", "compile")
    assert wrong.message
    assert not xla.run(NEGATE, [values]).problem


def test_a_crash_starts_a_new_process(xla: XlaCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = "sys.stderr.write('F0101 10:00:00.000000 7 x.cc:1] Check failed: a == b\\n'); sys.stderr.flush(); os.abort()"
    with monkeypatch.context() as changed:
        _child(tmp_path, changed, died)
        answer = xla.run(NEGATE, [])
    assert (answer.problem, answer.message) == ("crash", "Check failed: a == b")
    assert not xla.run(NEGATE, [np.zeros(4, ml_dtypes.int4)]).problem


def test_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _child(tmp_path, monkeypatch, "signal.pause()")
    with XlaCpu(limit_seconds=0.3) as slow:
        assert slow.run(NEGATE, []).problem == "time-out"
