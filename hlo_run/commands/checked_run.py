"""Runs a module for `--check_each_pass`: if every HLO row is right and the run still differs, says where to look next."""

from __future__ import annotations

import dataclasses

from hlo_run.commands.check_each_pass import Candidate, RowMismatch
from hlo_run.commands.compilation import compiling
from hlo_run.commands.isolate_fusion import write_isolated
from hlo_run.commands.load import load
from hlo_run.commands.localize import culprit_with_files, find, replace_checks
from hlo_run.commands.run import run
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, HloRunError, InternalError, Mismatch, bug_report
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.execution.console import FilePosition, SilentConsole
from hlo_run.execution.results import FileResult
from hlo_run.hlo.graph import HloModule
from hlo_run.localize.found import Localized, unscheduled, verdicts_of
from hlo_run.localize.replay import Kind
from hlo_run.options import Options
from hlo_run.options.command_line import REPLACING_FILES, hlo_run_command, options_alone
from hlo_run.pipeline.compile import optimize, plan_module
from hlo_run.platforms import reference_platform
from hlo_run.records import replace
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.loop_limit import loops_end_within

_RIGHT_ROWS = "every HLO row keeps the module's meaning"
# A reproducer of a row is tried for so many seconds.
_SECONDS = 30.0


def run_checked(task: Task, module: HloModule) -> None:
    """Run as `run` does. Raises its errors, and a Mismatch or DeviceError of the run with a sentence on where to look next."""
    say = task.console.err
    try:
        run(task, module)
    except RowMismatch as error:
        raise with_reproducer(task, error) from error
    except (Mismatch, DeviceError) as error:
        say(f"\n{_RIGHT_ROWS}, but the run is wrong. Checking every kernel...")
        try:
            where, files = where_to_look(task, module)
        except Exception as bug:  # the failure itself must not get lost behind a bug of the search for its cause
            where, files = f"the kernels cannot be checked: {bug_report(bug).message}", ()
        notes = (*error.notes, f"{_RIGHT_ROWS}; {where}", *files)
        raise type(error)(error.message, error.where, error.hint, notes) from error
    say(f"{_RIGHT_ROWS}, and the run agrees: there is nothing to look for." if task.result.reference else f"{_RIGHT_ROWS}.")


def with_reproducer(task: Task, error: RowMismatch) -> RowMismatch:
    """Return the error with a command that shows it again, tried on the smallest module that a compilation breaks."""
    for candidate in error.candidates:
        if not _breaks(task, candidate):
            continue
        path = candidate.path or write_isolated(task.folder, error.name, candidate.module, candidate.values)
        # A replaced kernel is one of the whole module.
        options = options_alone(task.options, path, REPLACING_FILES)
        if _differs(task, options, f"{path}.hlo"):
            note = f"reproduce: {hlo_run_command(options, f'{path}.hlo')}"
            return RowMismatch(error.message, error.where, error.hint, (*error.notes, note))
    note = "no part of the module shows it alone: the command with --check_each_pass does"
    return RowMismatch(error.message, error.where, error.hint, (*error.notes, note)) if error.candidates else error


def _breaks(task: Task, candidate: Candidate) -> bool:
    """True if the HLO passes change the result of a module, or fail."""
    module, seed = candidate.module, MODULE_SEED
    try:
        expected = evaluate(unscheduled(module), candidate.values, seed=seed)
        with compiling(replace_checks(task), module) as (ctx, working), loops_end_within(_SECONDS):
            optimize(replace(ctx, observers=()), working)
            actual = evaluate(unscheduled(working), candidate.values, seed=seed)
    except (HloRunError, MemoryError):
        return False
    return not verdicts_of(task.options).of_module(module, candidate.values, expected, actual).ok


def where_to_look(task: Task, module: HloModule) -> tuple[str, tuple[str, ...]]:
    """Return the sentence that names the kernel and its row, or the buffers, and the notes on files that reproduce it."""
    try:
        found = find(task, module)
    except HloRunError as error:
        return f"the kernels cannot be checked: {error.message}", ()
    event = found.replay.first
    if event is None:
        return (f"every kernel alone is right; {_memory(task, module)}" if found.replay.first_in_run is None else _sum(found)), ()
    name = f"kernel '{event.kernels[0]}' (%{event.instruction.name})" if event.kernels else f"%{event.instruction.name}"
    match event.kind:
        case Kind.OVERWRITTEN | Kind.SHARED:
            return f"every kernel before {name} is right, but a value that it reads was overwritten; {_memory(task, module)}", ()
        case Kind.CONTROL:
            return f"{name} takes another path: {event.note}", ()
        case Kind.MADE | Kind.FAULT:
            _, row, files = culprit_with_files(task, module, found, event)
            return f"{name} is wrong{event.place}; {row}", files


def _memory(task: Task, module: HloModule) -> str:
    """Return where to look if kernels find other values in memory than they should: the check of the buffers decides."""
    try:
        with compiling(replace_checks(task), module) as (ctx, working):
            plan_module(replace(ctx, options=dataclasses.replace(ctx.options, verify="every"), observers=()), working)
    except InternalError as error:
        return f"look at the buffers: --verify=every says that {error.message}"
    return "look at the order of the thunks (--stage=thunks) and at what runs them, as --verify=every finds the buffers right"


def _sum(found: Localized) -> str:
    event = found.replay.first_in_run
    assert event is not None, "the caller has looked"
    return f"every kernel alone is right; errors within the bounds add up, and exceed them first at %{event.instruction.name}"


def _differs(task: Task, options: Options, file: str) -> bool:
    """Run a file with these options, as a separate command line but without output. True if the result differs."""
    result = FileResult(file, reference=reference_platform(options))
    own = Task.of(options, FilePosition(0, 1), result, SilentConsole(), task.claim)
    try:
        run(own, load(own))
    except Mismatch:
        return True
    except HloRunError:
        return False
    return False
