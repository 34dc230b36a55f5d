"""A child process that answers one line of JSON with another. If it ends, the next question starts a new one.

Real XLA ends its process when one of its own checks fails, so it must run in a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self


class JsonChild:
    """Runs `command` from the first question on, with `environment` added to our own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: object) -> tuple[Any, str]:
        """Return (the answer, ""), or (None, the last fatal line of the process, if any) if the process ended."""
        process = self._start() if self._process is None else self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return json.loads(answer), ""
        process.wait()
        fatal = [line for line in process.stderr.read().splitlines() if line.startswith("F")]
        self._process = None
        return None, fatal[-1] if fatal else ""

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=self._environment,
        )
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.communicate()
