"""Start hlo-run as a process, for tests of crashes, signals and limits."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

NEGATE = """HloModule neg
ENTRY e {
  x = f32[256] parameter(0)
  ROOT r = f32[256] negate(x)
}
"""
ABS = NEGATE.replace("neg", "absolute").replace("absoluteate", "abs")
# The LLVM IR that the emitter makes for the kernel of NEGATE, with marks for a line of the body and for more definitions.
NEGATE_LLVM = """target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

define ptx_kernel void @wrapped_negate(ptr noalias align 16 %0, ptr noalias align 256 %1) #0 {
  %3 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %4 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %5 = mul i32 %4, 128
  %6 = add i32 %5, %3
  %7 = getelementptr inbounds float, ptr %0, i32 %6
  %8 = load float, ptr %7
  BODY
  %9 = fneg float %8
  %10 = getelementptr inbounds float, ptr %1, i32 %6
  store float %9, ptr %10
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
attributes #0 = { "nvvm.reqntid"="128,1,1" }
MODULE
"""


@contextmanager
def default_signals() -> Generator[None]:
    """Let processes started in the block have the default signals: a shell starts background jobs with SIGINT ignored.

    `preexec_fn` would fork, of which JAX warns if a test has loaded it.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with an own folder for temporary files, and one for reproducers."""
    (folder / "temporary").mkdir(exist_ok=True)
    return {
        **os.environ,
        "TMPDIR": str(folder / "temporary"),
        "HLO_RUN_CRASH_DIR": str(folder / "crashes"),
        "HLO_RUN_CACHE": "off",
    }


# Forks for each command, so that no command waits for the modules. It has run a module, so it has loaded most of them.
# A command is a Python program with its words, or words of hlo-run. Answers are its process, when it has opened its streams, and
# its exit code.
_WARM = """
import gc, json, os, signal, sys, tempfile
from hlo_run.cli import run
requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
nothing = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(nothing, stream)
run(["--platform=Host", "--cache=off", sys.argv[1]])
sys.stdout.flush()
gc.freeze()
for line in requests:
    program, words, folder, environment, streams = json.loads(line)
    process = os.fork()
    if not process:
        code = 70
        try:
            for stream, path in enumerate(streams):
                os.dup2(os.open(path, (os.O_WRONLY if stream else os.O_RDONLY) | os.O_NOCTTY), stream)
            print(os.getpid(), file=answers, flush=True)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            tempfile.tempdir = None
            # A reproducer names the command.
            sys.orig_argv = [sys.executable, *(["-c", program] if program else ["-m", "hlo_run"]), *words]
            sys.argv = sys.orig_argv[2:]
            code = run(words, supervised=True) if not program else exec(program, {"__name__": "__main__"}) or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), file=answers, flush=True)
os._exit(0)
"""


def at_exit(function: Callable[[], object]) -> None:
    """Call a function when this process ends. Its forks, in which a worker of hlo-run calls such functions too, do not."""
    process = os.getpid()
    atexit.register(lambda: function() if os.getpid() == process else None)


class _Warm:
    """A process that runs hlo-run in forks."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp())
        module = self._folder / "warm.hlo"
        module.write_text(NEGATE, encoding="utf-8")
        command = [sys.executable, "-c", _WARM, str(module)]
        with default_signals():
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.is_running = False
        at_exit(self._close)

    def _close(self) -> None:
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, program: str, words: Sequence[str], environment: Mapping[str, str], streams: Sequence[str]) -> int:
        """Start a command in the working directory of this process. Return its process when it has opened the files `streams`."""
        assert self._process.stdin is not None
        request = json.dumps([program, words, os.getcwd(), dict(environment), streams])
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        self.is_running = True
        return int(self._answer())

    def wait(self) -> int:
        """Return the exit code of the command when it has ended."""
        code = int(self._answer())
        self.is_running = False
        return code

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(
        self, program: str, words: Sequence[str], environment: Mapping[str, str], stdin: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        streams = [self._folder / name for name in ("stdin", "stdout", "stderr")]
        for stream, text in zip(streams, (stdin, "", ""), strict=True):
            stream.write_text(text, encoding="utf-8")
        self.start(program, words, environment, [str(path) for path in streams])
        code = self.wait()
        return subprocess.CompletedProcess(words, code, *(path.read_text(encoding="utf-8") for path in streams[1:]))


warm = cache(_Warm)


def hlo_run(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run hlo-run to its end, in a process with its supervisor."""
    return warm().run("", arguments, environment(folder), stdin)


@contextmanager
def piped(folder: Path, *arguments: str, both: bool = False) -> Generator[tuple[int, IO[str]]]:
    """Start hlo-run, and return its process and the reader of its stdout, of stderr too for `both`; else that is a file.

    The caller waits for its end.
    """
    pipe = folder / "stdout"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        (folder / "stderr").touch()
        streams = [os.devnull, str(pipe), str(pipe if both else folder / "stderr")]
        process = warm().start("", arguments, environment(folder), streams)
        os.set_blocking(reader.fileno(), True)
        try:
            yield process, reader
        finally:
            # A test that failed has not waited for its command. The next would get its answers and wait for ever.
            if warm().is_running:
                os.kill(process, signal.SIGKILL)
                warm().wait()


def run_program(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program, which finds the modules of hlo-run loaded."""
    return warm().run(program, arguments, environment(folder), "")


def reproducers(folder: Path) -> list[Path]:
    """Return the reproducers of the runs in `folder`, oldest first."""
    return sorted((folder / "crashes").iterdir()) if (folder / "crashes").exists() else []
