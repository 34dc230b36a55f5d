"""A copy of the package for tests that change its sources. One process runs all commands with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "hlo_run"
# Reads a command per line, [folder, *words], and writes how it ended. -c PROGRAM runs a Python program.
_SERVER = """import contextlib, io, json, os, sys
from hlo_run.cli import run
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    folder, *words = json.loads(line)
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exec(words[1], {}) or 0 if words[0] == "-c" else run(words)
    print(json.dumps((code, out.getvalue(), err.getvalue())), file=answers, flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class End:
    """How a command ended: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def agrees(self) -> bool:
        return self.returncode == 0 and "close enough" in self.stderr


class PackageCopy:
    """A copy of the package, in `path`. A change of a file ends the process, so that the next command gets the change."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path = path
        self._environment = {**environment, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process: subprocess.Popen[str] | None = None
        # Compiled files come along: they are those of files with the same time.
        shutil.copytree(PACKAGE, path / "hlo_run", copy_function=shutil.copy2)

    def read(self, file: str) -> str:
        return (self.path / "hlo_run" / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        self.close()
        (self.path / "hlo_run" / file).write_text(text, encoding="utf-8")

    def run(self, folder: Path, *words: str) -> End:
        """Run hlo-run with `words` in a folder."""
        if self._process is None:
            command = [sys.executable, "-P", "-c", _SERVER]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(folder), *words]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the process with the copy ended: {process.wait()}"
        return End(*json.loads(answer))

    def run_alone(self, folder: Path, *words: str) -> End:
        """Run hlo-run in a process of its own, whose supervisor outlives a crash."""
        command = [sys.executable, "-P", "-m", "hlo_run", *words]
        done = subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True, check=False)
        return End(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None
