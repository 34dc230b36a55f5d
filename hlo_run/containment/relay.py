"""The worker's side of a supervisor: a line on which a worker asks for files and reports results and output."""

from __future__ import annotations

import _thread
import contextlib
import io
import marshal
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    from hlo_run.containment.crash import Crash

LENGTH = struct.Struct("<I")
# The kernel writes this many bytes to a pipe whole, also if a fork of the worker writes at the same time.
_ATOMIC_BYTES = 4096
_CHUNK_BYTES = _ATOMIC_BYTES - 64
_SECONDS_TO_LEAVE_A_CALLBACK = 0.05
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Kind(IntEnum):
    """The kinds of messages from a worker: (kind, value)."""

    DONE = 0
    """A file is finished: (number, what is kept about it)."""
    END = 1
    """The worker has finished: its exit code."""
    NEXT = 2
    """The worker wants the number of a file. The supervisor closes the worker's pipe if none is left."""
    OUTPUT = 3
    """Text for a stream: (its file descriptor, or AT_ONCE, bytes)."""
    CLAIMS = 4
    """The worker wants the names that earlier files claimed."""
    CLAIMED = 5
    """The worker claims a name for its file."""


AT_ONCE = 0
"""The stream of text for stdout that does not wait for the output of earlier files."""


@dataclass
class Relay:
    """A worker's line to its supervisor. Without a supervisor it counts the files itself.

    `earlier` has the results of finished files by number. `crash` tells how the last worker died, in the file `crashed` (-1:
    outside of the files). `runs` is False for the worker that only reports, `reports` for one of several that share the files,
    and `is_first` is True for the first worker of a command.
    """

    earlier: dict[int, object] = field(default_factory=dict[int, object])
    crash: Crash | None = None
    crashed: int = -1
    runs: bool = True
    reports: bool = True
    is_first: bool = True
    is_relayed: bool = False
    """True if the supervisor prints what the worker writes to stdout and stderr."""
    pipe: int = -1
    tasks: int = -1
    """The pipe on which numbers of files and claims come."""
    captured: int = -1
    """The file that holds what native code writes to stderr."""
    at_once: TextIO | None = None
    """Writes to stdout without waiting for the output of earlier files; None if stdout itself does."""
    _claims: list[str] = field(default_factory=list[str])

    def files(self, count: int) -> Iterator[int]:
        """Yield the numbers of the files to run, of `count` files."""
        if not self.runs:
            return
        if self.tasks < 0:
            yield from (number for number in range(count) if number not in self.earlier)
            return
        while True:
            send(self.pipe, Kind.NEXT, None)
            data = os.read(self.tasks, LENGTH.size)
            if not data:
                return
            yield LENGTH.unpack(data)[0]

    @contextlib.contextmanager
    def undisturbed(self) -> Generator[None]:
        """Let signals wait for the end of the block, so that all records of a file are written or none.

        A mask of signals would not do: it holds for one thread, and libraries have others.
        """
        _HELD.is_held = self.pipe >= 0
        try:
            yield
        finally:
            _HELD.is_held = False
        if _HELD.came:
            _interrupt()

    def done(self, number: int, value: object) -> None:
        """Keep the result of a finished file, a value that `marshal` can write, for other workers."""
        if self.pipe >= 0:
            self.show_captured()
            send(self.pipe, Kind.DONE, (number, value))

    def claim(self, choose: Callable[[Collection[str]], str]) -> str:
        """Return a name that no earlier file of the command has: `choose` maps their names to it.

        Waits until every earlier file has claimed its name or has ended, so that names do not depend on the number of workers.
        """
        if self.pipe >= 0:
            send(self.pipe, Kind.CLAIMS, None)
            size = LENGTH.unpack(_read(self.tasks, LENGTH.size))[0]
            self._claims += marshal.loads(_read(self.tasks, size))
        name = choose(self._claims)
        if self.pipe >= 0:
            send(self.pipe, Kind.CLAIMED, name)
        else:
            self._claims.append(name)
        return name

    def words(self) -> str:
        """Return what native code and child processes wrote to stderr since it was shown."""
        return captured_text(self.captured) if self.captured >= 0 else ""

    def show_captured(self) -> None:
        """Print what native code and child processes wrote to stderr."""
        if text := self.words():
            os.ftruncate(self.captured, 0)
            os.lseek(self.captured, 0, os.SEEK_SET)
            with contextlib.suppress(OSError):  # stderr is closed
                sys.stderr.write(text)
                sys.stderr.flush()

    def take_streams(self) -> None:
        """Lead Python's stdout and stderr to the supervisor if it prints them. Native code's stderr goes to `captured`."""
        if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - Python's value for a closed descriptor
            os.dup2(self.captured, 2)
            return
        # Asked before the descriptor is another file's: the console of a terminal has colours.
        is_terminal = sys.stderr.isatty()
        own = os.dup(2)
        os.dup2(self.captured, 2)
        if self.is_relayed:
            os.close(own)
            if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - Python's value for a closed descriptor
                self.at_once = _relayed(sys.stdout, self.pipe, AT_ONCE, sys.stdout.isatty())
                sys.stdout = _relayed(sys.stdout, self.pipe, 1, sys.stdout.isatty())
            sys.stderr = _relayed(sys.stderr, self.pipe, 2, is_terminal)
        else:
            # Open until the process ends.
            sys.stderr = open(own, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)  # noqa: SIM115


