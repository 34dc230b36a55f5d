"""The questions that reduce and bisect ask about a module: which failure does it have, and is it the one that is sought?"""

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
from hlo_run.errors import UsageError
from hlo_run.options.programs import FLAGS

INTERESTING = "the test ends with exit code 0"
_PROGRAM = "hlo-run"
# Flags that a trial sets itself unless the user does: without them trials would share a cache and compile in many processes.
_OWN = {"cache": "off", "compile_processes": "1"}


class RunPredicate(Struct, frozen=True):
    """Asks hlo-run, in this process. `flags` are those of the user's `hlo-run flags..`."""

    flags: tuple[str, ...]

    @staticmethod
    def of(command: str) -> RunPredicate:
        """Return the predicate of `--run='hlo-run flags..'`; raises UsageError for bad flags and for files among them."""
        words = shlex.split(command)
        if words and Path(words[0]).name == _PROGRAM:
            words = words[1:]
        _, files, _ = parse_arguments(words)
        if [file for file in files if file != "{}"]:
            raise UsageError(f"--run takes hlo-run's flags without a file, got '{files[0]}'", hint="--run='hlo-run --flag'")
        return RunPredicate(tuple(word for word in words if word != "{}"))

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Run the module of a file and return the bucket of its failure, or nothing if it passes.

        To be called in a fork: it changes the working state of the process, which may crash or hang.
        """
        os.environ.update(environment or {})
        report = own_file("report.json")
        flags = self.with_flags(extra)
        given = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in flags if word.startswith("-")}
        own = [f"--{name}={value}" for name, value in _OWN.items() if name in FLAGS.fields and name not in given]
        code = run([*own, *flags, f"--report_json={report}", path])
        try:
            record = json.loads(Path(report).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return f"hlo-run: exit code {code}" if code else ""
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
        """Return the flags with `extra` ones. Rows that either skip are skipped, where the last flag alone would count."""
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
        """Run the command; return INTERESTING for exit code 0, else nothing. `extra` flags are added to XLA_FLAGS."""
        done = subprocess.run(
            self._words(path),
            shell=True,
            env=_environment(extra, environment),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return INTERESTING if done.returncode == 0 else ""

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command line that shows the failure of a file."""
        flags = _environment(extra, None)["XLA_FLAGS"] if extra else ""
        return (f"XLA_FLAGS={shlex.quote(flags)} " if extra else "") + self._words(path)

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
