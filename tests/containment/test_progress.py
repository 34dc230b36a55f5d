"""The line of progress at a terminal: it is on stderr, goes before other output, and pipes never see it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from processes import ABS, NEGATE, environment, warm

from hlo_run.containment import progress
from hlo_run.containment.progress import ProgressLine

pytest.importorskip("pty", reason="the system has no pseudo-terminals")

# Shows the progress from the first moment on.
PROGRAM = """
from hlo_run.containment import progress
progress.DELAY_SECONDS = progress._REDRAW_SECONDS = 0.0
from hlo_run.cli import main
main()
"""
# Waits in every run for a byte.
WAITS = """
from hlo_run.commands import run
check_memory = run.check_memory
def waiting(executable):
    with open({pipe!r}, "rb", buffering=0) as pipe:
        pipe.read(1)
    check_memory(executable)
run.check_memory = waiting
"""
_CLEAR = "\r\x1b[2K"


def _screen(text: str) -> str:
    """Return what is left on a terminal: a line that is cleared leaves nothing."""
    return "\n".join(line.rpartition(_CLEAR)[2] for line in text.replace("\r\n", "\n").split("\n"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_terminal_shows_progress_and_keeps_only_the_output(jobs: int, tmp_path: Path) -> None:
    for name, text in (("first.hlo", NEGATE), ("second.hlo", ABS)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)
    (tmp_path / "waits.py").write_text(WAITS.format(pipe=str(gate)), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("first.hlo", "second.hlo")]
    flags = ["--platform=Host", f"--jobs={jobs}", f"--custom_calls={tmp_path / 'waits.py'}"]
    screen, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 400))
    marked = {**environment(tmp_path), "TERM": "xterm", "NO_COLOR": ""}
    _start(PROGRAM, [*flags, *files], marked, terminal, tmp_path)
    seen = ""
    for name in ("first.hlo", "second.hlo"):
        while f"{name}: " not in seen:
            seen += os.read(screen, 1 << 16).decode()
        if jobs == 1:
            os.write(opened, b"x")
    if jobs == 2:
        os.write(opened, b"xx")
    while data := _read(screen):
        seen += data
    code, output = warm().wait(), (tmp_path / "output").read_text(encoding="utf-8")
    os.close(screen)
    os.close(opened)
    assert code == 0, seen
    assert "of 2 files; " in seen
    assert "first.hlo: " not in _screen(seen)
    assert _screen(seen).count("close enough") == 2
    assert seen.count("\x1b[1;32m** Results") == 2, "the supervisor's terminal has colours"
    assert output.count("** Running") == 2
    assert "\x1b" not in output


def _start(program: str, arguments: list[str], marked: dict[str, str], terminal: int, folder: Path) -> None:
    """Start a program whose stderr is a terminal, which is closed here, and whose stdout is the file `output` of a folder."""
    (folder / "output").touch()
    warm().start(program, arguments, marked, [os.devnull, str(folder / "output"), os.ttyname(terminal)])
    os.close(terminal)


def _read(screen: int) -> str:
    try:
        return os.read(screen, 1 << 16).decode()
    except OSError:  # Linux: the last process has closed the terminal
        return ""


def test_a_pipe_sees_no_progress(tmp_path: Path) -> None:
    """It goes into real pipes, so it is a process of its own."""
    (tmp_path / "a.hlo").write_text(NEGATE, encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, "--platform=Host", str(tmp_path / "a.hlo")]
    done = subprocess.run(command, env={**environment(tmp_path), "TERM": "xterm"}, capture_output=True, check=True)
    assert b"\r" not in done.stderr + done.stdout


def test_the_line_is_late_short_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    now = [100.0]
    monkeypatch.setattr(progress, "_write", written.append)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    line = ProgressLine(lambda: "a\x1b[5m" + "b" * 200)
    line.draw()
    line.clear()
    assert written == []
    assert line.wait_seconds() == progress.DELAY_SECONDS
    now[0] += progress.DELAY_SECONDS
    line.draw()
    (shown,) = written
    assert shown.startswith(f"{_CLEAR}a?[5mbbb")
    assert len(shown) < len(_CLEAR) + 80
    line.draw()
    assert len(written) == 1, "it is drawn ten times a second"
    line.clear()
    assert written[1:] == [_CLEAR]


def _at_terminal(program: str, arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a program whose stderr is a terminal. Return its exit code, what the terminal got, and its stdout."""
    screen, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 400))
    _start(program, arguments, {**environment(folder), "TERM": "xterm"}, terminal, folder)
    seen = ""
    while data := _read(screen):
        seen += data
    os.close(screen)
    return warm().wait(), seen, (folder / "output").read_text(encoding="utf-8")


def test_tools_show_what_they_try(tmp_path: Path) -> None:
    """hlo-tool reduce shows the candidates at a terminal, and leaves only the lines of the steps."""
    (tmp_path / "a.hlo").write_text(NEGATE, encoding="utf-8")
    (tmp_path / "test.sh").write_text(f"#!/bin/sh\ngrep -q negate {'$1'}\n", encoding="utf-8")
    (tmp_path / "test.sh").chmod(0o755)
    program = PROGRAM.replace("hlo_run.cli", "hlo_run.tool")
    arguments = ["reduce", str(tmp_path / "a.hlo"), f"--test={tmp_path / 'test.sh'} {{}}", f"--output={tmp_path / 'out.hlo'}"]
    code, seen, output = _at_terminal(program, arguments, tmp_path)
    assert code == 0, seen
    assert "the first run" in seen
    assert " trials, " in seen
    assert " trials, " not in _screen(seen)
    assert "candidates were valid and smaller" in output
    assert "\x1b" not in output


def test_hlo_fuzz_shows_how_many_modules_are_done(tmp_path: Path) -> None:
    program = PROGRAM.replace("hlo_run.cli import main", "hlo_run.tool import fuzz_main as main")
    code, seen, output = _at_terminal(program, ["--count=8", "--jobs=1"], tmp_path)
    assert code == 0, seen
    assert re.search(r"[1-8] modules, 0 failures, ", seen)
    assert " failures, " not in _screen(seen)
    assert "\x1b" not in output
