"""Asks a question with many sets of flags. An answer is yes, no or unknown, and a claim is made if both its commands agree.

Unknown is every answer that is neither the failure that is sought nor a run that passes: another failure, a time-out, flags that
are refused, a trial that died. A search goes around such answers, as `git bisect skip` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.containment.progress import Progress
from hlo_run.errors import UsageError
from hlo_run.records import replace
from hlo_run.triage.predicates import is_same_failure, is_usage_error
from hlo_run.triage.questions import Question
from hlo_run.triage.trials import Ended, import_all, run_forks, with_modules

Flags: TypeAlias = tuple[str, ...]
# Runs of the file before the search, and of each command of a claim after it. A time-out is asked about once.
_FIRST_RUNS, _CONFIRMING_RUNS = 3, 2
_RUNS_OF_FLAKY = 8
# A run that takes too long is asked again with so many times the limit, until that was in vain so often.
_MORE_TIME, _MORE_TIME_IN_A_ROW, _MOST_USELESS = 5.0, 2.0, 2
# A search ends after so many unknown answers.
_MOST_UNKNOWN = 40


class Limits(Struct, frozen=True):
    """Processes, seconds per run (0: five times a run without optional rows), and how often each question is asked."""

    jobs: int = 1
    seconds: float = 0.0
    repeat: int = 1


class Finding(Struct, frozen=True):
    """A sentence that names a culprit, the command with it, the command without it, and the lines that changed."""

    sentence: str
    with_it: str
    without_it: str = ""
    lines: tuple[str, ...] = ()


class Bisection(Struct):
    """The result of a bisection. `wanted` is the failure; empty: the file does not fail. `runs` counts runs of the module."""

    wanted: str = ""
    flaky: bool = False
    runs: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    notes: list[str] = field(default_factory=list[str])


class Asker:
    """Asks a question about one file. `base` are flags of every question; `result` gets the findings."""

    def __init__(self, question: Question, path: str, limits: Limits, progress: Progress) -> None:
        self.question, self.path, self.limits, self.progress = question, path, limits, progress
        self.base: Flags = ()
        self.result = Bisection()
        self._known: dict[Flags, tuple[str, ...]] = {}
        self._useless_patience = 0

    def start(self) -> bool:
        """Find the failure. Return False if the file does not fail. Raises UsageError if the command line is refused."""
        answers = self.ask([()], max(self.limits.repeat, 1))[0]
        more = _FIRST_RUNS - len(answers)
        if any(map(_is_time_out, answers)):
            # On a busy machine the time may be over before the place where it never ends.
            patience = _MORE_TIME_IN_A_ROW if answers[0].startswith("row '") else _MORE_TIME
            answers = [self._answer_of(self.forks([partial(self._answer, (), False)], patience)[0])]
        elif more > 0:
            answers += self.ask([()], more)[0]
        wanted = next(filter(None, answers), "")
        if is_usage_error(wanted):
            raise UsageError(f"the command line is refused, so there is nothing to find: {wanted}", hint=self.shown(()))
        self.result.wanted = wanted
        if len(set(answers)) > 1:
            self.result.flaky = True
            count = sum(self.verdict(answer) is True for answer in answers)
            repeat = self.limits.repeat if self.limits.repeat > 1 else _RUNS_OF_FLAKY
            self.limits = replace(self.limits, repeat=repeat)
            often = f"{count} of the first {len(answers)} runs show the failure, so each question was asked {repeat} times."
            self.result.notes.append(often)
        self._known[()] = (wanted,)
        return bool(wanted)

    # ---- questions

    def verdict(self, answer: str) -> bool | None:
        """Return True for the failure that is sought, False for a run that passes, None for all else."""
        return True if answer and is_same_failure(answer, self.result.wanted or answer) else None if answer else False

    def fails(self, questions: Sequence[Flags]) -> list[bool | None]:
        """Return for each set of flags whether the failure occurs, at least once if questions are repeated; None: unknown."""
        whole = [(*self.base, *flags) for flags in questions]
        new = [flags for flags in dict.fromkeys(whole) if flags not in self._known]
        for flags, answers in zip(new, self.ask(new, self.limits.repeat), strict=True):
            self._known[flags] = tuple(answers)
            self.result.flaky |= len({self.verdict(answer) for answer in answers}) > 1
        return [self._one(self._known[flags]) for flags in whole]

    def _one(self, answers: Sequence[str]) -> bool | None:
        verdicts = {self.verdict(answer) for answer in answers}
        return True if True in verdicts else None if None in verdicts else False

    def fail(self, flags: Flags) -> bool | None:
        """Return the answer for one set of flags."""
        return self.fails([flags])[0]

    def other_failure(self, flags: Flags) -> str:
        """Return the answer that was neither yes nor no."""
        answers = self._known.get((*self.base, *flags), ())
        return next((answer for answer in answers if self.verdict(answer) is None), "")

    def ask(self, questions: Sequence[Flags], count: int, again: bool = False) -> list[list[str]]:
        """Return `count` answers for each of the whole sets of flags. `again`: by the command lines that are printed."""
        works = [partial(self._answer, flags, again) for flags in questions for _ in range(count)]
        answers = [self._answer_of(end) for end in self.forks(works)]
        for place, work in enumerate(works):
            # A busy machine is no answer: a run that took too long gets more time, as long as that helps.
            if self._useless_patience < _MOST_USELESS and _is_time_out(answers[place]) and self.verdict(answers[place]) is None:
                answers[place] = self._answer_of(self.forks([work], _MORE_TIME)[0])
                self._useless_patience = self._useless_patience + 1 if _is_time_out(answers[place]) else 0
        return [answers[n * count : (n + 1) * count] for n in range(len(questions))]

    @staticmethod
    def _answer_of(end: Ended | None) -> str:
        assert end is not None, "no question ends another one"
        if end.value is None:
            return end.bucket
        answer, modules = end.value
        import_all(modules)
        return str(answer)

    def _answer(self, flags: Flags, again: bool) -> tuple[str, list[str]]:
        ask = self.question.ask_as_printed if again else self.question.ask
        return with_modules(partial(ask, self.path, flags))

    def forks(self, works: Sequence[Callable[[], object]], more_time: float = 1.0) -> list[Ended | None]:
        """Run pieces of work in forks."""
        self.result.runs += len(works)
        return run_forks(works, self.limits.jobs, more_time * self.limits.seconds, progress=self.progress)

    def shown(self, flags: Flags) -> str:
        """Return the command line of a set of flags."""
        return self.question.command(self.path, (*self.base, *flags))

    # ---- searches

    def search(self, flags: Callable[[int], Flags], low: int, high: int, what: str) -> tuple[int, int]:
        """Return the largest number that is known to pass and the smallest that fails: neighbours, unless others are unknown.

        `high` fails. `low` passes, or is -1 if no number is known to pass; then it may still be -1 in the result.
        """
        unknown: set[int] = set()
        while len(unknown) <= _MOST_UNKNOWN:
            self.progress.doing = f"{what}: between {low} and {high}"
            points = _between(low, high, unknown, self.limits.jobs)
            if not points:
                break
            answers = dict(zip(points, self.fails([flags(point) for point in points]), strict=True))
            high = min((point for point, answer in answers.items() if answer), default=high)
            low = max((point for point, answer in answers.items() if answer is False and point < high), default=low)
            unknown |= {point for point, answer in answers.items() if answer is None}
            self.progress.tell(f"{what}: between {low} and {high}")
        return low, high

    # ---- claims

    def claim(self, sentence: str, with_it: Flags, without_it: Flags | None = None, lines: tuple[str, ...] = ()) -> bool:
        """Add a finding if the commands that it prints confirm it; else a note. Return whether it was confirmed."""
        commands = [with_it, *([without_it] if without_it is not None else [])]
        whole = [(*self.base, *flags) for flags in commands]
        repeat = self.limits.repeat if self.result.flaky else 1 if _is_time_out(self.result.wanted) else _CONFIRMING_RUNS
        self.progress.doing = "the commands of a claim again"
        answers = self.ask(whole, repeat, again=True)
        wrong = ""
        for flags, found, expected in zip(commands, answers, (True, False), strict=False):
            verdicts = {self.verdict(answer) for answer in found}
            if expected not in verdicts if expected and self.result.flaky else verdicts != {expected}:
                other = next((answer for answer in found if self.verdict(answer) is not expected), "")
                ended = f"ends with '{other}'" if other and not expected else "does not fail again" if expected else "passes"
                if other and self.verdict(other):
                    ended = "fails as well"
                wrong = f"{self.shown(flags)} {ended}"
                self.result.flaky = True
                break
        if wrong:
            self.result.notes.append(f"Not confirmed, so not claimed: {sentence} When run again, {wrong}.")
            return False
        shown = [self.shown(flags) for flags in commands]
        self.result.findings.append(Finding(sentence, shown[0], shown[1] if len(shown) > 1 else "", lines))
        return True


def _is_time_out(bucket: str) -> bool:
    return ": time-out: " in bucket


def _between(low: int, high: int, unknown: set[int], count: int) -> list[int]:
    """Return at most `count` numbers between two others: they divide the space evenly, else they divide its largest gaps."""
    inside = [number for number in unknown if low < number < high]
    if not inside:
        pieces = min(count, high - low - 1)
        return [low + (high - low) * (n + 1) // (pieces + 1) for n in range(pieces)]
    known = sorted([low, high, *inside])
    gaps = sorted(((two - one, one) for one, two in pairwise(known) if two - one > 1), reverse=True)
    return sorted(one + width // 2 for width, one in gaps[:count])
