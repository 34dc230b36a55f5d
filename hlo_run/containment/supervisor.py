"""The supervisor: a small process that starts workers for the files of a command, and a new one when a worker dies.

A worker is a fork made before numpy, LLVM and threads exist, so it costs a millisecond. It does the work. The supervisor only
waits: it hands out the files, ends a worker that takes too long, passes signals on, and keeps what is to be reported. One worker
alone prints by itself, except to a terminal. Otherwise the supervisor prints: the output of workers in the order of the files,
and the line of progress. A worker ends when the supervisor ends, whatever ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from hlo_run.containment.board import Board, join_board, rows_wanted
from hlo_run.containment.children import end_with_parent, end_with_pipe
from hlo_run.containment.progress import ProgressLine, shows_progress
from hlo_run.containment.relay import AT_ONCE, LENGTH, SIGNALS, Kind, Relay, captured_text, interrupt_once, messages, send
from hlo_run.garbage_collection import leave_to_parent

if TYPE_CHECKING:
    from hlo_run.containment.crash import Crash

INTERRUPTED_CODE = 130
_BUG_CODE = 70
_USAGE_CODE = 2
_READER_LEFT_CODE = 141
# Time for a worker to unwind after a signal.
_GRACE_SECONDS = 1.5
_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 16


class _Stopped(BaseException):
    """The command ends before its files do: a signal came, stdout cannot be written, or a worker failed outside of the files."""

    def __init__(self, code: int, number: int = 0, text: str = "") -> None:
        super().__init__(code)
        self.code, self.number, self.text = code, number, text


def supervise(work: Callable[[Relay], int], limit_seconds: float = 0.0, files: Sequence[str] = (), jobs: int = 1) -> int:
    """Run `work` in `jobs` worker processes that share `files`, and return its exit code. Start another worker when one dies.

    `limit_seconds` is the value of --timeout, for messages; `board.limited` sets the limits. Returns 130 after SIGINT. After
    SIGTERM or SIGHUP this process ends by that signal.
    """
    supervisor = _Supervisor(work, limit_seconds, files, max(1, min(jobs, len(files))))
    try:
        with _signals_raise():
            return supervisor.run()
    except _Stopped as stopped:
        if stopped.text:
            _say(stopped.text)
        if stopped.number not in (0, signal.SIGINT):
            signal.signal(stopped.number, signal.SIG_DFL)
            os.kill(os.getpid(), stopped.number)
        return stopped.code


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Let signals wait for the end of the block."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@dataclass
class _Worker:
    """A running worker, from its supervisor's side."""

    pid: int
    pipe: int
    tasks: int
    lifeline: int
    board: Board
    relay: Relay
    file: int = -1
    """The number of the file that it works on; -1: none."""
    end: int | None = None
    """The exit code if the worker finished."""
    status: int = 0
    has_done: bool = False
    limit_seconds: float = 0.0
    """Not 0 if the supervisor ended the worker because it took longer."""
    claims_sent: int = 0
    """It knows the claims of the files before this number."""
    waits_for_claims: bool = False
    received: bytearray = field(default_factory=bytearray)

    @property
    def ends(self) -> tuple[int, int, int]:
        """The supervisor's ends of the pipes."""
        return self.pipe, self.tasks, self.lifeline

    def crash(self) -> Crash:
        """Describe the worker's death."""
        from hlo_run.containment.crash import Crash

        words = captured_text(self.relay.captured)
        return Crash(self.status, self.board.place(0), self.board.longest(), words, self.limit_seconds)


