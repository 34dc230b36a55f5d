"""The run of `--check_each_pass`: if every HLO row is right and the run still differs, says where to look next."""

from __future__ import annotations

from hlo_run.commands.check_each_pass import RowMismatch
from hlo_run.commands.localize import culprit_with_files, find
from hlo_run.commands.run import run
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, HloRunError, Mismatch, bug_report
from hlo_run.hlo.graph import HloModule
from hlo_run.triage.localize.found import Localized
from hlo_run.triage.localize.replay import Kind

_RIGHT_ROWS = "every HLO row keeps the module's meaning"
_BUFFERS = "look at the buffers: --verify=every names values whose lifetimes overlap in one buffer"


def run_checked(task: Task, module: HloModule, reference: str) -> None:
    """Run as `run` does. Raises its errors, and a Mismatch or DeviceError of the run with a sentence on where to look next."""
    say = task.console.err
    try:
        run(task, module, reference)
    except RowMismatch:
        raise
    except (Mismatch, DeviceError) as error:
        say(f"\n{_RIGHT_ROWS}, but the run is wrong. Checking every kernel...")
        try:
            where, files = where_to_look(task, module)
        except Exception as bug:  # the failure itself must not get lost behind a bug of the search for its cause
            where, files = f"the kernels cannot be checked: {bug_report(bug).message}", ()
        notes = (*error.notes, f"{_RIGHT_ROWS}; {where}", *files)
        raise type(error)(error.message, error.where, error.hint, notes) from error
    say(f"{_RIGHT_ROWS}, and the run agrees: there is nothing to look for." if reference else f"{_RIGHT_ROWS}.")


def where_to_look(task: Task, module: HloModule) -> tuple[str, tuple[str, ...]]:
    """Return the sentence that names the kernel and its row, or the buffers, and the notes on files that reproduce it."""
    try:
        found = find(task, module)
    except HloRunError as error:
        return f"the kernels cannot be checked: {error.message}", ()
    event = found.replay.first
    if event is None:
        return (f"every kernel alone is right; {_BUFFERS}" if found.replay.first_in_run is None else _sum(found)), ()
    name = f"kernel '{event.kernels[0]}' (%{event.instruction.name})" if event.kernels else f"%{event.instruction.name}"
    match event.kind:
        case Kind.OVERWRITTEN | Kind.SHARED:
            return f"every kernel before {name} is right, but a value that it reads was overwritten; {_BUFFERS}", ()
        case Kind.CONTROL:
            return f"{name} takes another path: {event.note}", ()
        case Kind.MADE | Kind.FAULT:
            _, row, files = culprit_with_files(task, module, found, event)
            return f"{name} is wrong{event.place}; {row}", files


def _sum(found: Localized) -> str:
    event = found.replay.first_in_run
    assert event is not None, "the caller has looked"
    return f"every kernel alone is right; errors within the bounds add up, and exceed them first at %{event.instruction.name}"
