"""Runs modules on real XLA:CPU, in a child process that is kept for the next module and started again after a crash."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from msgspec import Struct

from hlo_run.containment.children import tied
from hlo_run.errors import InternalError
from hlo_run.formats import cpu_runner
from hlo_run.formats.spelling import for_installed
from hlo_run.formats.xla import child_environment, last_words, refusal_text, require

_LENGTH = 8  # bytes of an answer's length


class XlaCpuAnswer(Struct, frozen=True):
    """The answer of XLA:CPU about a module.

    `results` are the leaves of the result, in order, if `problem` is empty. Otherwise `problem` is the stage that refused the
    module (parse, convert, compile, run), `crash`, or `time-out`, and `message` says why.
    """

    results: tuple[Any, ...] = ()
    problem: str = ""
    message: str = ""


class XlaCpu:
    """XLA:CPU in a child process, which starts with the first module. Use it as a context, or call `stop`."""

    def __init__(self, limit_seconds: float = 60.0) -> None:
        """A module that takes longer than `limit_seconds` is a `time-out`, which ends the child process."""
        self._limit_seconds = limit_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    def run(self, text: str, leaves: Sequence[Any]) -> XlaCpuAnswer:
        """Run HLO text on the leaves of its arguments. Raises UsageError if jaxlib is not installed."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps((for_installed(text), list(leaves))))
            process.stdin.flush()
            data = self._read(process.stdout.fileno())
        except BrokenPipeError:
            data = b""
        if data is None:
            self.stop()
            return XlaCpuAnswer(problem="time-out", message=f"more than {self._limit_seconds:g} s")
        try:
            stage, result = pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            return self._crashed()
        if stage:
            return XlaCpuAnswer(problem=stage, message=_words(result))
        return XlaCpuAnswer(tuple(result))

    def _read(self, pipe: int) -> bytes | None:
        """Return the answer, or what came of it before the process ended; None after the time limit."""
        end = time.monotonic() + self._limit_seconds
        data = bytearray()
        while len(data) < _LENGTH or len(data) < _LENGTH + int.from_bytes(data[:_LENGTH], "little"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            part = os.read(pipe, 1 << 20)
            if not part:
                break
            data += part
        return bytes(data[_LENGTH:])

    def _start(self) -> subprocess.Popen[bytes]:
        require("jaxlib", "XLA:CPU")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        command = tied([sys.executable, "-P", cpu_runner.__file__])
        environment = child_environment() | {"TF_CPP_MIN_LOG_LEVEL": "2"}
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said, env=environment)
        except OSError as error:
            raise InternalError(f"cannot start {sys.executable}: {error}") from None
        return self._process

    def _crashed(self) -> XlaCpuAnswer:
        process, said = self._process, self._said
        assert process is not None
        assert said is not None
        process.wait()
        said.seek(0)
        words = last_words(said.read().decode(errors="replace"), process.returncode)
        self.stop()
        return XlaCpuAnswer(problem="crash", message=words)

    def stop(self) -> None:
        """End the child process. The next module starts a new one."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def __enter__(self) -> XlaCpu:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _words(message: str) -> str:
    """Return XLA's reason. A parser's error has it in the lines after the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(lines[1:3]) if lines and lines[0].endswith("HloModule:") else refusal_text(message)
