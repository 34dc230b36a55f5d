"""A copy of the package for tests that change its sources. One process runs all commands with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from processes import at_exit

PACKAGE = Path(__file__).resolve().parents[1] / "hlo_run"
# Forks for each copy of the package, so that none waits for the packages that ours imports. The fork reads a command per line,
# [folder, *words], and writes how it ended. -c PROGRAM runs a Python program.
_SERVER = """import contextlib, gc, importlib, io, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()
copies = []
for line in sys.stdin:
    path, environment, requests, answers = json.loads(line)
    copies.append(os.fork())
    if copies[-1]:
        continue
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, path)
    requests, answers = open(requests), open(answers, "w")
    from hlo_run.cli import run
    for line in requests:
        folder, *words = json.loads(line)
        os.chdir(folder)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = exec(words[1], {}) or 0 if words[0] == "-c" else run(words)
        print(json.dumps((code, out.getvalue(), err.getvalue())), file=answers, flush=True)
    os._exit(0)
for copy in copies:
    os.waitpid(copy, 0)
"""
_IMPORTED = (
    "numpy numpy.random ml_dtypes msgspec click llvmlite.binding xdsl.parser xdsl.printer xdsl.passes xdsl.pattern_rewriter "
    "xdsl.dialects.affine xdsl.dialects.arith xdsl.dialects.builtin xdsl.dialects.cf xdsl.dialects.complex xdsl.dialects.dlti "
    "xdsl.dialects.func xdsl.dialects.llvm xdsl.dialects.math xdsl.dialects.memref xdsl.dialects.scf xdsl.dialects.vector"
).split()


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-B", "-c", _SERVER, *_IMPORTED]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    at_exit(server.communicate)
    return server


@dataclass(frozen=True)
class End:
    """How a command ended: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def agrees(self) -> bool:
        return self.returncode == 0 and "close enough" in self.stderr


def _linked(source: str, target: str) -> str:
    """Link a file, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


class PackageCopy:
    """A copy of the package, in `path`. A change of a file ends the process, so that the next command gets the change."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path = path
        self._environment = {**environment, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
        self._pipes: tuple[IO[str], IO[str]] | None = None
        # Compiled files come along: they are those of files with the same time.
        shutil.copytree(PACKAGE, path / "hlo_run", copy_function=_linked)

    def read(self, file: str) -> str:
        return (self.path / "hlo_run" / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        self.close()
        changed = self.path / "hlo_run" / file
        # The file itself may be that of the package.
        changed.unlink(missing_ok=True)
        changed.write_text(text, encoding="utf-8")

    def run(self, folder: Path, *words: str) -> End:
        """Run hlo-run with `words` in a folder."""
        requests, answers = self._pipes = self._pipes or self._started()
        requests.write(json.dumps([str(folder), *words]) + "\n")
        requests.flush()
        answer = answers.readline()
        assert answer, "the process with the copy ended"
        return End(*json.loads(answer))

    def _started(self) -> tuple[IO[str], IO[str]]:
        """Start a process with this copy, and return where it reads commands and writes how they ended."""
        pipes = [str(self.path / name) for name in ("requests", "answers")]
        for pipe in pipes:
            os.mkfifo(pipe)
        server = _server()
        assert server.stdin is not None
        server.stdin.write(json.dumps([str(self.path), self._environment, *pipes]) + "\n")
        server.stdin.flush()
        requests, answers = os.fdopen(os.open(pipes[0], os.O_WRONLY), "w"), os.fdopen(os.open(pipes[1], os.O_RDONLY))
        for pipe in pipes:
            os.unlink(pipe)
        return requests, answers

    def run_alone(self, folder: Path, *words: str) -> End:
        """Run hlo-run in a process of its own, whose supervisor outlives a crash."""
        command = [sys.executable, "-P", "-m", "hlo_run", *words]
        done = subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True, check=False)
        return End(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        """End the process."""
        if self._pipes is not None:
            requests, answers = self._pipes
            requests.close()
            answers.read()
            answers.close()
            self._pipes = None
