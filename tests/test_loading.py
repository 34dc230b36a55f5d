"""Ctrl-C while a command loads its modules ends it quietly."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")


def _run(program: str) -> tuple[int, str]:
    # A shell may start background jobs without Ctrl-C.
    head = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    done = subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["hlo_run.cli", "hlo_run.tool"])
def test_ctrl_c_during_the_imports_is_quiet(module: str) -> None:
    program = f"""
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
import {module}
"""
    assert _run(program) == (-signal.SIGINT, "")


def test_after_the_imports_ctrl_c_is_an_exception_again() -> None:
    code, error = _run("import hlo_run.cli\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n")
    assert (code, error) == (0, "")


def test_a_handler_of_the_importing_program_stays() -> None:
    program = "mine = lambda *_: 0\nsignal.signal(2, mine)\nimport hlo_run.cli\nassert signal.getsignal(2) is mine\n"
    assert _run(program) == (0, "")
