"""Check many seeds in child processes, which may crash or hang, and group the failures by signature."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from hlo_run.cache import choose_cache
from hlo_run.containment.children import end_with_parent
from hlo_run.errors import HloRunError
from hlo_run.fuzz.check import Outcome, check, options_of, register_calls
from hlo_run.fuzz.generate import random_module

# A child process is replaced after this many modules, since compilers never free some of their memory.
_MODULES_PER_PROCESS = 250
# What a mistake in the generator raises.
_BUGS = (HloRunError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a hunt: the seeds, the number of processes, seconds per module, and the options of each run.

    After `seconds` (0: no limit) the hunt ends, and modules that run are not counted.
    """

    first: int
    count: int
    jobs: int = 2
    limit_seconds: float = 120.0
    verify: str = "every"
    engine: str = "auto"
    seconds: float = 0.0


@dataclass
class Findings:
    """The results of a hunt: the number of outcomes of each kind, and the seeds of each signature."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    seeds: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    processor_seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome. A failure also adds its seed to the seeds of its signature."""
        self.kinds[outcome.kind] += 1
        if outcome.kind != "ok":
            self.seeds.setdefault(f"{outcome.kind}: {outcome.signature}", []).append(outcome.seed)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report: the number of modules per kind, then each signature with up to six of its seeds."""
        yield f"{sum(self.kinds.values())} modules: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        for signature, seeds in sorted(self.seeds.items(), key=lambda item: -len(item[1])):
            yield f"{len(seeds):6} {signature}  (seeds {', '.join(map(str, seeds[:6]))})"


@dataclass
class _Child:
    process: BaseProcess
    pipe: Connection
    seed: int
    since: float


def hunt(plan: Plan, tell: Callable[[Outcome], None]) -> Findings:
    """Check the plan's seeds, and call `tell` with each outcome as it arrives. Hangs and crashes are outcomes as well."""
    findings = Findings()
    pending = iter(range(plan.first, plan.first + plan.count))
    children: list[_Child] = []
    end = time.monotonic() + plan.seconds if plan.seconds else math.inf

    def take(outcome: Outcome) -> None:
        findings.add(outcome)
        tell(outcome)

    while True:
        if time.monotonic() >= end:
            for child in children:
                child.process.kill()
                child.process.join()
            break
        while len(children) < plan.jobs and (seeds := _some(pending)):
            children.append(_start(plan, seeds))
        if not children:
            break
        ready = wait([child.pipe for child in children], timeout=1.0)
        for child in list(children):
            if child.pipe in ready:
                outcome, left = _receive(child, findings)
            elif time.monotonic() - child.since > plan.limit_seconds:
                child.process.kill()
                outcome, left = Outcome(child.seed, "failed", "hang", f"more than {plan.limit_seconds:g} s"), True
            else:
                continue
            if outcome is not None:
                take(outcome)
            if left:
                children.remove(child)
                if rest := _rest(child):
                    children.append(_start(plan, rest))
    return findings


def _some(pending: Iterator[int]) -> list[int]:
    return list(islice(pending, _MODULES_PER_PROCESS))


_SEEDS: dict[int, list[int]] = {}


def _start(plan: Plan, seeds: list[int]) -> _Child:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(plan, seeds, theirs), daemon=True)
    with warnings.catch_warnings():
        # JAX, if it is imported, warns of its threads. The child needs none of them.
        warnings.simplefilter("ignore", RuntimeWarning)
        process.start()
    theirs.close()
    assert process.pid is not None
    _SEEDS[process.pid] = seeds
    return _Child(process, ours, seeds[0], time.monotonic())


def _rest(child: _Child) -> list[int]:
    """Return the seeds after the last one of a process that ended."""
    assert child.process.pid is not None
    seeds = _SEEDS.pop(child.process.pid)
    child.process.join()
    return [seed for seed in seeds if seed > child.seed]


def _receive(child: _Child, findings: Findings) -> tuple[Outcome | None, bool]:
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
        return Outcome(child.seed, "failed", f"crash: {name}", name), True
    child.since = time.monotonic()
    if isinstance(message, int):
        child.seed = message
        return None, False
    outcome, seconds = message
    findings.processor_seconds += seconds
    return outcome, False


def _work(plan: Plan, seeds: list[int], pipe: Connection) -> None:
    """Check the seeds in order; send each seed to the pipe before its check, and (outcome, processor seconds) after."""
    end_with_parent(os.getppid())
    choose_cache("off")
    register_calls()
    # Drop what LLVM prints when it aborts.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for seed in seeds:
        pipe.send(seed)
        begin = time.process_time()
        try:
            outcome = check(random_module(seed), options_of(seed, plan.verify, plan.engine))
        except _BUGS as error:  # `check` returns errors of the code under test; these are of the generator
            outcome = Outcome(seed, "failed", f"generator: {type(error).__name__}: {error}", str(error))
        pipe.send((outcome, time.process_time() - begin))
    pipe.close()
