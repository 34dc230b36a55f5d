"""Runs `parallel_cases.py` in a process without JAX; another test may have loaded it into this one."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hlo_run.parallel import can_fork

_CASES = Path(__file__).with_name("parallel_cases.py")


def test_compiling_in_processes() -> None:
    assert "fork" in multiprocessing.get_all_start_methods(), "these tests are of systems that copy processes"
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", str(_CASES)]
    done = subprocess.run(command, cwd=_CASES.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


def test_a_process_with_jax_or_off_the_main_thread_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib", sys)
    assert not can_fork()
    monkeypatch.delitem(sys.modules, "jaxlib")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(can_fork()))
    thread.start()
    thread.join()
    assert found == [False]
