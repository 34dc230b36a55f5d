"""Measures which kernels the comparison sees: alters the result of each, and looks whether a compared number shows it.

Each kernel is altered alone, and only what lies between it and the nearest part of the result is evaluated again, on the
recorded values of one evaluation. So a kernel counts as seen only if the comparison refuses the result. What is left is
altered together in one evaluation of all: if nothing shows, none of these kernels is seen.

The work is bounded. Kernels near the result come first; what is left is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.errors import HloRunError, Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.alterations import TooManyRuns
from hlo_run.reference.sensitivity.chains import Chains
from hlo_run.reference.sensitivity.kernel_sight import KernelSight, KernelSights, in_order
from hlo_run.reference.sensitivity.notice import Notices
from hlo_run.reference.sensitivity.reasons import ENDLESS, LEFT_OUT, NOT_RUN, UNSUPPORTED, UNUSED, reason
from hlo_run.reference.sensitivity.recorded_run import RecordedRun, Trace
from hlo_run.reference.sensitivity.work import work_of_comparison
from hlo_run.walks import reaches

# Nanoseconds that the measure may take: some, more per kernel, whose compilation takes more than ten times as long, and in any
# case as long as a few evaluations of the whole module, unless these are very long.
_ANY, _PER_KERNEL, _RUNS, _MOST_OF_RUNS = 1.5e8, 8e6, 6.0, 5e8
# Exits at which a change of a kernel may be looked for.
_NEAR_EXITS = 3
# The part of what is left that one chain may take.
_OF_BUDGET = 0.03
# The part of the work up to the nearest exit that one chain outside loops may take.
_OF_DIRECT = 0.25
# Runs, or a part of all, that are left for the evaluations with several altered kernels; in any case the fewest runs.
_RESERVED_RUNS, _RESERVED_PART, _FEWEST_RUNS = 5.0, 1 / 3, 2.0


def measure(run: RecordedRun, kernels: Sequence[HloInstruction], notices: Notices) -> KernelSights:
    """Return the comparison's view of each kernel."""
    return _Measure(run, kernels, notices).measured()


class _Exit(Struct):
    """A compared part of the result: the bit mask of the steps that it depends on, and how often changes showed there or not."""

    needed: int
    shown: int = 0
    hidden: int = 0


