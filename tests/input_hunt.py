"""Call the command on many mutated inputs, in forked processes, and collect what must not happen.

A child calls the command on a batch of inputs, under a limit of memory and a limit of processor time for each. A failure is an
exit code that the README does not list, exit code 70, an exception that leaves the command, a signal, or a call over the time.
Its signature is the error and the innermost place in hlo_run, so that equal failures are counted as one.
"""

from __future__ import annotations

import faulthandler
import io
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from input_formats import Case, Corpus, make_case

import hlo_run
from hlo_run import cli
from hlo_run.errors import InternalError
from hlo_run.formats import conversions, xla

DOCUMENTED = frozenset((0, 1, 2, 3, 4, 5, 6, 141))
# Of the processor. Most inputs take some milliseconds.
SECONDS_FOR_AN_INPUT = 60
# For a call that waits without using the processor. Other programs may leave it little.
_WALL_SECONDS = 600
# Beside what the process has when it begins: that of a worker of pytest grows with the tests before.
_MEMORY_BYTES = 5 << 29
_FILE_BYTES = 200 << 20
_BATCH = 200
_PACKAGE = str(Path(hlo_run.__file__).parent)
_FAULT = re.compile(rf'File "{re.escape(_PACKAGE)}/([^"]+)", line (\d+) in (\S+)')


@dataclass(frozen=True)
class Outcome:
    """The result of one call: its exit code (None: it did not end), its failure if any, and its processor seconds."""

    code: int | None
    failure: str = ""
    seconds: float = 0.0


@dataclass
class Failure:
    """The inputs with one signature: their number, and the smallest."""

    count: int
    index: int
    case: Case


@dataclass
class Tally:
    """The outcomes of one format. `slowest` is the longest call that ended (seconds, index)."""

    tried: int = 0
    codes: Counter[int] = field(default_factory=Counter[int])
    failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)

    def add(self, index: int, outcome: Outcome, make: Callable[[], Case]) -> None:
        """Count an outcome. `make` returns its case again, which only failures need."""
        self.tried += 1
        self.seconds += outcome.seconds
        self.slowest = max(self.slowest, (outcome.seconds, index))
        if outcome.code is not None:
            self.codes[outcome.code] += 1
        if not outcome.failure:
            return
        case = make()
        known = self.failures.get(outcome.failure)
        if known is None:
            self.failures[outcome.failure] = Failure(1, index, case)
            return
        known.count += 1
        if case.size < known.case.size:
            known.index, known.case = index, case


class _Texts:
    """Stands for stdout, stderr and stdin during a call, as Python opens them in a UTF-8 locale."""

    def __init__(self, stdin: bytes) -> None:
        self.before = sys.stdin, sys.stdout, sys.stderr
        self.err = io.BytesIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8", errors="surrogateescape")
        sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape")
        sys.stderr = io.TextIOWrapper(self.err, encoding="utf-8", errors="backslashreplace")

    def end(self) -> str:
        """Restore the streams, and return what was written to stderr."""
        with suppress(ValueError):
            sys.stderr.flush()
        text = self.err.getvalue().decode(errors="replace") if not self.err.closed else ""
        sys.stdin, sys.stdout, sys.stderr = self.before
        return text


_causes: list[str] = []


def _place(trace: TracebackType | None) -> str:
    """Return the innermost place of a traceback that is in hlo_run."""
    inside = [frame for frame in traceback.extract_tb(trace) if frame.filename.startswith(_PACKAGE)]
    if not inside:
        return "outside of hlo_run"
    return f"{inside[-1].filename[len(_PACKAGE) + 1 :]}:{inside[-1].lineno} {inside[-1].name}"


def _remember_causes() -> None:
    """Let every InternalError record the exception that it reports: the command catches both."""
    original = InternalError.__init__

    def init(self: InternalError, *arguments: object, **more: object) -> None:
        original(self, *arguments, **more)  # pyright: ignore[reportArgumentType]
        cause = sys.exception()
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        where = _place(cause.__traceback__) if cause else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        _causes.append(f"{type(cause).__name__ if cause else 'InternalError'} at {where}")

    InternalError.__init__ = init


def _convert_in_a_fork(name: str, data: bytes, file: str) -> tuple[int, bytes, str]:
    """Convert with jaxlib as `xla` does, but in a fork of this process, which has imported it already."""
    del file
    answer = tempfile.TemporaryFile()  # noqa: SIM115, both processes use it
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.disable()
        code = 0
        try:
            conversions.limit_time(data)
            result = conversions.CONVERSIONS[name](data)
        except Exception as error:  # as in conversions.main
            code, result = conversions.REFUSED, str(error).encode()
        answer.write(result)
        answer.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with answer:
        answer.seek(0)
        result = answer.read()
    return (code, result, "") if code == 0 else (code, b"", result.decode(errors="replace"))


def _no_ptxas(cuda_data_dir: str = "") -> None:
    del cuda_data_dir


def _call(case: Case) -> Outcome:
    """Call the command in this process, in an empty folder, and return its outcome."""
    for name, content in case.files.items():
        Path(name).write_bytes(content)
    _causes.clear()
    os.environ.pop("XLA_FLAGS", None)
    os.environ.update(case.environment)
    run = cli.run if case.program == "hlo-run" else cli.run_opt
    texts = _Texts(case.stdin)
    begin = time.process_time()
    code: int | None = None
    try:
        # As at the shell, a process of its own does the work where LLVM may end it on the IR of a file, or where only `--timeout`
        # ends a loop of the interpreter.
        supervised = case.subject.endswith(".ll") or "--platform=Interpreter" in case.arguments
        code = run(case.arguments, supervised=True) if supervised else run(case.arguments)
        failure = ""
    except SystemExit as ending:
        code, failure = ending.code if isinstance(ending.code, int) else 1, ""
    except BaseException as error:  # nothing may leave the command
        failure = f"{type(error).__name__} left the command at {_place(error.__traceback__)}"
    finally:
        seconds = time.process_time() - begin
        stderr = texts.end()
    if not failure and code == InternalError.exit_code:
        failure = "exit 70: " + (_causes[-1] if _causes else stderr.strip().partition("\n")[0][:120])
    elif not failure and code not in DOCUMENTED:
        failure = f"undocumented exit code {code}"
    elif not failure and "Traceback (most recent call last)" in stderr:
        failure = "a traceback on stderr: " + stderr.strip().splitlines()[-1][:120]
    return Outcome(code, failure, seconds)


