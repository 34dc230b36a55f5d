"""Check that the test of every HLO pass shows its effect: the test must fail if the pass does nothing.

    python3 scripts/venv.py python scripts/pass_effects.py [PASS..]

The tests are those of docs/passes.md. For each, a process makes the pass do nothing and runs the test. Prints the passes whose
test passes all the same, and exits with 1 if there is one. It takes about a second of processor time for a pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from pass_table import tests_of_passes

from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.table import PIPELINE
from hlo_run.target import DEFAULT_TARGET, preset

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Try the passes of the command line, or all; return 1 if a test does not see that its pass does nothing."""
    tests = tests_of_passes()
    names = sys.argv[1:] or list(tests)
    if unknown := [name for name in names if name not in tests]:
        sys.stderr.write(f"docs/passes.md has no test of {', '.join(unknown)}\n")
        return 2
    ctx = PassContext(preset(DEFAULT_TARGET), Options())
    classes: dict[str, set[type]] = {}
    for group in PIPELINE:
        for _, row in group.all_rows():
            classes.setdefault(row.pass_name, set()).add(type(row.make(ctx)))
    os.chdir(ROOT)
    blind = [name for name in names if not _fails_without(classes[name], tests[name])]
    for name in blind:
        sys.stdout.write(f"{tests[name]} does not see that {name} does nothing\n")
    sys.stdout.write(f"{len(names) - len(blind)} of {len(names)} tests fail if their pass does nothing\n")
    return 1 if blind else 0


def _fails_without(classes: set[type], test: str) -> bool:
    """Return whether a test fails in a process whose passes of these classes do nothing."""
    process = os.fork()
    if not process:
        _run_without(classes, test)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) == pytest.ExitCode.TESTS_FAILED


def _run_without(classes: set[type], test: str) -> NoReturn:
    for kind in classes:
        kind.apply = _nothing  # type: ignore[attr-defined]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    code = 70
    try:
        code = int(pytest.main([test, "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]))
    finally:
        os._exit(code)


def _nothing(_self: object, _ctx: PassContext, _module: HloModule) -> None:
    """Do nothing, in the place of a pass."""


if __name__ == "__main__":
    raise SystemExit(main())