class _Measure:
    def __init__(self, run: RecordedRun, kernels: Sequence[HloInstruction], notices: Notices) -> None:
        self._run, self._kernels, self._notices = run, kernels, notices
        whole = self._whole = sum(run.work) + sum(work_of_comparison(run.steps[number].instruction.shape) for number in run.exits)
        self._budget = max(_ANY + _PER_KERNEL * len(kernels), min(_RUNS * whole, _MOST_OF_RUNS))
        self._reserve = max(min(_RESERVED_RUNS * whole, _RESERVED_PART * self._budget), _FEWEST_RUNS * whole)
        self._known: dict[HloInstruction, KernelSight] = {}
        self._traces: dict[HloInstruction, Trace] = {}
        self._reached = _reached(run)
        self._exits = {number: _Exit(needed) for number, needed in _needed(run).items()}
        self._near = _near_exits(run)
        self._work_of = np.array(run.work)
        self._chains = Chains(run, notices)

    def measured(self) -> KernelSights:
        """Return the records of all kernels."""
        far: list[HloInstruction] = []
        for kernel in self._kernels:
            exits = self._exits_of(kernel)
            if not exits:
                self._know(kernel, False, UNUSED)
            elif not self._run.runs.get(kernel):
                self._know(kernel, False, NOT_RUN if _is_needed(kernel) else UNUSED)
            elif self._is_large_exit(kernel) and self._run.shows_in_sample(kernel, self._notices):
                self._know(kernel, True)
                self._chains.add(kernel)
            else:
                far.append(kernel)
        # The last of the schedule first: most chains lead to later kernels. Those in loops may lead to earlier ones.
        if self._chains.may_end:
            self._see_by_chains(self._see_by_chains(far[::-1]))
        far = [kernel for kernel in far if kernel not in self._known]
        distances = {kernel: self._work(self._between(kernel, self._exits_of(kernel)[0])) for kernel in far}
        doubtful = [kernel for kernel in sorted(distances, key=distances.__getitem__) if not self._is_seen_alone(kernel)]
        # Those that were altered alone are mostly not seen, nor are those that loops overwrite; the others mostly are.
        unlikely = [kernel for kernel in doubtful if kernel in self._traces]
        overwritten = [kernel for kernel in doubtful if kernel not in self._traces and kernel in self._chains.ended_at_loops]
        self._resolve(unlikely)
        self._resolve(overwritten)
        self._resolve([kernel for kernel in doubtful if kernel not in self._known and kernel not in (*unlikely, *overwritten)])
        return in_order(self._known.values(), [kernel.name for kernel in self._kernels])

    def _see_by_chains(self, kernels: Sequence[HloInstruction]) -> list[HloInstruction]:
        """Find kernels whose change shows by chains; return the others that may show once more kernels are seen."""
        again: list[HloInstruction] = []
        chains = self._chains
        for kernel in kernels:
            most = min(self._budget - self._reserve, _OF_BUDGET * self._budget)
            if not self._run.is_loop(kernel):
                most = min(most, _OF_DIRECT * self._work(self._between(kernel, self._exits_of(kernel)[0])))
            shows = chains.shows(kernel, most)
            self._budget -= chains.work
            if shows:
                self._know(kernel, True)
            elif chains.met_unknown:
                again.append(kernel)
        return again

    def _is_large_exit(self, kernel: HloInstruction) -> bool:
        """True for a kernel whose result is compared itself, if the budget does not allow to compare all of it once more."""
        number = self._run.number_of.get(kernel)
        return number in self._run.exits and not self._affords(work_of_comparison(kernel.shape) + self._reserve)

    def _know(self, kernel: HloInstruction, seen: bool | None, why: str = "") -> None:
        self._known[kernel] = KernelSight(kernel.name, seen, why)

    def _affords(self, work: float) -> bool:
        return work <= self._budget

    def _exits_of(self, kernel: HloInstruction) -> list[int]:
        """Return the nearest exits that depend on a kernel, the nearest first."""
        found = sorted(near for number in self._run.carriers[kernel] for near in self._near[number])
        return list(dict.fromkeys(number for _, number in found))[:_NEAR_EXITS]

    def _between(self, kernel: HloInstruction, exit_number: int) -> int:
        """Return the bit mask of the steps between a kernel and an exit, both included."""
        reached = 0
        for number in self._run.carriers[kernel]:
            reached |= self._reached[number]
        return reached & self._exits[exit_number].needed

    def _work(self, steps: int) -> float:
        size = len(self._run.steps)
        bits = np.frombuffer(steps.to_bytes((size + 7) // 8, "little"), np.uint8)
        return float(self._work_of @ np.unpackbits(bits, bitorder="little", count=size))

    def _route(self, kernel: HloInstruction) -> tuple[int, int, float]:
        """Return the exit where a change shows with the least work, the steps in between, and their work."""

        def score(number: int) -> float:
            place = self._exits[number]
            return routes[number][1] * (1 + place.hidden) / (1 + place.shown)

        routes: dict[int, tuple[int, float]] = {}
        for number in self._exits_of(kernel):
            between = self._between(kernel, number)
            routes[number] = between, self._work(between)
        best = min(routes, key=score)
        return best, *routes[best]

    # ---- kernels altered alone ----------------------------------------------------------------------------------

    def _is_seen_alone(self, kernel: HloInstruction) -> bool:
        """Alter a kernel alone; True if that shows at one exit, or cannot be measured."""
        number, between, work = self._route(kernel)
        if self._run.is_loop(kernel):
            of_loops = sum(self._run.work[loop] - self._run.last_work(loop) for loop in self._run.carriers[kernel])
            if self._shows(kernel, between, work - of_loops, in_last_iteration=True):
                return True
        shows = self._shows(kernel, between, work)
        if kernel in self._traces:
            self._exits[number].shown += shows
            self._exits[number].hidden += not shows
        return shows

    def _shows(self, kernel: HloInstruction, within: int, work: float, in_last_iteration: bool = False) -> bool:
        """Alter a kernel alone, if the budget allows the work; True if that shows, or a loop does not end."""
        if not self._affords(work + self._reserve):
            return False
        try:
            trace = self._run.follow([kernel], self._notices, within, in_last_iteration=in_last_iteration)
        except TooManyRuns:
            trace = self._at_the_end(kernel, within)
        except HloRunError as error:
            self._know(kernel, None, _why_not(error))
            return True
        if trace is None:
            self._know(kernel, None, ENDLESS)
            return True
        self._budget -= trace.work
        self._traces[kernel] = trace
        if trace.shows:
            self._know(kernel, True)
        return trace.shows

    def _at_the_end(self, kernel: HloInstruction, within: int) -> Trace | None:
        """Alter the last result of a kernel alone; None if that keeps a loop running too, or is not enough to know."""
        try:
            trace = self._run.follow([kernel], self._notices, within, last_only=True)
        except HloRunError:
            return None
        return trace if trace.shows else None

    # ---- kernels altered together -------------------------------------------------------------------------------

    def _resolve(self, doubtful: Sequence[HloInstruction]) -> None:
        """Decide about kernels that do not show at one exit, or were not altered alone."""
        if doubtful and self._decided(doubtful):
            self._divide(doubtful)

    def _divide(self, group: Sequence[HloInstruction]) -> None:
        """Decide about kernels of which some show at some exit."""
        if len(group) == 1:
            return
        middle = len(group) // 2
        showing = [half for half in (group[:middle], group[middle:]) if self._decided(half)]
        if len(showing) == 2 and len(group) > 2:
            # Many show: one by one is faster.
            for kernel in group:
                self._decided([kernel])
            return
        for half in showing:
            self._divide(half)

    def _decided(self, group: Sequence[HloInstruction]) -> bool:
        """Alter kernels together, with both signs, and note what that says of them. True if it shows and they are several."""
        for sign in (1, -1):
            if not self._affords(self._whole):
                self._leave_out(group)
                return False
            try:
                trace = self._run.follow(group, self._notices, sign=sign)
            except HloRunError as error:
                trace = Trace(shows=True, work=self._whole)
                if len(group) == 1:
                    self._know(group[0], None, _why_not(error))
                    return False
            self._budget -= trace.work
            if trace.shows:
                if len(group) == 1:
                    self._know(group[0], True)
                return len(group) > 1
        for kernel in group:
            alone = self._traces.get(kernel)
            self._know(kernel, False, reason(self._run, kernel, alone) if alone is not None else "")
        return False

    def _leave_out(self, group: Sequence[HloInstruction]) -> None:
        for kernel in group:
            if kernel not in self._known:
                self._know(kernel, None, LEFT_OUT)


def _why_not(error: HloRunError) -> str:
    return UNSUPPORTED if isinstance(error, Unsupported) else ENDLESS


def _is_needed(instruction: HloInstruction) -> bool:
    """True if the result of its computation depends on an instruction."""
    assert instruction.parent is not None, "a kernel is in a computation"
    return reaches(instruction.parent.root, (instruction,), lambda i: i.operands)


def _near_exits(run: RecordedRun) -> list[list[tuple[float, int]]]:
    """Return for each step the nearest exits that depend on it, with the work on the way there, the nearest first."""
    found: list[list[tuple[float, int]]] = [[] for _ in run.steps]
    for number in reversed(range(len(run.steps))):
        ways: dict[int, float] = {number: 0.0} if number in run.exits else {}
        for user in run.users[number]:
            for work, place in found[user]:
                ways[place] = min(ways.get(place, math.inf), work + run.work[user])
        found[number] = sorted((work, place) for place, work in ways.items())[:_NEAR_EXITS]
    return found


def _reached(run: RecordedRun) -> list[int]:
    """Return for each step the bit mask of the steps that depend on it, itself included."""
    masks = [0] * len(run.steps)
    for number in reversed(range(len(run.steps))):
        masks[number] = 1 << number
        for user in run.users[number]:
            masks[number] |= masks[user]
    return masks


def _needed(run: RecordedRun) -> dict[int, int]:
    """Return for each exit the bit mask of the steps that it depends on, itself included."""
    masks: list[int] = []
    for number, step in enumerate(run.steps):
        mask = 1 << number
        for operand in step.instruction.operands:
            source = run.number_of.get(operand)
            if source is not None:
                mask |= masks[source]
        masks.append(mask)
    return {number: masks[number] for number in run.exits}
