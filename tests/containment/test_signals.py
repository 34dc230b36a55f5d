"""A signal at any moment leaves no process and no temporary file behind, and closes the pipes."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import default_signals, environment

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

TEXT = """HloModule chain, is_scheduled=true
ENTRY e {
  p = f32[30,400] parameter(0)
  a = f32[30,400] negate(p)
  b = f32[30,400] multiply(a, p)
  c = f32[400,30] transpose(b), dimensions={1,0}
  d = f32[400,30] tanh(c)
  ROOT r = f32[400,30] power(d, c)
}
"""
# Only a process that stays for ever takes so long.
_SECONDS_TO_WAIT = 600
_CODES = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP, signal.SIGKILL: -signal.SIGKILL}
_SIGNALS = [*_CODES, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
_CASES = [(number, seed) for seed, number in enumerate(_SIGNALS)]
_FIRST_WITH_JOBS = len(_SIGNALS) - 3


def _processes_with(mark: str) -> list[str]:
    """Return the processes whose environment has `mark`."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(folder.name)
            except OSError:  # it has ended
                continue
    return found


def _settled(folder: Path, mark: str) -> bool:
    """Wait until the killed processes are gone. Return False if some stay, or a file."""
    for _ in range(_SECONDS_TO_WAIT * 20):
        if not _processes_with(mark) and not list(folder.iterdir()):
            return True
        select.select([], [], [], 0.05)
    return False


@pytest.mark.parametrize(("number", "seed"), _CASES)
def test_a_signal_ends_everything(number: signal.Signals, seed: int, tmp_path: Path) -> None:
    file = tmp_path / "chain.hlo"
    file.write_text(TEXT, encoding="utf-8")
    draw = random.Random(seed)
    flags = draw.choice([("--compile_processes=3",), ("--host_engine=jit",)])
    jobs = 3 if seed >= _FIRST_WITH_JOBS else 1
    mark = f"{tmp_path.name}-{os.getpid()}-{seed}"
    command = [sys.executable, "-m", "hlo_run", "--platform=Host", *flags, f"--jobs={jobs}", *[str(file)] * jobs]
    marked = {**environment(tmp_path), "HLO_RUN_TEST_MARK": mark}
    with default_signals():
        process = subprocess.Popen(command, env=marked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()  # "** Running": the worker works now
        try:
            code = process.wait(draw.uniform(0.0, 1.5))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            # The output ends only when no process holds the pipe.
            output = process.communicate(timeout=_SECONDS_TO_WAIT)[0]
            code = process.returncode
            # After its last line the command no longer catches signals: then it dies of one, as any program that ends.
            late = {-number, 0} if b"runs failed." in output else {0}
            assert code in {_CODES[number], *late}, output
            assert b"Traceback" not in output, output
        else:
            assert code == 0
    assert _settled(tmp_path / "temporary", mark)


IN_A_CALLBACK = """
import os, signal, weakref
from hlo_run.containment.relay import interrupt_once
class Thing: pass
thing = Thing()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
interrupt_once()
try:
    del thing
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_a_callback_loses_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
