"""Kernels compiled by several processes: the same bytes, times of every row, the first error, a process that dies.

`test_parallel.py` runs these in a process of their own: one that has loaded JAX, as other tests do, makes no copies of itself.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import Executable
from hlo_run.cli import run
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.options import Options
from hlo_run.parallel import Assistant, run_in_processes
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.observers.timing import TimingObserver
from hlo_run.target import preset

_CONTEXT = multiprocessing.get_context("fork")
_SECONDS_TO_WAIT = 600.0
CHAIN = """HloModule chain, is_scheduled=true
ENTRY e {
  p = f32[3,40] parameter(0)
  a = f32[3,40] negate(p)
  b = f32[3,40] multiply(a, p)
  c = f32[40,3] transpose(b), dimensions={1,0}
  ROOT d = f32[40,3] abs(c)
}
"""


def _compile(processes: int, *observers: Any, text: str = CHAIN) -> Executable:
    ctx = PassContext(preset("h100"), Options(compile_processes=processes), observers)
    return compile_module(ctx, hlo_run.parse(text))


def test_the_number_of_processes_changes_nothing() -> None:
    one, several = TimingObserver(), TimingObserver()
    alone = _compile(1, one)
    assert len(alone.kernels) == 4
    assert _compile(3, several) == alone
    assert several.runs == one.runs
    assert list(several.runs) == list(one.runs), "rows are in order"
    assert several.seconds["kernel", "canonicalize"] > 0
    p = np.random.default_rng(5).standard_normal((3, 40)).astype(np.float32)
    np.testing.assert_array_equal(hlo_run.run(hlo_run.parse(CHAIN), p, platform="Host"), np.abs(-p * p).T)


def test_the_first_error_counts() -> None:
    """Pieces 1 and 3 fail, 3 before 1 does."""
    later = _CONTEXT.Event()

    def work(number: int) -> int:
        if number == 1:
            assert later.wait(_SECONDS_TO_WAIT)
        if number == 3:
            later.set()
        if number in (1, 3):
            raise Unsupported(f"piece {number}", hint="wait")
        return number

    with pytest.raises(Unsupported, match="piece 1") as caught:
        run_in_processes(6, work, 3)
    assert caught.value.hint == "wait"


def test_results_are_in_order() -> None:
    later = _CONTEXT.Event()

    def work(number: int) -> tuple[int, bool]:
        if number == 6:
            later.set()
        if number == 0:
            assert later.wait(_SECONDS_TO_WAIT), "the first piece is the last to be done"
        return number * number, os.getpid() != parent

    parent = os.getpid()
    assert run_in_processes(7, work, 3) == [(number * number, True) for number in range(7)]
    assert run_in_processes(1, work, 3) == [(0, True)]  # the event is set by now


def test_a_process_that_dies() -> None:
    def work(number: int) -> int:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(DeviceError, match="died with SIGKILL in piece 2"):
        run_in_processes(4, work, 2)


def test_whoever_looks_at_texts_sees_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chain.hlo"
    file.write_text(CHAIN)
    seen: list[str] = []
    for processes in (1, 3):
        assert run([f"--compile_processes={processes}", "--platform=Host", "--v=2", str(file)]) == 0
        seen.append(re.sub(r"\d+\.\d+s", "", capsys.readouterr().err))
    assert seen[0] == seen[1]
    assert "[kernel wrapped_abs] canonicalize" in seen[0]
    assert run(["--compile_processes=3", "--platform=Host", "--time_passes", str(file)]) == 0
    assert "lower-to-llvm-gpu" in capsys.readouterr().err


def _answered(request: object) -> object:
    match request:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "refuse":
            raise Unsupported("no answer")
        case _:
            return request, os.getpid()


def test_an_assistant_answers_refuses_and_dies() -> None:
    ready: list[int] = []
    assistant = Assistant(lambda: ready.append(1), _answered)
    try:
        large = "x" * 300_000
        answer, pid = assistant.ask(large)
        assert answer == large
        assert pid != os.getpid()
        with pytest.raises(Unsupported, match="no answer"):
            assistant.ask("refuse")
    finally:
        assistant.end()
    assert not ready, "it gets ready in the fork"


def test_an_assistant_that_died_has_no_answer() -> None:
    assistant = Assistant(lambda: None, _answered)
    try:
        assert assistant.ask("die") is None
    finally:
        assistant.end()


@pytest.mark.parametrize("dies", [False, True])
def test_a_fork_compiles_for_a_command_that_prints_a_stage(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork gives the same bytes as this process. If the fork dies, this process runs LLVM."""
    module = "HloModule m\nENTRY e { p = f32[40] parameter(0)\n ROOT n = f32[40] negate(p) }"
    expected = _compile(1, text=module)
    asked: list[object] = []

    def ask(self: Assistant, request: object) -> object:
        asked.append(request)
        return ask_before(self, "no request" if dies else request)

    ask_before = Assistant.ask
    monkeypatch.setattr(Assistant, "ask", ask)
    monkeypatch.setattr("hlo_run.pipeline.llvm_ahead.available_cores", lambda: 2)
    monkeypatch.setattr("hlo_run.pipeline.llvm_ahead._was_started", False)
    monkeypatch.delitem(sys.modules, "llvmlite.binding")
    options = Options(stage="ptx")
    assert compile_module(PassContext(preset("h100"), options, show=options), hlo_run.parse(module)) == expected
    assert len(asked) == 1
