"""The flags --run and --test of tools that ask whether a module fails."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.triage.predicates import Predicate, RunPredicate, TestPredicate


def predicate_of(run: str, test: str, file: str) -> Predicate:
    """Return the predicate of the flags for a file; raises UsageError unless one of the two is given."""
    if bool(run) == bool(test):
        raise UsageError("give --run='hlo-run FLAGS' or --test='COMMAND {}'", hint="--run=hlo-run keeps what hlo-run FILE shows")
    return RunPredicate.of(run, file) if run else TestPredicate.of(test)