class _Relayed(io.RawIOBase):
    """A stream whose bytes the supervisor prints."""

    def __init__(self, pipe: int, stream: int, is_terminal: bool) -> None:
        self._pipe, self._stream, self._is_terminal = pipe, stream, is_terminal

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return self._stream or 1

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        for begin in range(0, len(view), _CHUNK_BYTES):
            send(self._pipe, Kind.OUTPUT, (self._stream, bytes(view[begin : begin + _CHUNK_BYTES])))
        return len(view)


def _relayed(stream: TextIO, pipe: int, number: int, is_terminal: bool) -> TextIO:
    raw = _Relayed(pipe, number, is_terminal)
    # Text that Python does not write line by line waits in the buffer until it is flushed.
    return io.TextIOWrapper(io.BufferedWriter(raw, 1 << 16), stream.encoding, stream.errors, line_buffering=number == 2)


@dataclass
class _Held:
    """The state of held signals: whether they wait, and whether one came meanwhile."""

    is_held: bool = False
    came: bool = False


_HELD = _Held()


def _interrupt() -> NoReturn:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def interrupt_once() -> None:
    """Raise KeyboardInterrupt at the first signal that asks this process to end. The supervisor passes its own signals on, and a
    terminal sends Ctrl-C to both."""

    def interrupt(_number: int, _frame: object) -> None:
        if _HELD.is_held:
            _HELD.came = True
        else:
            _interrupt()

    sys.unraisablehook = _interrupt_again
    for number in SIGNALS:
        # The supervisor passes signals on as SIGTERM.
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise KeyboardInterrupt once more if it came in a callback or a finaliser, which Python leaves without raising it."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGINT, lambda _number, _frame: _interrupt())
    _thread.start_new_thread(_interrupt_soon, (_thread.get_ident(),))


def _interrupt_soon(thread: int) -> None:
    # Python calls the hook of the lost interrupt where nothing can be raised, so it has to return first.
    time.sleep(_SECONDS_TO_LEAVE_A_CALLBACK)
    signal.pthread_kill(thread, signal.SIGINT)  # a real signal, which also ends a wait in the system


def send(pipe: int, kind: Kind, value: Any) -> None:
    """Write a message to the supervisor."""
    data = marshal.dumps((int(kind), value))
    data = LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]


def messages(received: bytearray) -> Iterator[tuple[int, object]]:
    """Remove the whole messages from the front of `received`, and yield them."""
    at = 0
    while len(received) >= at + LENGTH.size:
        (size,) = LENGTH.unpack_from(received, at)
        if len(received) < at + LENGTH.size + size:
            break
        yield marshal.loads(received[at + LENGTH.size : at + LENGTH.size + size])
        at += LENGTH.size + size
    del received[:at]


def captured_text(captured: int) -> str:
    """Return the text that native code wrote to stderr."""
    return os.pread(captured, os.fstat(captured).st_size, 0).decode(errors="replace")


def _read(pipe: int, size: int) -> bytes:
    """Read exactly `size` bytes."""
    data = b""
    while len(data) < size:
        data += os.read(pipe, size - len(data)) or _gone()
    return data


def _gone() -> NoReturn:
    raise KeyboardInterrupt  # the supervisor is ending
