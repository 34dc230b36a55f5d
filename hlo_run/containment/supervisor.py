"""The supervisor: a small process that starts a worker for the files of a command, and a new one when the worker dies.

The worker is a fork made before numpy, LLVM and threads exist, so it costs a millisecond. It does all the work and prints. The
supervisor only waits: it ends a worker that takes too long, passes signals on, and keeps what is to be reported. A worker ends
when the supervisor ends, whatever ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import marshal
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from hlo_run.containment.board import Board, join_board, rows_wanted
from hlo_run.containment.children import end_with_parent, end_with_pipe

if TYPE_CHECKING:
    from hlo_run.containment.crash import Crash

INTERRUPTED_CODE = 130
_BUG_CODE = 70
# Time for a worker to unwind after a signal.
_GRACE_SECONDS = 1.5
_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_DONE, _END = 0, 1


@dataclass
class Relay:
    """A worker's line to its supervisor.

    `earlier` has the values that earlier workers passed to `done`, one per finished file. `crash` tells how the last worker died,
    in the file after those.
    """

    earlier: list[Any] = field(default_factory=list[Any])
    crash: Crash | None = None
    pipe: int = -1
    captured: int = -1
    """The file that holds what native code writes to stderr."""

    def done(self, value: Any) -> None:
        """Keep the result of a finished file, a value that `marshal` can write, for the workers after this one."""
        if self.pipe >= 0:
            self.show_captured()
            _send(self.pipe, (_DONE, value))

    def words(self) -> str:
        """Return what native code and child processes wrote to stderr since it was shown."""
        return _words(self.captured) if self.captured >= 0 else ""

    def show_captured(self) -> None:
        """Print what native code and child processes wrote to stderr."""
        if text := self.words():
            os.ftruncate(self.captured, 0)
            os.lseek(self.captured, 0, os.SEEK_SET)
            sys.stderr.write(text)
            sys.stderr.flush()


class _Stopped(BaseException):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def supervise(work: Callable[[Relay], int], limit_seconds: float = 0.0) -> int:
    """Run `work` in a worker process and return its exit code. Start another worker when one dies.

    `limit_seconds` is the value of --timeout, for messages; `board.limited` sets the limits. Returns 130 after SIGINT. After
    SIGTERM or SIGHUP this process ends by that signal.
    """
    board, captured = Board(rows_wanted()), _anonymous_file()
    relay = Relay(captured=captured)
    try:
        with _signals_raise():
            while True:
                worker = _start(work, board, relay)
                worker.wait(limit_seconds)
                if worker.end is not None:
                    return worker.end
                again = relay.crash is not None and not worker.values
                relay.crash = worker.crash(captured)
                relay.earlier += worker.values
                if again:
                    sys.stderr.write(f"internal error: hlo-run died with {relay.crash.how} while it reported a crash\n")
                    return _BUG_CODE
    except _Stopped as stopped:
        if stopped.number != signal.SIGINT:
            signal.signal(stopped.number, signal.SIG_DFL)
            os.kill(os.getpid(), stopped.number)
        return INTERRUPTED_CODE


def _start(work: Callable[[Relay], int], board: Board, relay: Relay) -> _Worker:
    """Fork a worker."""
    for row in range(board.rows):
        board.clear(row)
    os.ftruncate(relay.captured, 0)
    reading, writing = os.pipe()
    lifeline = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.close(lifeline[1])
        _work(work, board, Relay(relay.earlier, relay.crash, writing, relay.captured), parent, lifeline[0])
    os.close(writing)
    os.close(lifeline[0])
    worker = _Worker(child, reading, lifeline[1], board)
    # A signal that came since raises here; `wait` would have ended the worker.
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    except BaseException:  # an interrupt too ends the worker
        worker.stop()
        raise
    return worker


@dataclass
class _Worker:
    """A running worker, from its supervisor's side."""

    pid: int
    pipe: int
    lifeline: int
    board: Board
    values: list[Any] = field(default_factory=list[Any])
    end: int | None = None
    """The exit code if the worker finished."""
    status: int = 0
    limit_seconds: float = 0.0
    """Not 0 if the supervisor ended the worker because it took longer."""
    _received: bytearray = field(default_factory=bytearray)

    def wait(self, limit_seconds: float) -> None:
        """Receive until the worker ends. Raises _Stopped after a signal, when the worker has ended."""
        try:
            while not self._ended(_POLL_SECONDS if limit_seconds else None):
                deadline = self.board.deadline(0)
                if limit_seconds and deadline and time.monotonic() > deadline:
                    self.limit_seconds = limit_seconds
                    os.kill(self.pid, signal.SIGKILL)
                    break
            self._reap()
        except BaseException:  # an interrupt too ends the worker
            self.stop()
            raise

    def stop(self) -> None:
        """Ask the worker to end, and kill it after some time."""
        with contextlib.suppress(_Stopped):  # a second signal kills it at once
            os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + _GRACE_SECONDS
            while (left := deadline - time.monotonic()) > 0 and not self._ended(left):
                pass
            if self.end is None:
                sys.stderr.write("interrupted\n")
                sys.stderr.flush()
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def crash(self, captured: int) -> Crash:
        """Describe the worker's death."""
        from hlo_run.containment.crash import Crash

        return Crash(self.status, self.board.place(0), self.board.longest(), _words(captured), self.limit_seconds)

    def _ended(self, seconds: float | None) -> bool:
        """Receive for at most `seconds`. Return True once the worker has closed its end of the pipe."""
        if not select.select([self.pipe], [], [], seconds)[0]:
            return False
        data = os.read(self.pipe, _CHUNK_BYTES)
        self._received += data
        received = self._received
        while len(received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received)
            if len(received) < _LENGTH.size + size:
                break
            kind, value = marshal.loads(received[_LENGTH.size : _LENGTH.size + size])
            del received[: _LENGTH.size + size]
            if kind == _DONE:
                self.values.append(value)
            else:
                self.end = value
        return not data

    def _reap(self) -> None:
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pipe)
        os.close(self.lifeline)


