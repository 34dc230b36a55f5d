"""Convert modules with real XLA in forks of one process per session, which has imported jaxlib once.

A conversion starts Python and imports jaxlib, which takes most of its time. As with a process of its own, XLA may abort in the
fork, and the limit of time holds there.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from hlo_run.containment.children import run_command
from hlo_run.formats import conversions, xla

_COMMAND = (sys.executable, "-P", conversions.__file__)
_PROCESS = Path(__file__).with_name("xla_converter_process.py")


class Converter:
    """Takes the place of `run_command` in `formats.xla`. Other commands, and those of forks of this process, run as they are."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def __call__(
        self, command: Sequence[str], data: bytes, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        *head, name = command
        if tuple(head) != _COMMAND or os.getpid() != self._owner:
            return run_command(command, data, environment)
        with self._lock:
            process = self._process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump((name, data), process.stdin)
            process.stdin.flush()
            code, output, said = pickle.load(process.stdout)
        return subprocess.CompletedProcess(command, code, output, said)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(_PROCESS), conversions.__file__]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=xla.child_environment())

    def stop(self) -> None:
        """End the process. The next conversion starts a new one."""
        if self._process is not None and os.getpid() == self._owner:
            self._process.communicate()
            self._process = None
