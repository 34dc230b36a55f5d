"""Finds the replaced file, the pass, the rewrite, the LLVM pass and ptxas' level that a failure needs, by runs without them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from hlo_run.containment.progress import Progress
from hlo_run.pass_support.fuel import COUNTED_KERNEL_REWRITES, COUNTED_REWRITES
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE
from hlo_run.pipeline.table import BACKEND_PIPELINE, PIPELINE
from hlo_run.pipeline.table_rows import base_name
from hlo_run.records import replace
from hlo_run.triage.asking import Asker, Bisection, Flags, Limits
from hlo_run.triage.changes import changed_lines, dumps
from hlo_run.triage.predicates import RunPredicate, TestPredicate, own_file
from hlo_run.triage.questions import Question, SlowQuestion
from hlo_run.triage.suspects import INSERTED, Suspect, listed, suspects_of, without

_LEVELS = ("0", "1", "2", "3")
_PASS = re.compile(r"^BISECT: running pass \((\d+)\) (.*)$", re.MULTILINE)
# LLVM's passes do not matter for a row that raises, dies or never ends.
_ROW_DIED = re.compile(r"row '|hlo passes: |kernel passes: |emit: ")
_DIED_IN = re.compile(r"(\w+): crash: ")
_NONE = ("--xla_disable_all_hlo_passes",)
_ALL_PASSES = (1 << 31) - 1
_MOST_REWRITES = 1 << 24
# Failures of the stage in which files are read.
_READING = "read: "
_NO_LEVELS = "The levels of ptxas cannot matter: it checks the PTX, and what it makes does not run."
# The limit of a run by that of one without optional rows.
_PATIENCE, _LEAST_SECONDS, _MOST_SECONDS = 5.0, 10.0, 300.0
# A run may take this many times the bound of --slower_than.
_SLOWER = 3.0
# So many causes are looked for. Rows are left out one by one in groups of this size, until one decides.
_MOST_CAUSES, _ROWS_AT_ONCE = 3, 16


class Row(Struct, frozen=True):
    """A row that may be skipped: its name, the name of its pass, and whether it is a row of kernels."""

    name: str
    pass_name: str
    is_kernel: bool

    @property
    def words(self) -> str:
        """The description of the row, for sentences."""
        return f"{'kernel row' if self.is_kernel else 'row'} '{self.name}'"


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


def _off(rows: Sequence[Row]) -> Flags:
    """Return the flags that skip rows."""
    flags = (("xla_disable_hlo_passes", False), ("disable_kernel_passes", True))
    named = [(flag, [row.name for row in rows if row.is_kernel == is_kernel]) for flag, is_kernel in flags]
    return tuple(f"--{flag}={','.join(names)}" for flag, names in named if names)


class Bisector:
    """Bisects one file for one question."""

    def __init__(
        self, question: Question, run: RunPredicate, path: str, limits: Limits, progress: Progress | None = None
    ) -> None:
        self._asker = Asker(question, path, limits, progress or Progress())
        self._question, self._run, self._rows = question, run, optional_rows()
        self._suspects = suspects_of(run) if not isinstance(question, TestPredicate) else ()
        # The suspects that the search goes without, and the flags with which it does not fail.
        self._left_out: Sequence[Suspect] = ()
        self._cure: Flags = ()
        self.result = self._asker.result

    def bisect(self) -> Bisection:
        """Ask about the files and passes of the user, then search the pass tables, the rewrites, and LLVM's passes."""
        asker, off = self._asker, _off(self._rows)
        asker.progress.doing = "the first runs"
        self._set_limit(off)
        if not asker.start():
            return self.result
        asker.progress.tell(f"the failure: {self.result.wanted}")
        guilty = self._ask_suspects(off)
        if not guilty and self.result.wanted.startswith(_READING):
            asker.claim("It fails while the file is read, before any pass: the file is at fault, or its reader.", ())
            return self.result
        rows = self._rows_behind(guilty)
        if rows is not None:
            self._search_behind(guilty, rows)
        self._ask_left_out()
        if self._ignores_ptxas():
            self.result.notes.append(_NO_LEVELS)
        return self.result

    def _search_behind(self, guilty: Sequence[Suspect], rows: Sequence[Row]) -> None:
        """Search the rows, LLVM's passes and ptxas' levels, with the guilty replacement in place."""
        before, notes = len(self.result.findings), len(self.result.notes)
        bottom = self._asker.fail(_off(rows)) if rows else True
        if bottom:
            self._asker.progress.tell("it fails without any optional row")
        elif not self._find_named_row(rows):
            self._find_rows(rows)
        has_row = len(self.result.findings) > before
        if not (has_row and _ROW_DIED.match(self.result.wanted)):
            self._find_llvm_pass()
            self._find_ptxas_level()
        if bottom and not guilty and (len(self.result.findings), len(self.result.notes)) == (before, notes):
            self._find_rest(_off(rows))

    def _set_limit(self, off: Flags) -> None:
        """Limit the runs by the user's `--timeout`, or the time of one without optional rows, which no row delays for ever."""
        asker = self._asker
        is_run = isinstance(self._question, RunPredicate)
        given = asker.limits.seconds or (self._run.timeout_seconds if is_run else 0.0)
        if given:
            asker.limits = replace(asker.limits, seconds=given)
            return
        asker.limits = replace(asker.limits, seconds=_MOST_SECONDS)
        begin = time.monotonic()
        asker.ask([(*without(self._suspects, self._suspects), *off)], 1)
        seconds = min(max(_PATIENCE * (time.monotonic() - begin), _LEAST_SECONDS), _MOST_SECONDS)
        if isinstance(self._question, SlowQuestion):
            seconds = max(seconds, _SLOWER * self._question.seconds)
        asker.limits = replace(asker.limits, seconds=seconds)

    # ---- what the user gave

    def _ask_suspects(self, off: Flags) -> list[Suspect]:
        """Return the replaced files and inserted passes without which it does not fail, and claim that."""
        asker, suspects = self._asker, self._suspects
        if not suspects:
            return []
        removed = without(suspects, suspects)
        still = asker.fail(removed)
        if still is None:
            other = asker.other_failure(removed)
            self.result.notes.append(
                f"It cannot be said whether {listed(suspects)} {_are(suspects)} at fault: it ends with '{other}' without."
            )
            return []
        if still:
            self._left_out, asker.base = suspects, removed
            self.result.notes.append(f"It fails without {listed(suspects)} as well, so the search leaves {_them(suspects)} out.")
            return []
        alone = asker.fails([without(suspects, [suspect]) for suspect in suspects])
        guilty = [suspect for suspect, fails in zip(suspects, alone, strict=True) if fails is False]
        for suspect in guilty:
            self._claim_suspect(suspect, off)
        if guilty:
            return guilty
        for suspect in suspects:
            others = without(suspects, [each for each in suspects if each is not suspect])
            if asker.fail(others):
                guilty.append(suspect)
                asker.claim(f"{_capital(suspect.words)} is at fault, also without the others.", others, removed)
        if not guilty:
            asker.claim(f"{_capital(listed(suspects))} are at fault together: without them, it does not fail.", (), removed)
        return guilty or list(suspects)

    def _claim_suspect(self, suspect: Suspect, off: Flags) -> None:
        """Claim that a suspect is at fault, or that it needs a row for that."""
        removed = without(self._suspects, [suspect])
        is_last = suspect.flag != INSERTED
        needs_rows = not is_last and self._asker.fail(off) is False
        sentence = "It does not fail without {}." if needs_rows else "{} is the fault: without it, it does not fail."
        words = suspect.words if needs_rows else _capital(suspect.words)
        self._asker.claim(sentence.format(words), (), removed)
        if not is_last and "plugin error" not in self.result.wanted:
            self._find_rewrite(Row(suspect.name, suspect.name, False), ())

    def _rows_behind(self, guilty: Sequence[Suspect]) -> list[Row] | None:
        """Return the rows that may also matter behind a replaced file or an inserted pass; None: nothing does behind PTX."""
        flags = {suspect.flag for suspect in guilty}
        if "xla_gpu_ptx_file" in flags:
            return None
        if "xla_gpu_llvm_ir_file" in flags:
            return []
        return [row for row in self._rows if row.is_kernel] if "kernel_ir_file" in flags else self._rows

    def _ask_left_out(self) -> None:
        """Ask whether what the search left out is at fault as well, once the other cause is away."""
        if not (self._left_out and self._cure):
            return
        asker, suspects = self._asker, self._left_out
        asker.base = ()
        for suspect in suspects:
            only = (*self._cure, *without(suspects, [each for each in suspects if each is not suspect]))
            removed = (*self._cure, *without(suspects, suspects))
            if asker.fail(only) and asker.fail(removed) is False:
                asker.claim(f"{_capital(suspect.words)} is at fault as well.", only, removed)

    # ---- rows

    def _find_named_row(self, rows: Sequence[Row]) -> bool:
        """Claim the row that the failure names, if the whole pipeline without it does not fail."""
        wanted = self.result.wanted
        words = set(re.findall(r"[\w-]+", wanted.partition(":")[0] + wanted.rpartition("(")[2]))
        for row in rows:
            if row.name not in words or self._asker.fail(_off([row])) is not False:
                continue
            sentence = f"The failure names the {row.words}; the whole pipeline without it does not fail."
            if self._asker.claim(sentence, (), _off([row])):
                self._cure = _off([row])
                if "time-out" not in wanted:
                    self._find_rewrite(row, ())
                return True
        return False

    def _find_rows(self, rows: Sequence[Row]) -> None:
        """Find the first row with which it fails; if it still fails without that one, the first of the others, and so on."""
        skipped: list[Row] = []
        while len(skipped) < _MOST_CAUSES:
            left = [row for row in rows if row not in skipped]
            found = self._find_row(left, skipped)
            if found is None:
                return
            skipped.append(found)
            if self._asker.fail(_off(skipped)) is not True:
                return

    def _find_row(self, left: Sequence[Row], skipped: Sequence[Row]) -> Row | None:
        """Find the first row with which it fails while others are skipped. Return it if it still fails without it."""
        asker = self._asker

        def kept(count: int) -> Flags:
            return _off([*left[count:], *skipped])

        low = 0 if asker.fail(kept(0)) is False else -1
        low, high = asker.search(kept, low, len(left), "rows")
        if low < 0 or high - low > 1:
            self._say_what_is_known(left, skipped, low, high)
            return None
        row, base = left[high - 1], _off(skipped)
        decisive = self._decisive(row, left, skipped)
        first = f"The {row.words} is the first with which it fails; "
        if skipped:
            first = f"Without {' and '.join(each.words for each in skipped)}, the {row.words} is the first with which it fails; "
        if decisive and not self._is_sensitive(left, high, skipped):
            whole = "the whole pipeline without it does not fail" if len(decisive) == 1 else "it does not fail without its pass"
            cure = _off([*decisive, *skipped])
            if asker.claim(f"{first}{whole}.", base, cure):
                self._cure = cure
                self._find_rewrite(row, base)
            return None
        if decisive and high == len(left):
            question = "Does the command take the flags of the search?"
            self.result.notes.append(f"It does not fail whichever row is skipped, so no row can be blamed. {question}")
            return None
        other = asker.other_failure(_off([row, *skipped]))
        tail = f"without it alone, it ends with '{other}'" if other else "later rows also show the failure without it"
        tail = "skipping other rows alone also hides it" if decisive else tail
        if asker.claim(f"{first}{tail}.", kept(high), kept(high - 1)):
            self._find_rewrite(row, kept(high))
        return None if decisive else row

    def _decisive(self, row: Row, left: Sequence[Row], skipped: Sequence[Row]) -> list[Row]:
        """Return the row, or all rows of its pass, if it does not fail without them; else nothing."""
        family = [each for each in left if (each.pass_name, each.is_kernel) == (row.pass_name, row.is_kernel)]
        for rows in ([row], family):
            if self._asker.fail(_off([*rows, *skipped])) is False:
                return rows
        return []

    def _is_sensitive(self, left: Sequence[Row], high: int, skipped: Sequence[Row]) -> bool:
        """True if it does not fail without the neighbours either: then anything hides the failure, flags that are refused too."""
        row = left[high - 1]
        before = [each for each in left[: high - 1] if each.pass_name != row.pass_name][-1:]
        after = [each for each in left[high:] if each.pass_name != row.pass_name]
        controls = [*before, *after[: 2 - len(before)]]
        answers = self._asker.fails([_off([each, *skipped]) for each in controls])
        return bool(answers) and all(answer is False for answer in answers)

    def _say_what_is_known(self, left: Sequence[Row], skipped: Sequence[Row], low: int, high: int) -> None:
        """Leave out each row between two numbers of rows alone. Claim those that decide, else only the two numbers."""
        asker, base = self._asker, _off(skipped)
        asker.progress.doing = "rows one by one"
        between, deciding, size = left[max(low, 0) : high], list[Row](), 1
        for start in range(0, len(between), _ROWS_AT_ONCE):
            some = between[start : start + _ROWS_AT_ONCE]
            answers = asker.fails([_off([row, *skipped]) for row in some])
            deciding, size = [row for row, fails in zip(some, answers, strict=True) if fails is False], len(some)
            if deciding:
                break
        if deciding and len(deciding) < max(size, 2):
            for row in deciding[:_MOST_CAUSES]:
                if asker.claim(f"The whole pipeline without the {row.words} does not fail.", base, _off([row, *skipped])):
                    self._cure = _off([row, *skipped])
                    self._find_rewrite(row, base)
            if len(deciding) > _MOST_CAUSES:
                self.result.notes.append(f"Without any of {len(deciding)} rows it does not fail; {_MOST_CAUSES} are shown.")
            return
        others = (asker.other_failure(_off([*left[count:], *skipped])) for count in range(low + 1, high))
        other = next(filter(None, others), "")
        self.result.notes.append(
            f"The search cannot narrow it further: with fewer rows it ends with another failure, such as '{other}'."
        )
        begin = f"after '{left[low - 1].name}'" if low > 0 else "at the first row"
        sentence = f"The row that it needs is between others: {begin}, and at the latest '{left[high - 1].name}'."
        asker.claim(sentence, _off([*left[high:], *skipped]), _off([*left[low:], *skipped]) if low >= 0 else None)

    def _find_rewrite(self, row: Row, flags: Flags) -> None:
        """Find the number of the first rewrite of a pass with which it fails."""
        asker = self._asker

        def fueled(count: int) -> Flags:
            return (*flags, f"--{'kernel_fuel' if row.is_kernel else 'xla_fuel'}={row.pass_name}={count}")

        if asker.fail(fueled(0)) is not False:
            return
        high = 1
        while not asker.fail(fueled(high)):
            high *= 4
            if high > _MOST_REWRITES:
                return
        low, high = asker.search(fueled, 0, high, f"rewrites of {row.pass_name}")
        is_counted = row.pass_name in (COUNTED_KERNEL_REWRITES if row.is_kernel else COUNTED_REWRITES)
        unit = "rewrite" if is_counted else f"run that changes {'a kernel' if row.is_kernel else 'the module'}"
        if high - low == 1:
            sentence = f"{_ordinal(high)} {unit} of '{row.pass_name}' is the first with which it fails."
        else:
            count = f"between {low + 1} and {high}"
            sentence = f"It fails with '{row.pass_name}' {high} times ({unit}), and not with {low}; {count} it ends otherwise."
        works = [
            partial(dumps, self._run, asker.path, (*asker.base, *fueled(count)), row.is_kernel) for count in (high - 1, high)
        ]
        lines = changed_lines(asker.forks(works), row.is_kernel) if high - low == 1 else ()
        asker.claim(sentence, fueled(high), fueled(low), lines)

    # ---- LLVM

    def _find_llvm_pass(self) -> None:
        asker = self._asker

        def limited(count: int) -> Flags:
            return (f"--llvm_opt_bisect_limit={count}",)

        if asker.fails([limited(0), limited(_ALL_PASSES)]) != [False, True]:
            return
        total = len(_PASS.findall(self._words(limited(_ALL_PASSES))))
        if not total:
            return
        low, high = asker.search(limited, 0, total, "LLVM passes")
        if high == total and asker.fail(limited(total)) is not True:
            return
        names = dict(_PASS.findall(self._words(limited(high))))
        sentence = f"LLVM pass {high} of {total}, {names.get(str(high), 'unknown')}, is the first with which it fails."
        if high - low > 1:
            sentence = f"LLVM pass {low + 1} to {high} of {total} is the first with which it fails; those between end otherwise."
        if asker.claim(sentence, limited(high), limited(low)):
            self._cure = self._cure or limited(low)

    def _words(self, flags: Flags) -> str:
        """Return what hlo-run and LLVM write to stderr."""
        asker = self._asker
        (end,) = asker.forks([partial(_with_stderr, self._run, asker.path, (*asker.base, *flags))])
        return str(end.value or "") if end is not None else ""

    # ---- ptxas

    def _ignores_ptxas(self) -> bool:
        """True if the answer cannot depend on ptxas: neither its messages, nor its time, nor a command is asked about."""
        return not isinstance(self._question, TestPredicate | SlowQuestion) and not self.result.wanted.startswith("ptxas: ")

    def _find_ptxas_level(self) -> None:
        """Find the first level of ptxas with which it fails, if a lower one does not fail."""
        if self._ignores_ptxas():
            return
        fails = self._asker.fails([(f"--ptxas_opt_level={level}",) for level in _LEVELS])
        good = [number for number, failing in enumerate(fails) if failing is False]
        if True not in fails or not good:
            return
        level = fails.index(True)
        near = max((number for number in good if number < level), default=good[0])
        self._asker.claim(
            f"ptxas at -O{level} is the lowest level with which it fails; it does not fail with"
            f" {', '.join(f'-O{number}' for number in good)}.",
            (f"--ptxas_opt_level={level}",),
            (f"--ptxas_opt_level={near}",),
        )

    # ---- the rest

    def _find_rest(self, off: Flags) -> None:
        """Say where the fault is if no pass that can be skipped decides: an engine of Host, or a required step."""
        asker = self._asker
        native = _DIED_IN.match(self.result.wanted)
        if native is not None and native[1] in ("LLVM", "ptxas"):
            sentence = f"{native[1]} dies of the IR that it gets, whatever passes run. hlo-run without bisect keeps that IR."
            asker.claim(sentence, ())
            return
        emulated = ("--host_engine=emulator",)
        if isinstance(self._question, RunPredicate) and asker.fail(emulated) is False:
            asker.claim("Native code on Host fails, the emulator does not.", (), emulated)
            return
        sentence = "It fails without any pass that can be skipped: a required row, an emitter or the platform is at fault."
        asker.claim(sentence, _NONE if asker.fail(_NONE) else off)


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


def _are(suspects: Sequence[Suspect]) -> str:
    return "are" if len(suspects) > 1 else "is"


def _them(suspects: Sequence[Suspect]) -> str:
    return "them" if len(suspects) > 1 else "it"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"The {number}{ending}"