@dataclass
class _Supervisor:
    work: Callable[[Relay], int]
    limit_seconds: float
    files: Sequence[str]
    jobs: int
    results: dict[int, object] = field(default_factory=dict[int, object])
    workers: list[_Worker] = field(default_factory=list[_Worker])
    relays: bool = False
    """True if this process prints what workers write."""
    line: ProgressLine | None = None
    has_begun: bool = False
    """True once a worker asked for a file: the flags are valid."""
    drops_output: bool = False
    _next: int = 0
    _first_open: int = 0
    """The first file that has not ended, whose output is printed as it comes."""
    _waiting: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict[int, list[tuple[int, bytes]]])
    _claims: dict[int, str] = field(default_factory=dict[int, str])

    def run(self) -> int:
        """Run all files and return the exit code. Raises _Stopped."""
        if shows_progress():
            self.line = ProgressLine(self._progress)
        self.relays = self.jobs > 1 or self.line is not None
        try:
            code = self._run(Relay(reports=self.jobs == 1))
        except _Stopped as stopped:
            self._stop(stopped)
            if self.jobs > 1 and self.has_begun:
                self._run(Relay(runs=False, is_first=False))
            raise
        except BaseException:  # nothing may leave workers behind
            self._kill()
            raise
        finally:
            self._clear_line()
        return code if self.jobs == 1 or not self.has_begun else self._run(Relay(runs=False, is_first=False))

    def _run(self, first: Relay) -> int:
        """Run workers until all have ended, and return the exit code of the last one. Raises _Stopped."""
        code = 0
        try:
            self._start(first, Board(rows_wanted()))
            while self.workers:
                self._receive(None)
                for worker in [worker for worker in self.workers if worker.pipe < 0]:
                    self.workers.remove(worker)
                    if worker.end is None:
                        self._start_after(worker)
                    else:
                        code = worker.end
                    os.close(worker.relay.captured)
                    if code and not first.reports:
                        raise _Stopped(code)
        except BaseException:
            if not first.runs:  # a signal while the reports are written
                self._kill()
            raise
        finally:
            self._clear_line()
        return code

    def _start_after(self, dead: _Worker) -> None:
        """Start a worker that reports the death of another one, and goes on with the next file."""
        crash = dead.crash()
        if dead.relay.crash is not None and not dead.has_done:
            raise _Stopped(_BUG_CODE, text=f"internal error: hlo-run died with {crash.how} while it reported a crash")
        relay = Relay(crash=crash, crashed=dead.file, runs=dead.relay.runs, reports=dead.relay.reports, is_first=False)
        self._start(relay, dead.board)

    def _start(self, relay: Relay, board: Board) -> None:
        """Fork a worker."""
        for row in range(board.rows):
            board.clear(row)
        relay.earlier, relay.is_relayed, relay.captured = self.results, self.relays, _anonymous_file()
        (reading, relay.pipe), (relay.tasks, tasks), (lifeline, own_lifeline) = os.pipe(), os.pipe(), os.pipe()
        parent = os.getpid()
        sys.stdout.flush() if sys.stdout is not None else None  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.flush() if sys.stderr is not None else None  # pyright: ignore[reportUnnecessaryComparison]
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child = os.fork()
        if child == 0:
            # A worker would keep the pipes of the others open.
            for end in (reading, tasks, own_lifeline, *(end for worker in self.workers for end in worker.ends)):
                if end >= 0:
                    os.close(end)
            _work(self.work, board, relay, parent, lifeline)
        for end in (relay.pipe, relay.tasks, lifeline):
            os.close(end)
        self.workers.append(_Worker(child, reading, tasks, own_lifeline, board, relay, relay.crashed))
        # A signal that came since raises here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _receive(self, seconds: float | None) -> None:
        """Receive from all workers once, for at most `seconds`, and reap those that have ended: their pipe becomes -1."""
        if self.limit_seconds:
            seconds = min(seconds or _POLL_SECONDS, _POLL_SECONDS)
        if self.line is not None and not self.drops_output:
            self.line.draw()
            wait = max(self.line.wait_seconds(), 0.01)
            seconds = wait if seconds is None else min(seconds, wait)
        running = {worker.pipe: worker for worker in self.workers if worker.pipe >= 0}
        for pipe in select.select(list(running), [], [], seconds)[0]:
            worker = running[pipe]
            if not self._read(worker):
                self._reap(worker)
        self._answer_claims()
        for worker in running.values():
            deadline = worker.board.deadline(0)
            if self.limit_seconds and worker.pipe >= 0 and deadline and time.monotonic() > deadline:
                worker.limit_seconds = self.limit_seconds
                os.kill(worker.pid, signal.SIGKILL)

    def _read(self, worker: _Worker) -> bool:
        """Read once from a worker's pipe, and do what it says. Return False at its end."""
        with _signals_blocked():  # one that came between would lose what was read
            data = os.read(worker.pipe, _CHUNK_BYTES)
            worker.received += data
        self._do(worker)
        return bool(data)

    def _do(self, worker: _Worker) -> None:
        """Do what the messages of a worker say. Those that a signal interrupts stay, and are done again."""
        for kind, value in messages(worker.received):
            self._message(worker, kind, value)

    def _message(self, worker: _Worker, kind: int, value: Any) -> None:
        match kind:
            case Kind.DONE:
                number, self.results[value[0]] = value
                worker.has_done, worker.file = True, -1
                self._print_waiting(number)
            case Kind.END:
                worker.end = value
            case Kind.NEXT:
                self._give(worker)
            case Kind.OUTPUT:
                self._output(worker, *value)
            case Kind.CLAIMS:
                worker.waits_for_claims = True
            case _:
                self._claims[worker.file] = value

    def _give(self, worker: _Worker) -> None:
        """Give a worker its next file. The first question starts the other workers: by then the flags are known to be valid."""
        if self._next < len(self.files):
            worker.file = self._next
            self._next += 1
            with contextlib.suppress(BrokenPipeError):  # it has died since
                os.write(worker.tasks, LENGTH.pack(worker.file))
        elif worker.tasks >= 0:
            os.close(worker.tasks)
            worker.tasks = -1
        if not self.has_begun:
            self.has_begun = True
            for _ in range(self.jobs - 1):
                self._start(Relay(reports=False, is_first=False), Board(rows_wanted()))

    def _answer_claims(self) -> None:
        """Answer the workers before whose files every file has claimed its name or has ended."""
        for worker in self.workers:
            if not worker.waits_for_claims or any(
                number not in self.results and number not in self._claims for number in range(self._first_open, worker.file)
            ):
                continue
            worker.waits_for_claims = False
            new = range(worker.claims_sent, worker.file)
            known = [self._claims[number] for number in new if number in self._claims]
            worker.claims_sent = max(worker.claims_sent, worker.file)
            data = marshal.dumps(known)
            with contextlib.suppress(BrokenPipeError):
                os.write(worker.tasks, LENGTH.pack(len(data)) + data)

    # ---- output ------------------------------------------------------------------------------------------------------

    def _output(self, worker: _Worker, stream: int, data: bytes) -> None:
        """Print what a worker wrote, or keep it until the output of the files before is complete."""
        if self.drops_output and not worker.relay.reports:
            return
        if stream == AT_ONCE or worker.file <= self._first_open:
            self._print(stream, data)
        else:
            self._waiting.setdefault(worker.file, []).append((stream, data))

    def _print_waiting(self, number: int) -> None:
        """Print what waited for the end of file `number`."""
        while self._first_open in self.results:
            self._first_open += 1
            for stream, data in self._waiting.pop(self._first_open, ()):
                self._print(stream, data)

    def _print(self, stream: int, data: bytes) -> None:
        """Write to stdout or stderr. Raises _Stopped if stdout cannot be written."""
        self._clear_line()
        try:
            descriptor = 2 if stream == 2 else 1
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            if stream == 2:  # the exit code is left to tell what happened
                return
            if isinstance(error, BrokenPipeError):
                raise _Stopped(_READER_LEFT_CODE) from None
            raise _Stopped(_USAGE_CODE, text=f"error: stdout cannot be written: {error.strerror or error}") from None

    def _progress(self) -> str:
        """Return the text of the line of progress."""
        doing: list[str] = []
        for worker in self.workers:
            file = f"{os.path.basename(self.files[worker.file])}: " if worker.file >= 0 else ""
            activity = worker.board.activity(0) or "preparing"
            # A line has no room for the details of several workers.
            doing.append(file + (activity if len(self.workers) == 1 else activity.partition(",")[0]))
        files = f"{len(self.results)} of {len(self.files)} files; " if len(self.files) > 1 else ""
        return files + "; ".join(doing)

    def _clear_line(self) -> None:
        if self.line is not None:
            self.line.clear()

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _stop(self, why: _Stopped) -> None:
        """Ask the workers to end, kill them after some time, and print the output of files that had ended."""
        self._clear_line()
        self.drops_output = True
        with contextlib.suppress(_Stopped):  # a second signal kills them at once
            for worker in self.workers:
                if worker.pipe >= 0:
                    os.kill(worker.pid, signal.SIGTERM)
            for worker in self.workers:
                self._do(worker)  # a result may have come with the message at which the signal came
            deadline = time.monotonic() + _GRACE_SECONDS
            while (seconds := deadline - time.monotonic()) > 0 and any(worker.pipe >= 0 for worker in self.workers):
                self._receive(seconds)
        left = [worker for worker in self.workers if worker.end is None]
        self._kill()
        with contextlib.suppress(_Stopped):
            for number in sorted(self._waiting.keys() & self.results.keys()):
                for stream, data in self._waiting[number]:
                    self._print(stream, data)
        if why.number and (left or self.jobs > 1):
            _say("interrupted")

    def _kill(self) -> None:
        """End all workers."""
        for worker in self.workers:
            if worker.pipe >= 0:
                os.kill(worker.pid, signal.SIGKILL)
                with contextlib.suppress(_Stopped):
                    while select.select([worker.pipe], [], [], 0)[0] and self._read(worker):
                        pass
                self._reap(worker)
        self.workers.clear()

    def _reap(self, worker: _Worker) -> None:
        for end in worker.ends:
            if end >= 0:
                os.close(end)
        worker.pipe = worker.tasks = worker.lifeline = -1
        worker.status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])


@contextmanager
def _signals_raise() -> Generator[None]:
    """Raise _Stopped at the signals that end a process, except those that are ignored."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise _Stopped(INTERRUPTED_CODE, number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
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
        leave_to_parent()
        interrupt_once()
        if sys.platform.startswith("linux"):
            end_with_parent(parent)
        else:
            end_with_pipe(lifeline)
        join_board(board, 0)
        relay.take_streams()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            code = work(relay)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        _finish(relay)
        send(relay.pipe, Kind.END, code)
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
            send(relay.pipe, Kind.END, code)
    os._exit(code & 0xFF)


def _finish(relay: Relay) -> None:
    """Do what the interpreter does at its end."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]: the only way to run them without ending the interpreter
    relay.show_captured()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(OSError):  # the exit code is left to tell what happened
        sys.stderr.flush()


def _say(text: str) -> None:
    """Print a line to stderr."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _anonymous_file() -> int:
    """Return a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hlo-run-stderr")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
