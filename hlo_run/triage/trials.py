"""Runs work in forks of a warm process: a fork has all imports, may crash or hang, and costs milliseconds."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from hlo_run.containment.board import Board, join_board
from hlo_run.containment.children import drop_standard_streams, end_with_parent, temporary_folder
from hlo_run.containment.crash import signal_name
from hlo_run.containment.progress import Progress
from hlo_run.execution.signatures import crash_signature, timeout_signature
from hlo_run.garbage_collection import leave_to_parent

T = TypeVar("T")

# Modules with threads or locks that a fork must not inherit.
_NOT_BEFORE_FORKS = ("jax", "pycuda", "cuda")
_OURS = ("hlo_run", "numpy", "xdsl", "llvmlite", "ml_dtypes", "scipy")


class Ended(Struct, frozen=True):
    """The end of a fork: the value that its work returned, or the bucket of the crash or time-out that ended it."""

    value: Any = None
    bucket: str = ""
    seconds: float = 0.0


class _Running(Struct):
    process: int
    pipe: int
    number: int
    since: float
    data: bytearray
    board: Board
    row: int

    @property
    def stage(self) -> str:
        """The work of the fork: the step in native code, else the row of the pass tables, else `run`."""
        step = self.board.step(self.row)
        place = step.stage if step is not None else self.board.place(self.row).partition(",")[0]
        return place or "run"


@contextlib.contextmanager
def trial_folder() -> Generator[Path]:
    """Return a context with a folder for the files of trials. Their temporary files go there too, so killed trials leave none."""
    before = tempfile.tempdir
    with temporary_folder("hlo-tool-") as folder:
        tempfile.tempdir = str(folder)
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def run_forks(
    works: Sequence[Callable[[], object]],
    jobs: int,
    limit_seconds: float,
    is_enough: Callable[[Ended], bool] = lambda ended: False,
    progress: Progress | None = None,
) -> list[Ended | None]:
    """Run each of `works` in a separate fork, `jobs` at a time, and return how they ended, in order.

    After an end that `is_enough`, later works are stopped or do not start: None. Earlier ones still finish. A fork that runs for
    `limit_seconds` is killed with its children. Results must be picklable. `progress` shows how many have ended.
    """
    ended: list[Ended | None] = [None] * len(works)
    running: dict[int, _Running] = {}
    following, last = 0, len(works)
    # Row 0 is that of a process whose compile workers have the other rows.
    board = Board(jobs + 1)
    free = list(range(1, jobs + 1))
    progress = progress or Progress()
    try:
        while running or following < last:
            while len(running) < jobs and following < last:
                started = _start(works[following], following, board, free.pop())
                running[started.pipe] = started
                following += 1
            now = time.monotonic()
            wait = min((each.since + limit_seconds - now for each in running.values()), default=0.0)
            ready, _, _ = select.select(list(running), [], [], progress.draw(max(wait, 0.0)))
            for each in [running[pipe] for pipe in ready if _has_ended(running[pipe])]:
                if running.pop(each.pipe, None) is None:  # stopped by an earlier end of this round
                    continue
                ended[each.number] = end = _collect(each)
                progress.trials += 1
                free.append(each.row)
                if is_enough(end) and each.number < last:
                    last = each.number
                    for other in [other for other in running.values() if other.number > last]:
                        del running[other.pipe]
                        _kill(other)
                        free.append(other.row)
            for each in [each for each in running.values() if time.monotonic() - each.since >= limit_seconds]:
                del running[each.pipe]
                _kill(each)
                free.append(each.row)
                progress.trials += 1
                ended[each.number] = end = Ended(None, timeout_signature(each.stage).bucket, limit_seconds)
                if is_enough(end) and each.number < last:
                    last = each.number
    finally:
        for each in running.values():
            _kill(each)
    return [end if number <= last else None for number, end in enumerate(ended)]


def run_fork(work: Callable[[], object], limit_seconds: float, progress: Progress | None = None) -> Ended:
    """Run one piece of work in a fork."""
    (end,) = run_forks([work], 1, limit_seconds, progress=progress)
    assert end is not None, "a single piece always ends"
    return end


def with_modules(work: Callable[[], T]) -> tuple[T, list[str]]:
    """Do the work of a fork. Return its result, and the modules it has imported that its parent should import for later forks."""
    before = set(sys.modules)
    result = work()
    names = [name for name in sys.modules if name not in before and name.partition(".")[0] in _OURS]
    return result, [name for name in names if not name.startswith(_NOT_BEFORE_FORKS)]


def import_all(names: Iterable[str]) -> None:
    """Import modules, so that forks need not. Modules that cannot be imported are left out."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _start(work: Callable[[], object], number: int, board: Board, row: int) -> _Running:
    board.clear(row)
    reading, writing = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # JAX warns of its threads, Python from 3.12 on of any. A trial needs none of them.
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if not process:
        leave_to_parent()
        os.close(reading)
        join_board(board, row)
        _work(work, writing, parent)
    os.close(writing)
    with contextlib.suppress(OSError):
        os.setpgid(process, process)  # the fork does the same; the first of the two wins
    return _Running(process, reading, number, time.monotonic(), bytearray(), board, row)


def _work(work: Callable[[], object], pipe: int, parent: int) -> NoReturn:
    """Do the work, send its result, and end the process. An exception ends it with exit code 70."""
    code = 70
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        end_with_parent(parent)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        drop_standard_streams(keep_stderr=False)
        data = pickle.dumps(work())
        with os.fdopen(pipe, "wb") as stream:
            stream.write(data)
        code = 0
    finally:
        os._exit(code)


def _has_ended(running: _Running) -> bool:
    """Read what the fork has sent, and return True at its end."""
    data = os.read(running.pipe, 1 << 20)
    running.data += data
    return not data


def _collect(running: _Running) -> Ended:
    os.close(running.pipe)
    _, status = os.waitpid(running.process, 0)
    seconds = time.monotonic() - running.since
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return Ended(None, crash_signature(signal_name(-code), running.stage).bucket, seconds)
    if code or not running.data:
        return Ended(None, crash_signature(f"exit code {code}", running.stage).bucket, seconds)
    return Ended(pickle.loads(bytes(running.data)), "", seconds)


def _kill(running: _Running) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(running.process, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.close(running.pipe)
    with contextlib.suppress(OSError):
        os.waitpid(running.process, 0)