@contextmanager
def _signals_raise() -> Generator[None]:
    """Raise _Stopped at the signals that end a process, except those that are ignored."""

    def stop(number: int, _frame: Any) -> NoReturn:
        raise _Stopped(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- the worker's side ----------------------------------------------------------------------------------------------


def _work(work: Callable[[Relay], int], board: Board, relay: Relay, parent: int, lifeline: int) -> NoReturn:
    """Do the work in the worker, and end the process without taking down the interpreter, which takes time."""
    code = _BUG_CODE
    try:
        _interrupt_once()
        if sys.platform.startswith("linux"):
            end_with_parent(parent)
        else:
            end_with_pipe(lifeline)
        join_board(board, 0)
        sys.stderr = _apart(sys.stderr, relay.captured)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            code = work(relay)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        _finish(relay)
        _send(relay.pipe, (_END, code))
    except BaseException as error:  # nothing may unwind the worker into the supervisor's code
        if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
            # A signal came. Code that was interrupted, such as an import of numpy, may raise something else.
            os.ftruncate(relay.captured, 0)
            sys.stderr.write("interrupted\n")
            code = INTERRUPTED_CODE
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        with contextlib.suppress(BaseException):
            _finish(relay)
            _send(relay.pipe, (_END, code))
    os._exit(code & 0xFF)


def _finish(relay: Relay) -> None:
    """Do what the interpreter does at its end."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]: the only way to run them without ending the interpreter
    relay.show_captured()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.flush()


def _interrupt_once() -> None:
    """Raise KeyboardInterrupt at the first signal that asks this process to end. The supervisor passes its own signals on, and a
    terminal sends Ctrl-C to both."""

    def interrupt(_number: int, _frame: Any) -> NoReturn:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        # The supervisor passes signals on as SIGTERM.
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _apart(stream: io.TextIOBase | Any, captured: int) -> Any:
    """Return a copy of stderr for Python. What native code and child processes write to stderr goes to the file `captured`."""
    own = os.dup(2)
    os.dup2(captured, 2)
    return open(own, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)


def _send(pipe: int, message: tuple[int, Any]) -> None:
    data = marshal.dumps(message)
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]


def _words(captured: int) -> str:
    """Return the text that native code wrote to stderr."""
    return os.pread(captured, os.fstat(captured).st_size, 0).decode(errors="replace")


def _anonymous_file() -> int:
    """Return a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hlo-run-stderr")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
