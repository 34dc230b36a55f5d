"""Measures which kernels the comparison sees: alters the result of each, and looks whether a compared number shows it.

Each kernel is altered alone, and only what lies between it and the nearest part of the result is evaluated again, on the
recorded values of one evaluation. So a kernel counts as seen only if the comparison refuses the result. What is left is
altered together in one evaluation of all: if nothing shows, none of these kernels is seen.

The work is bounded. Kernels near the result come first; what is left is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.alterations import TooManyRuns
from hlo_run.reference.sensitivity.kernel_sight import KernelSight, KernelSights, in_order
from hlo_run.reference.sensitivity.notice import Notices
from hlo_run.reference.sensitivity.reasons import NOT_RUN, UNUSED, reason
from hlo_run.reference.sensitivity.recorded_run import RecordedRun, Trace
from hlo_run.reference.sensitivity.work import work_of_comparison

# Nanoseconds that the measure may take: some, more per kernel, whose compilation takes twenty times as long, and in any case as
# long as a few evaluations of the whole module, unless these are very long.
_ANY, _PER_KERNEL, _RUNS, _MOST_OF_RUNS = 1e8, 5e6, 6.0, 1e9
# What is left for the evaluations with several altered kernels.
_RESERVED_RUNS = 2.0


def measure(run: RecordedRun, kernels: Sequence[HloInstruction], notices: Notices) -> KernelSights:
    """Return what the comparison sees of each kernel."""
    return _Measure(run, kernels, notices).measured()


class _Measure:
    def __init__(self, run: RecordedRun, kernels: Sequence[HloInstruction], notices: Notices) -> None:
        self._run, self._kernels, self._notices = run, kernels, notices
        whole = self._whole = sum(run.work) + sum(work_of_comparison(run.steps[number].instruction.shape) for number in run.exits)
        self._budget = max(_ANY + _PER_KERNEL * len(kernels), min(_RUNS * whole, _MOST_OF_RUNS))
        self._reserve = _RESERVED_RUNS * whole
        self._known: dict[HloInstruction, KernelSight] = {}
        self._traces: dict[HloInstruction, Trace] = {}
        self._reached = _reached(run)
        self._needed = _needed(run)
        self._all_exits = sum(1 << number for number in run.exits)

    def measured(self) -> KernelSights:
        """Return the records of all kernels."""
        for kernel in self._kernels:
            if not any(self._reached[number] & self._all_exits for number in self._run.carriers[kernel]):
                self._know(kernel, False, UNUSED)
            elif not self._run.runs.get(kernel):
                self._know(kernel, False, NOT_RUN if _is_needed(kernel) else UNUSED)
        routes = {kernel: self._route(kernel) for kernel in self._kernels if kernel not in self._known}
        doubtful: list[HloInstruction] = []
        for kernel in sorted(routes, key=lambda kernel: routes[kernel][0]):
            work, exits = routes[kernel]
            in_loop = self._run.is_loop(kernel)
            if in_loop and self._shows(kernel, exits, self._last_work(kernel, work), in_last_iteration=True):
                continue
            if not self._shows(kernel, exits, work):
                doubtful.append(kernel)
        # Those that were altered alone are mostly not seen, the others mostly are.
        self._judge_together([kernel for kernel in doubtful if kernel in self._traces])
        self._judge_together([kernel for kernel in doubtful if kernel not in self._traces])
        return in_order(self._known.values(), [kernel.name for kernel in self._kernels])

    def _last_work(self, kernel: HloInstruction, work: float) -> float:
        return work - sum(self._run.work[number] - self._run.last_work(number) for number in self._run.carriers[kernel])

    def _know(self, kernel: HloInstruction, seen: bool | None, why: str = "") -> None:
        self._known[kernel] = KernelSight(kernel.name, seen, why)

    def _affords(self, work: float) -> bool:
        return work <= self._budget

    def _route(self, kernel: HloInstruction) -> tuple[float, int]:
        """Return the work between a kernel and its nearest exit, and the bit mask of the steps in between."""
        reached = 0
        for number in self._run.carriers[kernel]:
            reached |= self._reached[number]
        best: tuple[float, int] | None = None
        for number, needed in self._needed.items():
            if reached >> number & 1:
                between = reached & needed
                work = self._work(between)
                if best is None or work < best[0]:
                    best = work, between
        assert best is not None, "the kernel reaches an exit"
        return best

    def _work(self, steps: int) -> float:
        total = 0.0
        while steps:
            number = steps.bit_length() - 1
            total += self._run.work[number]
            steps ^= 1 << number
        return total

    def _shows(self, kernel: HloInstruction, within: int, work: float, in_last_iteration: bool = False) -> bool:
        """Alter a kernel alone, if the budget allows the work; True if that shows, or a loop does not end."""
        if not self._affords(work + self._reserve):
            return False
        try:
            trace = self._run.follow([kernel], self._notices, within, in_last_iteration=in_last_iteration)
        except TooManyRuns:
            trace = self._at_the_end(kernel, within)
        except HloRunError:
            trace = None
        if trace is None:
            self._know(kernel, None, "its change keeps a loop running")
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

    def _judge_together(self, doubtful: Sequence[HloInstruction]) -> None:
        """Decide about kernels that do not show at their nearest exits, or were not altered alone."""
        if not doubtful:
            return
        for sign in (1, -1):
            if not self._affords(self._whole):
                for kernel in doubtful:
                    self._know(kernel, None, "left out")
                return
            try:
                trace = self._run.follow(doubtful, self._notices, sign=sign)
            except HloRunError:
                trace = Trace(shows=True, work=self._whole)
                if len(doubtful) == 1:
                    self._know(doubtful[0], None, "left out")
                    return
            self._budget -= trace.work
            if trace.shows and len(doubtful) == 1:
                self._know(doubtful[0], True)
                return
            if trace.shows:
                half = len(doubtful) // 2
                self._judge_together(doubtful[:half])
                self._judge_together(doubtful[half:])
                return
        for kernel in doubtful:
            trace = self._traces.get(kernel)
            self._know(kernel, False, reason(self._run, kernel, trace) if trace is not None else "")


def _is_needed(instruction: HloInstruction) -> bool:
    """True if the result of its computation depends on an instruction."""
    assert instruction.parent is not None, "a kernel is in a computation"
    waiting = [instruction.parent.root]
    found = set(waiting)
    while waiting:
        fresh = [operand for operand in dict.fromkeys(waiting.pop().operands) if operand not in found]
        found.update(fresh)
        waiting += fresh
    return instruction in found


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
