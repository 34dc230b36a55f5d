"""Runs independent pieces of work in several processes. Threads would not be faster, because Python has a global lock."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct, field

from hlo_run.containment.board import Board, at_place, board_for, join_board
from hlo_run.containment.children import drop_standard_streams, end_with_parent
from hlo_run.errors import HloRunError, InternalError
from hlo_run.garbage_collection import leave_to_parent

T = TypeVar("T")

_NUMBER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
# A pipe takes this many numbers even if no process reads from it.
_PIPE_NUMBERS = 1000
_CHUNK_BYTES = 1 << 16
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


_sharing = 1


def share_cores(processes: int) -> None:
    """Leave a share of the cores to other processes that do the same work."""
    global _sharing
    _sharing = max(1, processes)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // _sharing)


def can_fork() -> bool:
    """True if this process can fork, so that the copies need not import and parse again.

    A fork has only the thread that made it. A lock that another thread of JAX or of a caller holds would never be released.
    """
    if "jaxlib" in sys.modules or threading.current_thread() is not threading.main_thread() or _is_copy:
        return False
    processes = sys.modules.get("multiprocessing")  # a caller's daemon must have no children
    return hasattr(os, "fork") and (processes is None or not processes.current_process().daemon)


_is_copy = False


def run_in_processes(
    count: int, work: Callable[[int], T], workers: int, progress: Callable[[int], None] | None = None
) -> list[T]:
    """Return `work(0)` to `work(count - 1)`, computed by up to `workers` forks. Results must be picklable, `work` need not be.
    `progress` is called with the number of finished pieces.

    Raises the HloRunError of the first piece that failed. If a process dies, raises the error that describes its end.
    """
    size = min(workers, count)
    board = board_for(size)
    pieces = -(-count // _PIPE_NUMBERS)  # how many pieces a process takes at a time
    taking, giving = os.pipe()
    running: dict[int, _Copy] = {}
    try:
        for row in range(1, size + 1):
            board.clear(row)
            copy = _start(lambda pipe: _work(lambda: _take(taking, count, pieces), work, pipe), board, row, giving)
            running[copy.pipe] = copy
        os.close(taking)
        for first in range(0, count, pieces):
            os.write(giving, _NUMBER.pack(first))
        os.close(giving)
        giving = -1
        done = _collect(running, progress)
    finally:
        if giving >= 0:
            os.close(giving)
        for copy in running.values():
            copy.end()
    death = _death(list(running.values()), board)
    for row in range(1, size + 1):
        board.clear(row)  # a copy that was killed did not
    results: list[T] = []
    for number in range(count):
        if number not in done:
            raise death or InternalError(f"no process took piece {number}")
        result = done[number]
        if isinstance(result, HloRunError):
            raise result
        results.append(result)
    return results


class _Copy(Struct):
    """A fork of this process: its number, its row of the board, and the pipe of its results."""

    pid: int
    row: int
    pipe: int
    is_finished: bool = False
    """True once it has sent its last result."""
    has_died: bool = False
    """True if its pipe was closed before."""
    code: int = 0
    received: bytearray = field(default_factory=bytearray)

    def end(self) -> None:
        """Kill it if it has not ended."""
        os.close(self.pipe)
        os.kill(self.pid, signal.SIGKILL)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Assistant:
    """A fork of this process that gets ready while this process goes on, and then answers requests."""

    def __init__(self, prepare: Callable[[], None], work: Callable[[Any], object]) -> None:
        """Start it: it calls `prepare`, then `work` with each request. Requests and answers must be picklable."""
        taking, self._giving = os.pipe()

        def answer(pipe: int) -> None:
            prepare()
            while (request := _read(taking)) is not None:
                try:
                    _send(pipe, (work(request),))
                except HloRunError as error:
                    _send(pipe, (error,))

        board = board_for(1)
        board.clear(1)
        self._copy = _start(answer, board, 1, self._giving)
        os.close(taking)

    def ask(self, request: object) -> Any:
        """Return the answer to a request, or None if the fork died. Raises the HloRunError that `work` raised."""
        try:
            _send(self._giving, request)
        except BrokenPipeError:
            return None
        (answer,) = _read(self._copy.pipe) or (None,)
        if isinstance(answer, HloRunError):
            raise answer
        return answer

    def end(self) -> None:
        """End the fork."""
        os.close(self._giving)
        self._copy.end()


def _start(run: Callable[[int], None], board: Board, row: int, giving: int) -> _Copy:
    """Run `run` with the pipe of results in a fork, which closes `giving`."""
    reading, writing = os.pipe()
    parent = os.getpid()
    # No signal may unwind the copy into the code of this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    with warnings.catch_warnings():
        # From 3.12 on Python warns about other threads, such as numpy's. The fork does not need their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
        return _Copy(pid, row, reading)
    try:
        os.close(reading)
        os.close(giving)
        _become_copy(parent, board, row)
        run(writing)
    except BaseException as error:  # nothing may unwind the copy into the parent's code
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def _become_copy(parent: int, board: Board, row: int) -> None:
    """Leave signals to the parent, and end when it ends."""
    global _is_copy
    _is_copy = True
    leave_to_parent()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    end_with_parent(parent)
    drop_standard_streams()
    join_board(board, row)


def _take(taking: int, count: int, pieces: int) -> list[int]:
    """Return the numbers of the next pieces; none at the end."""
    data = os.read(taking, _NUMBER.size)
    if not data:
        return []
    (first,) = _NUMBER.unpack(data)
    return list(range(first, min(first + pieces, count)))


def _work(take: Callable[[], list[int]], work: Callable[[int], object], pipe: int) -> None:
    """Work on pieces until none is left or one fails. Then all pieces before it are already taken."""
    while numbers := take():
        for number in numbers:
            at_place(f"piece {number}")
            try:
                result = work(number)
            except HloRunError as error:
                result = error
                while take():
                    pass
            _send(pipe, (number, result))
            if isinstance(result, HloRunError):
                break
    _send(pipe, (-1, None))


def _send(pipe: int, message: object) -> None:
    import pickle  # numpy needs it as well

    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(pipe, view) :]


def _read(pipe: int) -> Any:
    """Return the next message that `_send` wrote, or None if the other side has closed the pipe."""
    import pickle

    received = bytearray()
    while len(received) < _LENGTH.size or len(received) < _LENGTH.size + _LENGTH.unpack_from(received)[0]:
        data = os.read(pipe, _CHUNK_BYTES)
        if not data:
            return None
        received += data
    return pickle.loads(received[_LENGTH.size :])


def _collect(running: dict[int, _Copy], progress: Callable[[int], None] | None) -> dict[int, Any]:
    """Return the results by piece. Receive until all processes have finished, or one has died."""
    import pickle
    import select

    done: dict[int, Any] = {}
    receiving = dict(running)
    while receiving:
        if progress is not None:
            progress(len(done))
        for pipe in select.select(list(receiving), [], [])[0]:
            copy = receiving[pipe]
            data = os.read(pipe, _CHUNK_BYTES)
            copy.received += data
            while len(copy.received) >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(copy.received)
                if len(copy.received) < _LENGTH.size + size:
                    break
                number, result = pickle.loads(copy.received[_LENGTH.size : _LENGTH.size + size])
                del copy.received[: _LENGTH.size + size]
                if number < 0:
                    copy.is_finished = True
                else:
                    done[number] = result
            if not data:
                del receiving[pipe]
                copy.has_died = not copy.is_finished
                if copy.has_died:
                    return done
    return done


def _death(copies: list[_Copy], board: Board) -> HloRunError | None:
    """Return the error of the process that died by itself, if one did."""
    dead = next((copy for copy in copies if copy.has_died), None)
    if dead is None:
        return None
    from hlo_run.containment.crash import Crash, captured_words, crash_error

    return crash_error(Crash(dead.code, board.place(dead.row), board.step(dead.row), captured_words()))
