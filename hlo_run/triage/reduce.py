"""Shrinks a module while it keeps its failure: delta debugging with the largest cuts first, on forks of this process."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from hlo_run.containment.progress import Progress
from hlo_run.errors import HloRunError, UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.module_edits import attributes, structure, texts, values
from hlo_run.module_edits.texts import PRINTED
from hlo_run.ops.parse import parse
from hlo_run.triage.predicates import is_same_failure, is_usage_error
from hlo_run.triage.steps import FIRST, STEPS, Edit, Step
from hlo_run.triage.trials import Ended, import_all, run_fork, run_forks, with_modules
from hlo_run.whole_files import write_whole

# The parts of a long list of edits that a search asks about first.
_FIRST_PARTS = (64, 16, 4)
_REFUSED, _SEEN, _LARGER = "refused", "seen", "larger"
# A trial may take this many times as long as the original, and at least so many seconds.
_PATIENCE, _LEAST_SECONDS = 4.0, 10.0

Size = tuple[int, ...]


class Predicate(Protocol):
    """Asks about a file. An answer is a text that is equal for equal failures, or nothing."""

    def ask(self, path: str) -> str:
        """Return the answer; to be called in a fork."""
        ...


class Plan(Struct, frozen=True):
    """The result file and the limits: processes, seconds in all (0: none), seconds per trial (0: by the first run)."""

    output: str
    jobs: int = 1
    seconds: float = 0.0
    trial_seconds: float = 0.0


class Reduction(Struct):
    """The state of a reduction: the smallest module so far and what was tried."""

    module: HloModule
    text: str
    wanted: str
    first: Size
    size: Size
    trials: int = 0
    asked: int = 0
    seconds: float = 0.0
    finished: bool = False
    steps: list[str] = field(default_factory=list[str])


def size_of(module: HloModule, text: str) -> Size:
    """Return the sizes that a reduction makes smaller, compared in order.

    (instructions but parameters and constants, instructions, computations, elements, complexity of the types, magnitudes of
    integer constants, characters).
    """
    instructions = list(module.instructions)
    inner = sum(i.opcode not in values.LEAVES for i in instructions)
    elements = sum(leaf.element_count for i in instructions for _, leaf in i.shape.leaves() if leaf.is_array)
    types = sum(leaf.element_type in texts.SIMPLER for i in instructions for _, leaf in i.shape.leaves())
    constants = sum(abs(number) for i in instructions if (number := attributes.integer_of(i)) is not None)
    return inner, len(instructions), len(module.computations), elements, types, constants, len(text)


class Reducer:
    """Reduces one module for one predicate. `progress` gets a line after each step that made it smaller."""

    def __init__(self, predicate: Predicate, plan: Plan, folder: Path, progress: Progress | None = None) -> None:
        self._predicate, self._plan, self._folder = predicate, plan, folder
        self._progress = progress or Progress()
        self._seen: set[bytes] = set()
        self._begin = time.monotonic()
        self._limit_seconds = plan.trial_seconds
        self._number = 0
        self._state: Reduction | None = None

    @property
    def state(self) -> Reduction:
        """The state; set by `start`."""
        assert self._state is not None, "start comes first"
        return self._state

    def start(self, module: HloModule, file: str) -> str:
        """Ask about the text that the printer makes of the module. Return the failure's bucket, or "" if it has none.

        The text is the start of the reduction and the first result on disk. Raises UsageError if only the original file fails.
        """
        text = module.to_string(PRINTED)
        path = self._trial_path()
        path.write_text(text, encoding="utf-8")
        limit = self._plan.trial_seconds or 600.0
        first = self._ask_file(str(path), limit)
        if is_usage_error(first.bucket):
            raise UsageError(f"the command line is refused, so there is nothing to reduce: {first.bucket}")
        if not first.bucket:
            original = self._ask_file(file, limit) if file != "-" else first
            if original.bucket:
                raise UsageError(f"'{file}' fails ({original.bucket}), but not after hlo-run has printed it as text")
            return ""
        self._limit_seconds = self._plan.trial_seconds or max(_LEAST_SECONDS, _PATIENCE * first.seconds)
        size = size_of(module, text)
        self._state = Reduction(module, text, first.bucket, size, size)
        self._seen.add(_digest(text))
        self._write()
        return first.bucket

    def reduce(self) -> Reduction:
        """Take steps until none makes the module smaller, or the time is over. Return the final state."""
        try:
            for step in FIRST:
                self._step(step)
            while True:
                before = self.state.size
                for step in STEPS:
                    self._step(step)
                if self.state.size == before:
                    self.state.finished = True
                    break
        except _Over:
            pass
        self.state.seconds = time.monotonic() - self._begin
        return self.state

    def recheck(self) -> str:
        """Ask once more about the result on disk, as its command line is printed. Return how it ends if that is another end."""
        ended = run_fork(lambda: self._predicate.ask(self._plan.output), self._limit_seconds, self._progress)
        bucket = self._bucket(ended)
        return "" if is_same_failure(bucket, self.state.wanted) else bucket or "it does not fail"

    # ---- steps

    def _step(self, step: Step) -> None:
        before = self.state.size
        self._progress.doing = f"{before[1]} instructions, {step.name}"
        if step.is_search:
            self._search(step)
        else:
            self._sweep(step)
        if self.state.size != before:
            inner, count = self.state.size[:2]
            took = time.monotonic() - self._begin
            self._progress.tell(f"{took:6.1f} s  {count:6} instructions, {inner} of them not leaves  {step.name}")

    def _search(self, step: Step) -> None:
        """Find the first edit that keeps the failure, if all after it do: one section per process and round.

        The first questions are about the first edits, whose modules are small and quick.
        """
        edits = list(step.edits(self.state.module))
        low, high = -1, len(edits)
        best: tuple[HloModule, str] | None = None
        for point in sorted({len(edits) // part for part in _FIRST_PARTS} - {0}):
            (text,) = self._try([edits[point]], only_first=False)
            if text is not None:
                high, best = point, (parse(text, "<reduced>"), text)
                break
            low = point
        while high - low > 1:
            pieces = min(self._plan.jobs, high - low - 1)
            points = [low + (high - low) * (n + 1) // (pieces + 1) for n in range(pieces)]
            found = self._try([edits[point] for point in points], only_first=False)
            good = [(point, text) for point, text in zip(points, found, strict=True) if text is not None]
            if good:
                high, text = good[0]
                best = (parse(text, "<reduced>"), text)
            low = max([point for point in points if point < high], default=low)
        if best is not None:
            self._adopt(*best)

    def _sweep(self, step: Step) -> None:
        """Try all edits in order. After one that keeps the failure, go on behind it with the edits of the smaller module."""
        place, window = 0, max(self._plan.jobs * 4, 4)
        while True:
            edits = list(islice(step.edits(self.state.module), place, place + window))
            if not edits:
                return
            found = self._try(edits, only_first=True)
            accepted = next((n for n, text in enumerate(found) if text is not None), None)
            if accepted is None:
                place += len(edits)
                continue
            text = found[accepted]
            assert text is not None
            self._adopt(parse(text, "<reduced>"), text)
            place += accepted if step.shrinks else accepted + 1

    # ---- trials

    def _try(self, edits: Sequence[Edit], only_first: bool) -> list[str | None]:
        """Return the text of each edit that keeps the failure, in order; with `only_first` nothing after the first one."""
        left = self._plan.seconds - (time.monotonic() - self._begin) if self._plan.seconds else float("inf")
        if left <= 0:
            raise _Over
        paths = [self._trial_path() for _ in edits]
        works = [partial(self._work, edit, path) for edit, path in zip(edits, paths, strict=True)]

        def keeps(ended: Ended) -> bool:
            return is_same_failure(self._bucket(ended), self.state.wanted)

        limit_seconds = min(self._limit_seconds, left)
        stops = keeps if only_first else _never
        ends = run_forks(works, self._plan.jobs, limit_seconds, stops, self._progress)
        result: list[str | None] = []
        for path, ended in zip(paths, ends, strict=True):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            path.unlink(missing_ok=True)
            if ended is not None:
                self.state.trials += 1
                if text:
                    self.state.asked += 1
                    self._seen.add(_digest(text))
            result.append(text if ended is not None and text and keeps(ended) else None)
        return result

    def _work(self, edit: Edit, path: Path) -> str:
        """Make the edited module, check it, write it to `path`, and ask. In a fork, whose copy of the module is edited."""
        text = edited(edit, self.state.module)
        if text is None or _digest(text) in self._seen:
            return _SEEN
        try:
            made = parse(text, "<reduced>")
        except (HloRunError, AssertionError, ArithmeticError, LookupError, ValueError, TypeError):
            return _REFUSED
        if size_of(made, text) >= self.state.size:
            return _LARGER
        path.write_text(text, encoding="utf-8")
        return self._predicate.ask(str(path))

    def _ask_file(self, file: str, limit_seconds: float) -> _Answer:
        """Ask about a file in a fork, and import what the fork imported."""
        self._progress.doing = "the first run"
        ended = run_fork(lambda: with_modules(lambda: self._predicate.ask(file)), limit_seconds, self._progress)
        if ended.value is None:
            return _Answer(ended.bucket, ended.seconds)
        bucket, modules = ended.value
        import_all(modules)
        return _Answer(bucket, ended.seconds)

    @staticmethod
    def _bucket(ended: Ended) -> str:
        return ended.bucket or str(ended.value or "")

    def _trial_path(self) -> Path:
        self._number += 1
        return self._folder / f"trial_{self._number}.hlo"

    def _adopt(self, module: HloModule, text: str) -> None:
        self.state.module, self.state.text, self.state.size = module, text, size_of(module, text)
        self._write()

    def _write(self) -> None:
        write_whole(self._plan.output, self.state.text.encode())


class _Answer(Struct, frozen=True):
    bucket: str
    seconds: float


class _Over(Exception):
    """The time is over."""


def edited(edit: Edit, module: HloModule) -> str | None:
    """Apply an edit to a module in place and return the text of the result; None if it does not apply."""
    try:
        made = edit(module)
        if isinstance(made, str):
            # Through the parser: the size of a text depends on its spelling.
            module = parse(made, "<reduced>")
        elif not made:
            return None
        structure.tidy(module)
        return module.to_string(PRINTED)
    except (HloRunError, AssertionError, ArithmeticError, LookupError, ValueError, TypeError):
        return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def default_output(file: str) -> str:
    """Return the path of the result: FILE.reduced.hlo for FILE.hlo (.mlir for .mlir), in the working directory for stdin."""
    stem, ending = os.path.splitext(file)
    return "reduced.hlo" if file == "-" else f"{stem}.reduced{ending if ending == '.mlir' else '.hlo'}"


def _never(ended: Ended) -> bool:
    del ended
    return False
