"""Child processes that end with their parent, and temporary folders that vanish with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
# A program that asks the kernel for the same and then becomes the given command. A fork of this process could ask without it, but
# takes several milliseconds, as its memory is large.
_SETPRIV = "/usr/bin/setpriv"
_PREFIX = (_SETPRIV, "--pdeathsig", "KILL", "--")


def can_fork() -> bool:
    """True if this system can copy a process."""
    return hasattr(os, "fork") and sys.platform != "win32"


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent `parent` ends, whatever ends it. On Linux only."""
    if sys.platform.startswith("linux"):
        import ctypes  # numpy needs it as well

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), signal.SIGKILL)


def end_with_pipe(lifeline: int) -> None:
    """Kill this process when the other end of a pipe is closed. For systems without `end_with_parent`."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


def drop_standard_streams(keep_stderr: bool = True) -> None:
    """Close this process's copies of stdin and stdout (and stderr), so that their readers do not wait for it."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1) if keep_stderr else (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def run_command(
    command: Sequence[str],
    data: bytes,
    environment: dict[str, str] | None = None,
    timeout_seconds: float | None = None,
    pass_fds: Sequence[int] = (),
    is_short: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with `data` as stdin, and return its exit code and output. The command ends when this process ends.

    A command that `is_short` may outlive this process by its own time, which saves the half millisecond that the tie costs.
    Raises OSError if it cannot start, subprocess.TimeoutExpired after `timeout_seconds`.
    """

    def run(words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            words, input=data, capture_output=True, env=environment, check=False, timeout=timeout_seconds, pass_fds=pass_fds
        )

    if not is_short and os.path.exists(_SETPRIV):
        done = run([*_PREFIX, *command])
        # An old setpriv does not know the option; and it, not Python, reports a command that cannot start.
        if not done.stderr.startswith(b"setpriv:"):
            return done
    return run(command)


def tied(command: Sequence[str]) -> list[str]:
    """Return the command of a process that ends with this one, where the system can do so; else the command itself."""
    return [*(_PREFIX if os.path.exists(_SETPRIV) else ()), *command]


@contextmanager
def temporary_folder(prefix: str) -> Generator[Path]:
    """Return a context with a new folder. It is removed at the end, and also when this process is killed."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix=prefix)
    # JAX has threads with locks, which a fork would never see released.
    janitor, lifeline = _start_janitor(folder) if can_fork() and "jaxlib" not in sys.modules else (0, -1)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if janitor:
            os.close(lifeline)
            os.waitpid(janitor, 0)


def _start_janitor(folder: str) -> tuple[int, int]:
    """Fork a process that removes `folder` when the returned end of a pipe is closed. Return (process, end)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(reading)
        return child, writing
    try:
        os.setsid()  # a signal to all processes of the command must not end it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(reading, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
        drop_standard_streams(keep_stderr=False)
        os.closerange(4, 8)
        while os.read(3, 1):
            pass
        if os.path.isdir(folder):
            _remove(folder)
    finally:
        os._exit(0)


def _remove(folder: str) -> None:
    """Remove a folder to which a process that is ending may still write."""
    import shutil
    import time

    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.isdir(folder):
            return
        time.sleep(0.05)
