"""The questions that reduce and bisect ask about a module: which failure it has, and whether it is the wanted one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hlo_run.cli import parse_arguments, run
from hlo_run.commands.target_choice import with_dumped_target
from hlo_run.errors import UsageError
from hlo_run.options.command_line import flag_words

INTERESTING = "the test ends with exit code 0"
_PROGRAM = "hlo-run"
# Flags that a trial sets itself unless the user does: without them trials would share a cache and compile in many processes.
_OWN = {"cache": "off", "compile_processes": "1"}
_NAN, _VALUES = "mismatch: NaN", "mismatch: wrong values"
# Exit codes that say nothing about the file: of a shell that cannot run a command, of `timeout`, of `git bisect skip`.
_SAYS_NOTHING = range(124, 128)
_FIRST_OF_SIGNALS = 128


def is_same_failure(bucket: str, wanted: str) -> bool:
    """True for equal buckets. A wrong value and a NaN are equal: one becomes the other on its way through a module."""
    return bucket.replace(_NAN, _VALUES) == wanted.replace(_NAN, _VALUES)


def is_usage_error(bucket: str) -> bool:
    """True if hlo-run refused the command line, so that the bucket says nothing about the file."""
    return ": usage error: " in bucket or bucket == _refused(UsageError.exit_code)


def _refused(code: int) -> str:
    return f"hlo-run: exit code {code}"


class RunPredicate(Struct, frozen=True):
    """Asks hlo-run, in this process. `flags` come from the user's `hlo-run flags..` and from XLA_FLAGS, as `--name=value`."""

    flags: tuple[str, ...]

    @staticmethod
    def of(command: str, file: str = "") -> RunPredicate:
        """Return the predicate of `--run='hlo-run flags..'`; raises UsageError for bad flags and for files among them.

        `file` is the file that is asked about: a GPU that a dump names beside it is that of all files in its place.
        """
        words = shlex.split(command)
        if words and Path(words[0]).name == _PROGRAM:
            words = words[1:]
        options, files, _ = parse_arguments([word for word in words if word != "{}"])
        if files:
            raise UsageError(f"--run takes hlo-run's flags without a file, got '{files[0]}'", hint="--run='hlo-run --flag'")
        return RunPredicate(tuple(flag_words(with_dumped_target(options, file))))

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Run the module of a file and return the bucket of its failure, or nothing if it passes.

        To be called in a fork: it changes the working state of the process, which may crash or hang.
        """
        os.environ.update(environment or {})
        return self._ask([*self.with_flags(extra), path])

    def ask_as_printed(self, path: str, extra: Sequence[str] = ()) -> str:
        """Ask by the text of `command`, so that the answer confirms the text; to be called in a fork."""
        return self._ask(shlex.split(self.command(path, extra))[1:])

    @staticmethod
    def _ask(words: Sequence[str]) -> str:
        report = own_file("report.json")
        given = {word.lstrip("-").partition("=")[0] for word in words}
        own = [f"--{name}={value}" for name, value in _OWN.items() if name not in given]
        # The reproducers of internal errors go where the other files of a trial go: the user's own must stay.
        own += [] if "crash_dir" in given else [f"--crash_dir={own_file('crashes')}"]
        code = run([*own, f"--report_json={report}", *words])
        try:
            record = json.loads(Path(report).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return _refused(code) if code else ""
        finally:
            Path(report).unlink(missing_ok=True)
        signature = record["files"][0]["signature"] if record["files"] else None
        return str(signature["bucket"]) if signature is not None else ""

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command line that shows the failure of a file."""
        return shlex.join([_PROGRAM, *self.with_flags(extra), path])

    @property
    def timeout_seconds(self) -> float:
        """The user's limit of a run, 0 without one. A trial has no supervisor, so whoever starts it must stop it."""
        return parse_arguments(self.flags)[0].timeout

    def with_flags(self, extra: Sequence[str]) -> list[str]:
        """Return the flags with `extra` ones. Rows that either skips are skipped, where the last flag alone would count."""
        from hlo_run.triage.row_flags import merged

        return merged(self.flags, extra)


class TestPredicate(Struct, frozen=True):
    """Asks a shell command in which `{}` is the file. Exit code 0 means that the file is interesting."""

    __test__ = False  # not a test of pytest
    text: str

    @staticmethod
    def of(text: str) -> TestPredicate:
        """Return the predicate of `--test='command {}'`; raises UsageError without `{}`."""
        if "{}" not in text:
            raise UsageError(f"--test has no {{}} for the file: {text}", hint="--test='command {}'")
        return TestPredicate(text)

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Run the command; return INTERESTING for exit code 0, nothing for others, and a text for those that say nothing.

        `extra` flags are added to XLA_FLAGS.
        """
        return self._ask(self._words(path), _environment(extra, environment))

    def ask_as_printed(self, path: str, extra: Sequence[str] = ()) -> str:
        """Ask by the text of `command`; to be called in a fork."""
        return self._ask(self.command(path, extra), dict(os.environ))

    @staticmethod
    def _ask(text: str, environment: Mapping[str, str]) -> str:
        done = subprocess.run(
            text,
            shell=True,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        code = done.returncode
        if code < 0 or code in _SAYS_NOTHING or code >= _FIRST_OF_SIGNALS:
            return f"the command: exit code {code}"
        return "" if code else INTERESTING

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command line that shows the failure of a file."""
        flags = _environment(extra, None).get("XLA_FLAGS", "")
        return (f"XLA_FLAGS={shlex.quote(flags)} " if flags else "") + self._words(path)

    def _words(self, path: str) -> str:
        return self.text.replace("{}", shlex.quote(path))


def _environment(extra: Sequence[str], environment: Mapping[str, str] | None) -> dict[str, str]:
    base = {**os.environ, **(environment or {})}
    if extra:
        base["XLA_FLAGS"] = " ".join(filter(None, (base.get("XLA_FLAGS", ""), *extra)))
    return base


Predicate = RunPredicate | TestPredicate


def own_file(name: str) -> str:
    """Return the path of a temporary file of this process."""
    return os.path.join(tempfile.gettempdir(), f"hlo-tool-{os.getpid()}-{name}")
