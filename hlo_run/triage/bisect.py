"""Finds the pass, the rewrite, the LLVM pass and ptxas' level that a failure needs, by running the module with fewer of them."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from hlo_run.containment.progress import Progress
from hlo_run.errors import UsageError
from hlo_run.hlo_passes.fuel import COUNTED_KERNEL_REWRITES, COUNTED_REWRITES
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE
from hlo_run.pipeline.table import BACKEND_PIPELINE, PIPELINE
from hlo_run.pipeline.table_rows import base_name
from hlo_run.triage.predicates import RunPredicate, TestPredicate, own_file
from hlo_run.triage.questions import Question, SlowQuestion
from hlo_run.triage.trials import Ended, import_all, loaded_modules, run_forks

_KERNEL = re.compile(r"^// row: .*?; kernel: (\w+);")
_DUMP_NUMBER = re.compile(r"\.\d+\.after_")
_VALUE = re.compile(r"%\w+")
_LEVELS = ("0", "1", "2", "3")
_PASS = re.compile(r"^BISECT: running pass \((\d+)\) (.*)$", re.MULTILINE)
# LLVM's passes do not matter for a row that raises, dies or never ends.
_ROW_DIED = re.compile(r"row '|hlo passes: |kernel passes: |emit: ")
_DIED_IN = re.compile(r"(\w+): crash: ")
_NONE = ("--xla_disable_all_hlo_passes",)
_ALL_PASSES = (1 << 31) - 1
_MOST_REWRITES = 1 << 24
_NO_LEVELS = "The levels of ptxas cannot matter: it checks the PTX, and what it makes does not run."
# What a run answers whose flags exclude each other.
_BAD_FLAGS = "hlo-run: exit code 2"
_SHOWN_LINES, _WIDTH = 8, 160
# The limit of a run by that of one without optional rows.
_PATIENCE, _LEAST_SECONDS, _MOST_SECONDS = 5.0, 10.0, 300.0


class Limits(Struct, frozen=True):
    """Processes, seconds per run (0: five times a run without optional rows), and how often each question is asked."""

    jobs: int = 1
    seconds: float = 0.0
    repeat: int = 1


class Row(Struct, frozen=True):
    """A row that may be skipped: its name, the name of its pass, and whether it is a row of kernels."""

    name: str
    pass_name: str
    is_kernel: bool


class Finding(Struct, frozen=True):
    """A sentence that names a culprit, the command with it, the one without it, and the lines that changed."""

    sentence: str
    with_it: str
    without_it: str = ""
    lines: tuple[str, ...] = ()


class Bisection(Struct):
    """What a bisection found. `wanted` is the failure; empty: the file does not fail. `runs` counts runs of the module."""

    wanted: str = ""
    flaky: bool = False
    runs: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    notes: list[str] = field(default_factory=list[str])


def optional_rows() -> list[Row]:
    """Return the rows of both tables that a flag can skip, in the order in which they run first."""
    found: dict[tuple[str, bool], Row] = {}
    required: set[tuple[str, bool]] = set()
    rows: list[tuple[str, str, bool, bool]] = []
    for group in (*PIPELINE, *BACKEND_PIPELINE):
        rows += [(row.name, row.pass_name, row.required, False) for _, row in group.all_rows()]
    rows += [(row.name, base_name(row.name), row.required, True) for row in KERNEL_PIPELINE]
    for name, pass_name, is_required, is_kernel in rows:
        if is_required:
            # The name of a pass means all its rows, and a flag may not name a required one.
            required |= {(name, is_kernel), (base_name(name), is_kernel)}
        found.setdefault((name, is_kernel), Row(name, pass_name, is_kernel))
    return [row for key, row in found.items() if key not in required]


class Bisector:
    """Bisects one file for one question."""

    def __init__(
        self, question: Question, run: RunPredicate, path: str, limits: Limits, progress: Progress | None = None
    ) -> None:
        self._question, self._run, self._path, self._limits = question, run, path, limits
        self._progress = progress or Progress()
        self._is_run = isinstance(question, RunPredicate)
        self._known: dict[tuple[str, ...], bool] = {}
        self.result = Bisection()

    def bisect(self) -> Bisection:
        """Search the pass tables, the rewrites of the pass found, and LLVM's passes."""
        rows = optional_rows()
        off = self._off(rows)
        self._progress.doing = "the first runs"
        self._set_limit(off)
        answers = self._ask([()], count=max(self._limits.repeat, 1))[0]
        if not any(answers):
            return self.result
        self.result.wanted = next(filter(None, answers))
        self.result.flaky = len(set(answers)) > 1
        self._progress.tell(f"the failure: {self.result.wanted}")
        if not self._fails([off])[0]:
            self._find_row(rows)
        else:
            self._progress.tell("it fails without any optional row")
        if not (self.result.findings and _ROW_DIED.match(self.result.wanted)):
            self._find_llvm_pass()
            self._find_ptxas_level()
        if not self.result.findings:
            self._find_rest(off)
        if self._ignores_ptxas():
            self.result.notes.append(_NO_LEVELS)
        return self.result

    def _set_limit(self, off: tuple[str, ...]) -> None:
        """Limit the runs by the user's `--timeout`, or the time of one without optional rows, which no row delays for ever."""
        given = self._limits.seconds or (self._run.timeout_seconds if self._is_run else 0.0)
        if given:
            self._limits = replace(self._limits, seconds=given)
            return
        self._limits = replace(self._limits, seconds=_MOST_SECONDS)
        begin = time.monotonic()
        self._ask([off], 1)
        seconds = min(max(_PATIENCE * (time.monotonic() - begin), _LEAST_SECONDS), _MOST_SECONDS)
        self._limits = replace(self._limits, seconds=seconds)

    # ---- rows

    @staticmethod
    def _off(rows: Sequence[Row]) -> tuple[str, ...]:
        flags = (("xla_disable_hlo_passes", False), ("disable_kernel_passes", True))
        named = [(flag, [row.name for row in rows if row.is_kernel == is_kernel]) for flag, is_kernel in flags]
        return tuple(f"--{flag}={','.join(names)}" for flag, names in named if names)

    def _find_row(self, rows: list[Row]) -> None:
        named = self._named_row(rows)
        if named is not None:
            without = self._off([named])
            sentence = f"The failure names the {_kind(named)} '{named.name}'; the whole pipeline without it does not fail."
            self.result.findings.append(Finding(sentence, self._shown(()), self._shown(without)))
            if "time-out" not in self.result.wanted:
                self._find_rewrite(named, ())
            return
        count = self._first(len(rows), lambda kept: self._off(rows[kept:]), "rows")
        row = rows[count - 1]
        alone = self._off([row])
        decides = not self._fails([alone])[0]
        base = () if decides else self._off(rows[count:])
        tail = "the whole pipeline without it does not fail" if decides else "later rows also show the failure without it"
        without = self._shown(alone if decides else self._off(rows[count - 1 :]))
        sentence = f"The {_kind(row)} '{row.name}' is the first with which it fails; {tail}."
        self.result.findings.append(Finding(sentence, self._shown(base), without))
        self._find_rewrite(row, base)

    def _named_row(self, rows: list[Row]) -> Row | None:
        """Return the row that the failure names, if the whole pipeline without it does not fail."""
        words = set(re.findall(r"[\w-]+", self.result.wanted.partition(":")[0] + self.result.wanted.rpartition("(")[2]))
        for row in rows:
            if row.name in words and not self._fails([self._off([row])])[0]:
                return row
        return None

    def _find_rewrite(self, row: Row, flags: tuple[str, ...]) -> None:
        """Find the number of the first rewrite of a pass with which it fails."""

        def fueled(count: int) -> tuple[str, ...]:
            return (*flags, f"--{'kernel_fuel' if row.is_kernel else 'xla_fuel'}={row.pass_name}={count}")

        if self._fails([fueled(0)])[0]:
            return
        high = 1
        while not self._fails([fueled(high)])[0]:
            high *= 4
            if high > _MOST_REWRITES:
                return
        number = self._first(high, fueled, f"rewrites of {row.pass_name}")
        is_counted = row.pass_name in (COUNTED_KERNEL_REWRITES if row.is_kernel else COUNTED_REWRITES)
        unit = "rewrite" if is_counted else f"run that changes {'a kernel' if row.is_kernel else 'the module'}"
        sentence = f"{_ordinal(number)} {unit} of '{row.pass_name}' is the first with which it fails."
        before, after = fueled(number - 1), fueled(number)
        lines = self._difference(before, after, row.is_kernel)
        self.result.findings.append(Finding(sentence, self._shown(after), self._shown(before), lines))

    def _difference(self, before: Sequence[str], after: Sequence[str], is_kernel: bool) -> tuple[str, ...]:
        """Return the lines that the first row with another result removes (-) and adds (+), after the kernel's name."""
        works = [partial(_dumps, self._run, self._path, flags, is_kernel) for flags in (before, after)]
        one, two = (_texts(end) for end in self._forks(works))
        # A kernel's row that changes nothing has no dump, so the dump before it is compared.
        names = sorted(set(one) | set(two)) if is_kernel else sorted(set(one) & set(two))
        for name in names:
            old, new = (_kernel_dump(texts, name) if is_kernel else texts[name] for texts in (one, two))
            lines = (_changed_operations if is_kernel else _changed_instructions)(old, new)
            if lines:
                more = [f"and {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
                kernel = [f"kernel '{found[1]}'"] if (found := _KERNEL.search(new)) is not None else []
                return (*kernel, *(line[:_WIDTH] for line in lines[:_SHOWN_LINES]), *more)
        return ()

    # ---- LLVM

    def _find_llvm_pass(self) -> None:
        def limited(count: int) -> tuple[str, ...]:
            return (f"--llvm_opt_bisect_limit={count}",)

        without, everything = self._fails([limited(0), limited(_ALL_PASSES)])
        if without or not everything:
            return
        total = len(_PASS.findall(self._words(limited(_ALL_PASSES))))
        if not total:
            return
        number = self._first(total, limited, "LLVM passes")
        names = dict(_PASS.findall(self._words(limited(number))))
        name = names.get(str(number), "unknown")
        self.result.findings.append(
            Finding(
                f"LLVM pass {number} of {total}, {name}, is the first with which it fails.",
                self._shown(limited(number)),
                self._shown(limited(number - 1)),
            )
        )

    # ---- ptxas

    def _ignores_ptxas(self) -> bool:
        """True if the answer cannot depend on ptxas: neither its messages, nor its time, nor a command is asked about."""
        return not isinstance(self._question, TestPredicate | SlowQuestion) and not self.result.wanted.startswith("ptxas: ")

    def _find_ptxas_level(self) -> None:
        """Find the first level of ptxas with which it fails, if a lower one does not fail."""
        if self._ignores_ptxas():
            return
        fails = self._fails([(f"--ptxas_opt_level={level}",) for level in _LEVELS])
        if all(fails) or not any(fails):
            return
        level = fails.index(True)
        good = [number for number, failing in enumerate(fails) if not failing]
        near = max((number for number in good if number < level), default=good[0])
        self.result.findings.append(
            Finding(
                f"ptxas at -O{level} is the lowest level with which it fails; it does not fail with"
                f" {', '.join(f'-O{number}' for number in good)}.",
                self._shown((f"--ptxas_opt_level={level}",)),
                self._shown((f"--ptxas_opt_level={near}",)),
            )
        )

    def _words(self, flags: Sequence[str]) -> str:
        """Return what hlo-run and LLVM write to stderr."""
        (end,) = self._forks([partial(_with_stderr, self._run, self._path, flags)])
        return str(end.value or "") if end is not None else ""

    # ---- the rest

    def _find_rest(self, off: tuple[str, ...]) -> None:
        """Say where the fault is if no pass that can be skipped decides: an engine of Host, or a required step."""
        native = _DIED_IN.match(self.result.wanted)
        if native is not None and native[1] in ("LLVM", "ptxas"):
            sentence = f"{native[1]} dies of the IR that it gets, whatever passes run. hlo-run without bisect keeps that IR."
            self.result.findings.append(Finding(sentence, self._shown(())))
            return
        if self._is_run and not self._fails([("--host_engine=emulator",)])[0]:
            emulated = self._shown(("--host_engine=emulator",))
            self.result.findings.append(Finding("Native code on Host fails, the emulator does not.", self._shown(()), emulated))
            return
        self.result.findings.append(
            Finding(
                "It fails without any pass that can be skipped: a required row, an emitter or the platform is at fault.",
                self._shown(_NONE if self._fails([_NONE])[0] else off),
            )
        )

    # ---- questions

    def _first(self, count: int, flags: Callable[[int], tuple[str, ...]], what: str) -> int:
        """Return the first number from 1 to `count` with which it fails. 0 does not fail, `count` does."""
        low, high = 0, count
        while high - low > 1:
            self._progress.doing = f"{what}: between {low} and {high}"
            pieces = min(self._limits.jobs, high - low - 1)
            points = [low + (high - low) * (n + 1) // (pieces + 1) for n in range(pieces)]
            failing = self._fails([flags(point) for point in points])
            bad = [point for point, fails in zip(points, failing, strict=True) if fails]
            high = min(bad, default=high)
            low = max([point for point in points if point < high], default=low)
            self._progress.tell(f"{what}: between {low} and {high}")
        return high

    def _fails(self, questions: Sequence[tuple[str, ...]]) -> list[bool]:
        """Return for each set of flags whether the wanted failure occurs, at least once if questions are repeated."""
        new = [flags for flags in dict.fromkeys(questions) if flags not in self._known]
        for flags, answers in zip(new, self._ask(new, self._limits.repeat), strict=True):
            if _BAD_FLAGS in answers and self.result.wanted != _BAD_FLAGS:
                raise UsageError("the search cannot add its flags to these", hint=self._shown(flags))
            hits = [answer == self.result.wanted for answer in answers]
            self.result.flaky |= len(set(hits)) > 1
            self._known[flags] = any(hits)
        return [self._known[flags] for flags in questions]

    def _ask(self, questions: Sequence[tuple[str, ...]], count: int) -> list[list[str]]:
        works = [partial(self._answer, flags) for flags in questions for _ in range(count)]
        answers: list[str] = []
        for end in self._forks(works):
            assert end is not None, "no question ends another one"
            if end.value is None:
                answers.append(end.bucket)
                continue
            answer, modules = end.value
            import_all(modules)
            answers.append(answer)
        return [answers[n * count : (n + 1) * count] for n in range(len(questions))]

    def _answer(self, flags: tuple[str, ...]) -> tuple[str, list[str]]:
        return self._question.ask(self._path, flags), loaded_modules()

    def _forks(self, works: Sequence[Callable[[], Any]]) -> list[Ended | None]:
        self.result.runs += len(works)
        return run_forks(works, self._limits.jobs, self._limits.seconds, progress=self._progress)

    def _shown(self, flags: Sequence[str]) -> str:
        return self._question.command(self._path, flags)


def _texts(end: Ended | None) -> dict[str, str]:
    """Return what `_dumps` returned in a fork; {} if it failed."""
    return dict(end.value) if end is not None and end.value is not None else {}


def _kernel_dump(texts: Mapping[str, str], name: str) -> str:
    """Return the dump of this name, or that of the last earlier row of the same kernel that changed it; empty without one."""
    kernel = _DUMP_NUMBER.split(name)[0]
    return texts[max((each for each in texts if each <= name and _DUMP_NUMBER.split(each)[0] == kernel), default=name)]


def _changed_instructions(before: str, after: str) -> list[str]:
    old, new = ([line.strip() for line in text.splitlines() if " = " in line] for text in (before, after))
    gone, come = set(old) - set(new), set(new) - set(old)
    return [f"- {line}" for line in old if line in gone] + [f"+ {line}" for line in new if line in come]


def _changed_operations(before: str, after: str) -> list[str]:
    """Return the operations that differ in more than the names of their values, which a change renumbers."""
    old, new = ([line.strip() for line in text.splitlines() if not line.startswith(("//", "#"))] for text in (before, after))
    plain = [[_VALUE.sub("%", line) for line in lines] for lines in (old, new)]
    lines: list[str] = []
    for tag, begin, end, new_begin, new_end in SequenceMatcher(None, *plain, autojunk=False).get_opcodes():
        if tag != "equal":
            lines += [f"- {line}" for line in old[begin:end]] + [f"+ {line}" for line in new[new_begin:new_end]]
    # Operands that were swapped differ in nothing but names.
    return lines or _changed_instructions(before, after)


def _dumps(run: RunPredicate, path: str, flags: Sequence[str], is_kernel: bool) -> dict[str, str]:
    """Run hlo-run and return the module, or each kernel, after each row that changed it, by the name of its dump. In a fork."""
    folder = Path(own_file("dumps"))
    kind = "--dump_kernel_rows" if is_kernel else "--xla_dump_hlo_pass_re=.*"
    run.ask(path, (*flags, f"--xla_dump_to={folder}", kind))
    files = folder.glob("*.mlir" if is_kernel else "*.txt")
    found = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in files}
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _with_stderr(run: RunPredicate, path: str, flags: Sequence[str]) -> str:
    """Run hlo-run and return its stderr. In a fork: it replaces the file descriptor."""
    file = Path(own_file("stderr.txt"))
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        run.ask(path, flags)
        return file.read_text(encoding="utf-8", errors="replace")
    finally:
        file.unlink(missing_ok=True)


def _kind(row: Row) -> str:
    return "kernel row" if row.is_kernel else "row"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"The {number}{ending}"
