"""Check many seeds in child processes, which may crash or hang, and reduce failures of each bucket beside them."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from msgspec import Struct, field

from hlo_run.cache import choose_cache
from hlo_run.containment.children import end_with_parent
from hlo_run.containment.progress import Progress
from hlo_run.errors import HloRunError
from hlo_run.execution.signatures import Signature, crash_signature, fold
from hlo_run.fuzz.calls import register_calls
from hlo_run.fuzz.case import FAILED, Fault
from hlo_run.fuzz.check import Outcome, check, check_every_draw, options_of
from hlo_run.fuzz.findings import Failure, Findings, Reduced
from hlo_run.fuzz.judges import Judges
from hlo_run.fuzz.subjects import Sources, Subject

# A child process is replaced after this many modules, since compilers never free some of their memory.
_MODULES_PER_PROCESS = 250
# What a mistake in the generator raises.
_BUGS = (HloRunError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Plan(Struct, frozen=True):
    """The parameters of a hunt: the seeds, the number of processes, seconds per module, and the options of each run.

    Without `count` the seeds do not end. After `seconds` (0: no limit) the hunt ends, and modules that run are not counted.
    `against` are the names of the judges.
    """

    first: int
    count: int | None
    jobs: int = 2
    limit_seconds: float = 120.0
    verify: str = "every"
    engine: str = "auto"
    seconds: float = 0.0
    against: tuple[str, ...] = ("reference",)
    sources: Sources = field(default_factory=Sources)


# Reduces a failure in a process of its own, within so many seconds.
Reduce = Callable[[Failure, float], Reduced | None]


class _Child(Struct):
    """A process: of seeds, of which `seed` is the present one, or (with `failure`) of a reduction."""

    process: BaseProcess
    pipe: Connection
    seed: int
    since: float
    seeds: list[int] = field(default_factory=list[int])
    failure: Failure | None = None


class Hunt:
    """A hunt and its findings, which are valid at any time: also after Ctrl-C in `run`."""

    def __init__(
        self, plan: Plan, tell: Callable[[Outcome], None], reduce: Reduce | None = None, progress: Progress | None = None
    ) -> None:
        """`tell` gets each outcome as it arrives. `reduce` reduces the failures that `findings` asks for."""
        self._plan, self._tell, self._reduce = plan, tell, reduce
        self._progress = progress or Progress()
        self.findings = Findings()
        self._children: list[_Child] = []
        self._queue: list[Failure] = []
        self._end = time.monotonic() + plan.seconds if plan.seconds else math.inf

    def run(self) -> Findings:
        """Check the plan's seeds. Hangs and crashes are outcomes as well."""
        pending = iter(count(self._plan.first)) if self._plan.count is None else iter(self._seeds(self._plan.count))
        try:
            while time.monotonic() < self._end:
                self._start_some(pending)
                if not self._children:
                    break
                seconds = self._progress.draw(min(1.0, max(0.0, self._end - time.monotonic())))
                ready = wait([child.pipe for child in self._children], timeout=seconds)
                for child in list(self._children):
                    self._serve(child, child.pipe in ready)
        finally:
            for child in self._children:
                child.process.kill()
                child.process.join()
            self._children.clear()
        return self.findings

    def _seeds(self, number: int) -> range:
        return range(self._plan.first, self._plan.first + number)

    def _start_some(self, pending: Iterator[int]) -> None:
        """Fill the processes. One reduction runs beside them; once no seeds are left, all processes may reduce."""
        reducing = sum(child.failure is not None for child in self._children)
        checking = len(self._children) - reducing
        while checking < self._plan.jobs and (seeds := list(islice(pending, self._share()))):
            self._children.append(self._started(partial(_work, self._plan, seeds), seeds))
            checking += 1
        while self._reduce is not None and self._queue and (not reducing or checking + reducing < self._plan.jobs):
            failure = self._queue.pop(0)
            self._children.append(self._started(partial(_reduce, self._reduce, failure, self._left()), failure=failure))
            reducing += 1

    def _share(self) -> int:
        if self._plan.count is None:
            return _MODULES_PER_PROCESS
        return max(1, min(_MODULES_PER_PROCESS, -(-self._plan.count // self._plan.jobs)))

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _serve(self, child: _Child, is_ready: bool) -> None:
        if child.failure is not None:
            if is_ready:
                self._end_reduction(child, child.failure)
            return
        if is_ready:
            outcome, left = self._receive(child)
        elif time.monotonic() - child.since > self._plan.limit_seconds:
            child.process.kill()
            outcome, left = self._died(child, Signature("fuzz", "time-out", "the check took longer than its limit")), True
        else:
            return
        if outcome is not None:
            self._queue += self.findings.add(outcome)
            self._tell(outcome)
        if left:
            self._children.remove(child)
            child.process.join()
            if rest := [seed for seed in child.seeds if seed > child.seed]:
                self._children.append(self._started(partial(_work, self._plan, rest), rest))

    def _end_reduction(self, child: _Child, failure: Failure) -> None:
        try:
            reduced = child.pipe.recv()
        except EOFError:
            reduced = None
        child.process.join()
        self._children.remove(child)
        self.findings.put(failure, reduced)

    def _died(self, child: _Child, signature: Signature) -> Outcome:
        try:
            subject = self._plan.sources.subject(child.seed)
        except _BUGS:
            subject = Subject(child.seed, "")
        return Outcome.of(subject, [Fault(FAILED, signature, str(signature))])

    def _receive(self, child: _Child) -> tuple[Outcome | None, bool]:
        """Return (the outcome or None, whether the process has ended) from the next message of a process."""
        try:
            message = child.pipe.recv()
        except EOFError:
            child.process.join()
            code = child.process.exitcode or 0
            if code == 0:
                child.seed = 1 << 62
                return None, True
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return self._died(child, crash_signature(name)), True
        child.since = time.monotonic()
        if isinstance(message, int):
            child.seed = message
            return None, False
        outcome, seconds = message
        self.findings.processor_seconds += seconds
        return outcome, False

    def _started(
        self, work: Callable[[Connection], None], seeds: list[int] | None = None, failure: Failure | None = None
    ) -> _Child:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_in_child, args=(work, theirs), daemon=True)
        with warnings.catch_warnings():
            # JAX, if it is imported, warns of its threads. The child needs none of them.
            warnings.simplefilter("ignore", RuntimeWarning)
            process.start()
        theirs.close()
        return _Child(process, ours, seeds[0] if seeds else -1, time.monotonic(), seeds or [], failure)


def hunt(plan: Plan, tell: Callable[[Outcome], None], reduce: Reduce | None = None) -> Findings:
    """Run a hunt and return its findings; see `Hunt`."""
    return Hunt(plan, tell, reduce).run()


def _in_child(work: Callable[[Connection], None], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    end_with_parent(os.getppid())
    choose_cache("off")
    register_calls()
    # Drop what LLVM prints when it aborts.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    work(pipe)
    pipe.close()


def _reduce(reduce: Reduce, failure: Failure, seconds: float, pipe: Connection) -> None:
    pipe.send(reduce(failure, seconds))


def _work(plan: Plan, seeds: list[int], pipe: Connection) -> None:
    """Check the seeds in order; send each seed to the pipe before its check, and (outcome, processor seconds) after."""
    judges = Judges(plan.against, plan.limit_seconds / 2)
    work = check_every_draw if plan.sources.as_is else check
    for seed in seeds:
        pipe.send(seed)
        begin = time.process_time()
        try:
            outcome = work(plan.sources.subject(seed), options_of(seed, plan.verify, plan.engine), judges.all)
        except _BUGS as error:  # `check` returns errors of the code under test; these are of the generator
            signature = Signature("generator", "internal error", f"{type(error).__name__}: {fold(str(error))}")
            outcome = Outcome.of(Subject(seed, ""), [Fault(FAILED, signature, str(error))])
        pipe.send((outcome, time.process_time() - begin))
    judges.stop()
