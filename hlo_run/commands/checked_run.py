"""The run of `--check_each_pass`: if every HLO row is right and the run still differs, says where to look next."""

from __future__ import annotations

from dataclasses import replace

from hlo_run.commands.check_each_pass import RowMismatch
from hlo_run.commands.kernel_rows import KernelDumps, blame, check_rows
from hlo_run.commands.localize import Localized, alone_context, find, reproducer_of, shows
from hlo_run.commands.run import run
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, HloRunError, Mismatch
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import FULL
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.ops.parse import parse
from hlo_run.pipeline.compile import compile_module
from hlo_run.triage.localize.replay import Event, Kind

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
        notes = (*error.notes, f"{_RIGHT_ROWS}; {where_to_look(task, module)}")
        raise type(error)(error.message, error.where, error.hint, notes) from error
    say(f"{_RIGHT_ROWS}, and the run agrees: there is nothing to look for." if reference else f"{_RIGHT_ROWS}.")


def where_to_look(task: Task, module: HloModule) -> str:
    """Return the sentence that names the kernel and its row, or the buffers."""
    try:
        found = find(task, module)
    except HloRunError as error:
        return f"the kernels cannot be checked: {error.message}"
    event = found.replay.first
    command = "the same command with --localize for --check_each_pass writes files that reproduce it"
    if event is None:
        return f"every kernel alone is right; {_BUFFERS}" if found.replay.first_in_run is None else _sum(found)
    name = f"kernel '{event.kernels[0]}' (%{event.instruction.name})" if event.kernels else f"%{event.instruction.name}"
    match event.kind:
        case Kind.OVERWRITTEN | Kind.SHARED:
            return f"every kernel before {name} is right, but a value that it reads was overwritten; {_BUFFERS}"
        case Kind.CONTROL:
            return f"{name} takes another path: {event.note}"
        case Kind.MADE | Kind.FAULT:
            return f"{name} is wrong{event.place}; {_row_of_kernel(task, found, event)}; {command}"


def _sum(found: Localized) -> str:
    event = found.replay.first_in_run
    assert event is not None, "the caller has looked"
    return f"every kernel alone is right; errors within the bounds add up, and exceed them first at %{event.instruction.name}"


def _row_of_kernel(task: Task, found: Localized, event: Event) -> str:
    """Return the sentence on the rows of the kernel."""
    ctx = found.ctx
    if len(event.kernels) != 1:
        return "it has no kernel of its own" if not event.kernels else "its rows are not checked: it has several kernels"
    (kernel,) = event.kernels
    for texts in (ctx.replacements.ptx, ctx.replacements.llvm):
        if kernel in texts:
            return f"look at '{texts[kernel].file}', which replaces it"
    made, is_shown = reproducer_of(found, event, task.options)
    if not is_shown:
        return "its rows are not checked: alone, the kernel is right"
    fails = event.kind is Kind.FAULT
    dumps = KernelDumps(kernel, ctx.target.name)
    given = ctx.replacements.ir.get(kernel)
    plain = replace(ctx, replacements=replace(ctx.replacements, ir={}))

    def is_right(with_rows: PassContext) -> bool:
        return not shows(with_rows, made, task.options, fails)

    try:
        compile_module(
            replace(alone_context(ctx, made), observers=(dumps,)),
            parse(made.module.to_string(FULL), f"{made.name}.hlo"),
        )
    except HloRunError as error:
        return f"its rows are not checked: {error.message}"
    found_dumps = [given, *dumps.dumps] if given is not None else dumps.dumps
    verdicts = check_rows(plain, found_dumps, is_right)
    if given is not None and verdicts and not verdicts[0].is_right:
        return f"look at '{given.file}', which replaces it: the IR there is wrong with no optional row after it"
    return blame(verdicts, plain, found_dumps, is_right)
