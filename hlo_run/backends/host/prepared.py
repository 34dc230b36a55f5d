"""Prepare an executable for repeated runs: memory, and steps that are bound to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hlo_run.artifact import Executable, KernelThunk, Thunk, WhileThunk, nested_sequences
from hlo_run.backends.exchange.team import Work, run_alone
from hlo_run.backends.exchange.world import World
from hlo_run.backends.host.control_steps import every_step, make_steps, run_steps
from hlo_run.backends.host.jit.engine import ReadyLaunch
from hlo_run.backends.host.machine import Launcher, Machine
from hlo_run.backends.host.recording import Recording
from hlo_run.backends.host.sort_steps import SortStep
from hlo_run.backends.host.steps import KernelStep, Step
from hlo_run.backends.literals import Literal
from hlo_run.backends.profile import ThunkObserver
from hlo_run.backends.transfer import result_literal
from hlo_run.hlo.feeds import NO_FEEDS, Feed


class Prepared:
    """The steps of an executable. A step is bound again after an allocation that it touches has moved."""

    def __init__(
        self,
        launcher: Launcher,
        executable: Executable,
        checks: frozenset[str],
        observer: ThunkObserver | None = None,
        world: World | None = None,
        device: int = 0,
    ) -> None:
        self.machine = Machine(launcher, executable, checks, observer, world, device)
        self._steps = make_steps(self.machine, executable.thunks)
        self._all = list(every_step(self._steps))
        self._touching: dict[int, list[Step]] = {}
        self._launches = [step for step in self._all if isinstance(step, KernelStep)]
        self._is_bound = False
        self._state: tuple[bool, bool, int] = (False, False, 0)
        self._recording: Recording | None = None
        self._may_record = not checks and observer is None

    def run(self, arguments: Sequence[Literal], deadline: float | None, seed: int, feed: Feed) -> Literal:
        """Run with one literal per entry parameter and return the result."""
        return run_alone(self.work(arguments, deadline, seed, feed))

    def work(self, arguments: Sequence[Literal], deadline: float | None, seed: int, feed: Feed) -> Work[Literal]:
        """Run as `run` does. Yields when the device waits for others."""
        machine = self.machine
        machine.start(deadline, seed, feed)
        try:
            self._bind(machine.place(arguments))
            if self._recording is None:
                yield from run_steps(machine, self._steps)
            else:
                yield from self._recording.work()
            machine.check_result()
            if machine.observer is not None:
                machine.observer.end_run()
            return result_literal(machine.executable, machine.read_result)
        finally:
            machine.release_results()

    def bind(self, arguments: Sequence[Literal]) -> None:
        """Do everything that precedes the first run with such arguments, for example compile. Runs nothing."""
        self.machine.start(None, 0, NO_FEEDS(0))
        self._bind(self.machine.place(arguments))
        self.machine.release_results()

    def _bind(self, moved: set[int]) -> None:
        """Tell the steps and their recording the addresses of the memory. The first call compiles and records."""
        machine = self.machine
        machine.forget_variables()
        state = (machine.deadline is not None, machine.watch is not None, machine.launcher.native_kernels)
        is_new = not self._is_bound or self._state != state
        if is_new:
            self._is_bound, self._state = True, state
            self._bind_all()
        else:
            waiting = dict.fromkeys(step for number in sorted(moved) for step in self._touching.get(number, ()))
            for step in waiting:
                step.bind()
        if self._recording is not None and (moved or is_new):
            self._recording.move(machine.places)

    def _bind_all(self) -> None:
        machine = self.machine
        for step in self._all:
            step.bind()
        machine.launcher.prepare([step.bound() for step in self._launches], machine.deadline)
        ready: dict[Step, ReadyLaunch] = {}
        if self._may_record:
            # A sort's step makes the launches of its kernels, so the recording must not.
            inside = {launch for step in self._all if isinstance(step, SortStep) for launch in step.kernels}
            for step in self._launches:
                if step in inside:
                    continue
                launch = machine.launcher.ready(*step.bound(), machine.deadline)
                if launch is not None:
                    ready[step] = launch
        self._recording = Recording(machine, self._steps, ready) if ready else None
        self._touching = {}
        for step in self._all:
            for number in dict.fromkeys(piece.allocation for piece in step.slices):
                if step not in ready:  # the recording tracks the arguments of its launches
                    self._touching.setdefault(number, []).append(step)


def kernel_launches(executable: Executable) -> Counter[str]:
    """Return how often a run of one device launches each kernel, by name. A loop without a known trip count runs once."""
    found: Counter[str] = Counter()
    _count_launches(executable.thunks, 1, found)
    return found


def _count_launches(thunks: Iterable[Thunk], times: int, found: Counter[str]) -> None:
    for thunk in thunks:
        if isinstance(thunk, KernelThunk):
            found[thunk.kernel] += times
        turns = 1 if not isinstance(thunk, WhileThunk) or thunk.trip_count is None else thunk.trip_count
        for inner in nested_sequences(thunk):
            _count_launches(inner, times * turns, found)
