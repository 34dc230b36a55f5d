"""The other questions of bisect: is a run slower than a bound, and does the text of a stage match a pattern?"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from hlo_run.cli import parse_arguments, run
from hlo_run.commands.validate import row_warnings
from hlo_run.errors import UsageError
from hlo_run.options import RunOptions
from hlo_run.triage.predicates import RunPredicate, is_usage_error, own_file

SLOW = "slower than the bound"
MATCHES = "the stage matches the pattern"


class Question(Protocol):
    """Asks about a file with extra flags. An answer is a text that is equal for equal failures, or nothing."""

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Return the answer; to be called in a fork."""
        ...

    def ask_as_printed(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the answer to the text of `command`; to be called in a fork."""
        ...

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command line that shows the answer."""
        ...


class SlowQuestion(Struct, frozen=True):
    """True if hlo-run uses more than `seconds` of processor time, its compile workers included."""

    run: RunPredicate
    seconds: float

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Return SLOW, the bucket of a run that is refused, or nothing."""
        del environment
        return self._timed(partial(self.run.ask, path, extra))

    def ask_as_printed(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the answer to the text of the command."""
        return self._timed(partial(self.run.ask_as_printed, path, extra))

    def _timed(self, ask: Callable[[], str]) -> str:
        begin = sum(os.times()[:4])
        bucket = ask()
        return SLOW if sum(os.times()[:4]) - begin > self.seconds else bucket if is_usage_error(bucket) else ""

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command line to time."""
        return "time " + self.run.command(path, extra)


class TextQuestion(Struct, frozen=True):
    """True if the text of a stage matches a regular expression."""

    run: RunPredicate
    stage: str
    pattern: str

    @staticmethod
    def of(run_: RunPredicate, text: str) -> TextQuestion:
        """Return the question of `--matches=STAGE:REGEX`; raises UsageError for another form or stage."""
        stage, colon, pattern = text.partition(":")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--matches={text}: {error}") from None
        if not colon or not stage or not pattern:
            raise UsageError(f"--matches={text} is not of the form STAGE:REGEX", hint="--matches=hlo:transpose")
        options, _, _ = parse_arguments([f"--stage={stage}"])
        row_warnings(options)
        return TextQuestion(run_, stage, pattern)

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Return MATCHES, nothing, or a text if there is no stage."""
        text, code = stage_text(self.run, path, self.stage, extra, environment)
        return MATCHES if re.search(self.pattern, text, re.MULTILINE) else f"hlo-run: exit code {code}" if code else ""

    def ask_as_printed(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the answer again: the printed command has a grep behind hlo-run."""
        return self.ask(path, extra)

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command line that prints the stage and searches it."""
        shown = RunPredicate(_of_compilation(self.run.with_flags(extra))).command(path, (f"--stage={self.stage}",))
        return f"{shown} | grep -E {shlex.quote(self.pattern)}"


def stage_text(
    run_: RunPredicate, path: str, stage: str, extra: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[str, int]:
    """Return the text of a stage, or nothing if the compilation fails before it, and the exit code. To be called in a fork."""
    os.environ.update(environment or {})
    output = Path(own_file("stage.txt"))
    try:
        code = run(["--cache=off", *_of_compilation(run_.with_flags(extra)), f"--stage={stage}", f"--output_file={output}", path])
        return (output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""), code
    finally:
        output.unlink(missing_ok=True)


def _of_compilation(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags, written as --NAME=VALUE, that a command which prints a stage takes, without flags of a run."""
    running = {field.name for field in fields(RunOptions)}
    return tuple(flag for flag in flags if flag.lstrip("-").partition("=")[0].replace("-", "_") not in running)
