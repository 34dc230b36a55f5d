"""An executable made ready to run again and again: memory, and a list of steps that are bound to it."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.artifact import Executable
from hlo_run.backends.host.control_steps import every_step, make_steps, run_steps
from hlo_run.backends.host.machine import Launcher, Machine
from hlo_run.backends.host.steps import KernelStep, Step
from hlo_run.backends.host.world import World
from hlo_run.backends.literals import Literal
from hlo_run.backends.profile import Profile
from hlo_run.backends.transfer import result_literal
from hlo_run.hlo.feeds import Feed


class Prepared:
    """The steps of an executable. A step is bound anew when an allocation that it touches has moved."""

    def __init__(
        self,
        launcher: Launcher,
        executable: Executable,
        checks: frozenset[str],
        profile: Profile | None = None,
        world: World | None = None,
        device: int = 0,
    ) -> None:
        self.machine = Machine(launcher, executable, checks, profile, world, device)
        self._steps = make_steps(self.machine, executable.thunks)
        self._all = list(every_step(self._steps))
        self._touching: dict[int, list[Step]] = {}
        for step in self._all:
            for number in dict.fromkeys(piece.allocation for piece in step.slices):
                self._touching.setdefault(number, []).append(step)
        self._is_bound = False

    def run(self, arguments: Sequence[Literal], deadline: float | None, seed: int, feed: Feed) -> Literal:
        """Run with one literal per entry parameter and return the result."""
        machine = self.machine
        machine.start(deadline, seed, feed)
        try:
            self._bind(machine.place(arguments))
            run_steps(machine, self._steps)
            machine.check_result()
            return result_literal(machine.executable, machine.read)
        finally:
            machine.release_results()

    def _bind(self, moved: set[int]) -> None:
        reset = self.machine.forget_variables()
        if not self._is_bound:
            waiting = self._all
        else:
            waiting = list(dict.fromkeys(step for number in sorted(moved) for step in self._touching.get(number, ())))
            waiting += [s for s in self._all if isinstance(s, KernelStep) and s.thunk.kernel in reset and s not in waiting]
        for step in waiting:
            step.bind()
        if not self._is_bound:
            launches = [step.bound() for step in self._all if isinstance(step, KernelStep)]
            self.machine.launcher.prepare(launches, self.machine.deadline)
        self._is_bound = True