def _clean(folder: Path) -> None:
    os.chdir(folder)
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _work(cases: Iterable[tuple[int, Callable[[], Case]]], pipe: Connection, folder: Path, fault: Path) -> None:
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    for number in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    faults = fault.open("w")
    faulthandler.enable(faults, all_threads=False)
    faulthandler.register(signal.SIGPROF, faults, all_threads=False, chain=True)
    _remember_causes()
    xla._ask = _convert_in_a_fork  # pyright: ignore[reportPrivateUsage]
    _replace_ptxas()
    for index, make in cases:
        pipe.send((index, None))
        _clean(folder)
        case = make()
        signal.setitimer(signal.ITIMER_PROF, SECONDS_FOR_AN_INPUT)
        outcome = _call(case)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send((index, outcome))
    pipe.close()


def _replace_ptxas() -> None:
    # ptxas takes longer than everything else together, and is another program.
    from hlo_run.pipeline import ptxas_check

    ptxas_check.find_ptxas = _no_ptxas


def _death(process: BaseProcess, fault: Path, waited: bool) -> str:
    process.join()
    code = process.exitcode or 0
    found = _FAULT.search(fault.read_text(errors="replace")) if fault.exists() else None
    where = f" at {found[1]}:{found[2]} {found[3]}" if found else ""
    if waited:
        return f"hang: waits{where}"
    if -code == signal.SIGPROF:
        return f"hang: over {SECONDS_FOR_AN_INPUT} s{where}"
    return f"{signal.Signals(-code).name if code < 0 else f'exit {code}'}{where}"


@dataclass
class _Slot:
    """A child, and the inputs that it has not finished. `fault` is its file for tracebacks of signals."""

    process: BaseProcess
    pipe: Connection
    left: list[int]
    folder: Path
    fault: Path
    since: float


def outcomes(indices: Iterable[int], make: Callable[[int], Case], jobs: int = 1) -> Iterator[tuple[int, Outcome]]:
    """Yield (index, outcome) of every index, in the order of completion, from `jobs` processes at a time."""
    fork = get_context("fork")
    waiting = list(indices)
    batches = [waiting[place : place + _BATCH] for place in range(0, len(waiting), _BATCH)][::-1]
    with _folder() as root:
        slots: dict[Connection, _Slot] = {}
        started = 0
        while batches or slots:
            while batches and len(slots) < jobs:
                left = batches.pop()
                folder, fault = root / f"{started}", root / f"{started}.fault"
                started += 1
                folder.mkdir()
                ours, theirs = fork.Pipe(duplex=False)
                cases = [(index, lambda index=index: make(index)) for index in left]
                process = fork.Process(target=_work, args=(cases, theirs, folder, fault))
                with warnings.catch_warnings():
                    # JAX, if another test imported it, warns of its threads. The fork needs none of them.
                    warnings.simplefilter("ignore", RuntimeWarning)
                    process.start()
                theirs.close()
                slots[ours] = _Slot(process, ours, left, folder, fault, time.monotonic())
            for pipe in wait(list(slots), 1.0) or list(slots):
                assert isinstance(pipe, Connection)
                slot = slots[pipe]
                yield from _take(slot)
                if not slot.process.is_alive() and not slot.left:
                    slot.process.join()
                if slot.pipe.closed:
                    del slots[pipe]
                    shutil.rmtree(slot.folder, ignore_errors=True)
                    if slot.left:
                        batches.append(slot.left)


@contextmanager
def _folder() -> Generator[Path]:
    """Return a context with a temporary folder. A TemporaryDirectory would also be removed by a worker that ends in a fork."""
    folder = Path(tempfile.mkdtemp(prefix="input_hunt_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take(slot: _Slot) -> Iterator[tuple[int, Outcome]]:
    """Yield the outcomes that a child has sent. If it is dead or waits, close the pipe after the outcome of its last input."""
    try:
        while slot.pipe.poll():
            index, outcome = slot.pipe.recv()
            slot.since = time.monotonic()
            if outcome is not None:
                slot.left.remove(index)
                yield index, outcome
    except EOFError:
        if slot.left:
            yield slot.left.pop(0), Outcome(None, _death(slot.process, slot.fault, False), SECONDS_FOR_AN_INPUT)
        slot.process.join()
        slot.pipe.close()
        return
    if time.monotonic() - slot.since > _WALL_SECONDS:
        slot.process.kill()
        yield slot.left.pop(0), Outcome(None, _death(slot.process, slot.fault, True), SECONDS_FOR_AN_INPUT)
        slot.pipe.close()


def hunt(name: str, count: int, seed: int, corpus: Corpus, jobs: int = 1) -> Tally:
    """Try the first `count` inputs of a format."""
    tally = Tally()

    def make(index: int) -> Case:
        return make_case(name, seed, index, corpus)

    for index, outcome in outcomes(range(count), make, jobs):
        tally.add(index, outcome, lambda index=index: make(index))
    return tally
