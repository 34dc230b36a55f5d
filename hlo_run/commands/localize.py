"""`--localize`: replays a run thunk by thunk beside the reference, names the first wrong thunk, and cuts it out."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time

from hlo_run.backends.memory import check_memory
from hlo_run.commands.check_each_pass import pass_checker
from hlo_run.commands.compilation import compiling
from hlo_run.commands.task import Task
from hlo_run.containment.board import busy
from hlo_run.errors import DeviceError, Mismatch, Unsupported, UsageError
from hlo_run.execution.arguments import MODULE_SEED, Arguments, infeeds
from hlo_run.execution.iterations import rounds_on_the_way
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.kernel_checks.checks import KernelChecks
from hlo_run.kernel_checks.outcomes import Outcome
from hlo_run.localize.found import Localized, open_host, reproducer_of, unscheduled, verdicts_of
from hlo_run.localize.kernel_rows import row_of_kernel
from hlo_run.localize.replay import Event, Kind, Replay
from hlo_run.localize.report import culprit, summed_up, table
from hlo_run.localize.reproducer import write_reproducer
from hlo_run.pass_support.replacements import file_name
from hlo_run.pipeline.compile import compile_module, optimize, planned_buffers
from hlo_run.records import replace
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.evaluate.loop_limit import EndlessLoop, loops_end_within

# The optimised module may take this many times as long as the module, and at least so many seconds.
_PATIENCE, _LEAST_SECONDS = 20.0, 10.0


def first_arguments(task: Task, module: HloModule) -> tuple[list[Literal], str, Feeds]:
    """Return the first iteration's arguments, their source, and the infeeds. Raises UsageError for several devices."""
    arguments = Arguments(task.options, module, task.given, task.place, task.given_from)
    if arguments.grid.size > 1:
        raise UsageError(f"the replay takes one device, the module has {arguments.grid}")
    arguments.prepare()
    return *arguments.next(1), infeeds(task.options, module, task.place, 1)


def find(task: Task, module: HloModule) -> Localized:
    """Compile as a run does, run, and replay. Raises errors of the HloRunError family."""
    options, console = task.options, task.console
    backend = open_host(options)
    if task.executable is not None:
        raise UsageError("a saved executable has no module to replay", hint="give the HLO file")
    values, source, feeds = first_arguments(task, module)
    verdicts = verdicts_of(options)
    begin = time.monotonic()
    with busy("evaluating the module"):
        expected = evaluate(module, values, seed=MODULE_SEED, feeds=feeds)
    limit_seconds = max(_LEAST_SECONDS, _PATIENCE * (time.monotonic() - begin))
    with compiling(replace_checks(task), module) as (ctx, working):
        executable = compile_module(ctx, working)
    check_memory(executable)
    console.err(f"Replaying {module.name} on Host with {source}...")
    passes: Comparison | None = None
    try:
        with busy("evaluating the optimised module"), loops_end_within(limit_seconds):
            optimised = evaluate(unscheduled(working), values, seed=MODULE_SEED, feeds=feeds)
        passes = verdicts.of_module(module, values, expected, optimised, feeds)
    except EndlessLoop as error:
        raise pass_to_blame(task, module, error.message, None) from None
    except Unsupported as error:
        console.err(f"the HLO passes are not checked: {error.message}")
    checks = KernelChecks(working, executable, verdicts, backend.run_aside, checks_all=True)
    backend.watch_next_run(checks)
    try:
        actual = backend.run(executable, values, MODULE_SEED, feeds)
        checks.finish()
        run = verdicts.of_module(module, values, expected, actual, feeds)
    except DeviceError as error:
        console.err(f"the run fails: {error.message}")
        run = None
    buffers = planned_buffers(ctx.options, working)
    replay = Replay(working, buffers, executable, backend, verdicts, feeds, options.timeout)
    with busy("replaying"):
        replay.replay(values)
    replay.first = replay.first or _hidden_by_operands(list(checks.outcomes.values()))
    return Localized(ctx, buffers, executable, replay, passes, run)


def _hidden_by_operands(outcomes: list[Outcome]) -> Event | None:
    """Return the event of the first kernel that differs alone. The replay did not see it if the reference's operands hide it."""
    wrong = next((outcome for outcome in outcomes if outcome.verdict == "differs" and outcome.operands), None)
    if wrong is None:
        return None
    unit = wrong.unit
    leaves = tuple(path for path, _ in unit.leaves)
    return Event(Kind.MADE, unit.instruction, f" {wrong.place}", unit.kernels, wrong.operands, leaves, wrong.comparison)


def replace_checks(task: Task) -> Task:
    """Return the task without the flag that checks every pass: a compilation for a replay checks none."""
    return replace(task, options=dataclasses.replace(task.options, check_each_pass=False))


def localize(task: Task, module: HloModule) -> None:
    """Print the table of all thunks. Raises Mismatch with the culprit if something differs."""
    found = find(task, module)
    replay, console = found.replay, task.console
    records = list(replay.records.values())
    console.out(table(records))
    event = replay.first
    blame = culprit_with_files(task, module, found, event)[0] if event is not None else None
    if found.passes is not None and not found.passes.ok:
        raise pass_to_blame(task, module, found.passes.summary(), blame)
    if blame is not None:
        raise blame
    if found.run is not None and found.run.ok:
        console.err(f"\n** All {len(records)} thunks agree with the reference alone, and the run agrees. **")
        console.err(found.run.summary())
        return
    if replay.first_in_run is not None:
        raise summed_up(replay.first_in_run, records)
    result = "it fails" if found.run is None else found.run.summary()
    raise Mismatch(
        "the run differs, but no thunk of its replay does",
        hint="--verify=every checks the buffers, --host_check=race,init the kernels",
        notes=(f"the run: {result}",),
    )


def pass_to_blame(task: Task, module: HloModule, passes: str, kernel: Mismatch | None) -> Mismatch:
    """Return the error that names the HLO row that changed the module's meaning. `kernel` is another culprit, if any."""
    notes = [f"the optimised module by the reference: {passes}"]
    if task.options.xla_allow_excess_precision and rounds_on_the_way(module):
        notes.append(
            "the passes may omit roundings to narrow floats, as XLA does; --xla_allow_excess_precision=false keeps most of them"
        )
    if kernel is not None:
        notes += [f"also: {kernel.message}", *kernel.notes]
    hint = "the same command with --check_each_pass for --localize cuts out what the pass changed"
    try:
        checked = replace_checks(task)
        with compiling(checked, module, watching=(pass_checker(checked, module),)) as (ctx, working):
            optimize(ctx, working)
    except Mismatch as row:
        return Mismatch(f"an HLO pass is to blame: {row.message}", notes=(*row.notes, *notes), hint=hint)
    return Mismatch(f"the HLO passes together changed the meaning of {module.name}", notes=tuple(notes), hint=hint)


def culprit_with_files(task: Task, module: HloModule, found: Localized, event: Event) -> tuple[Mismatch, str, tuple[str, ...]]:
    """Return the error that names the culprit, the sentence on its row, and the notes on the files that reproduce it.

    The files are written if the culprit is a thunk of its own; else the sentence and the notes are empty.
    """
    error = culprit(event)
    if event.kind not in (Kind.MADE, Kind.FAULT):
        return error, "", ()
    options = task.options
    reproducer, is_shown = reproducer_of(found, event, options)
    folder = options.localize_dir or os.path.join(task.folder, f"{file_name(module.name)}.localize")
    with busy("checking the rows of the kernel"):
        row = row_of_kernel(options, found, event, reproducer, is_shown)
    what = f"{module.name}: {error.message}.\n{row[:1].upper()}{row[1:]}."
    if not is_shown:
        what += "\nThe files alone do not show the error: it depends on the buffers or the state of the whole run."
    command = write_reproducer(folder, reproducer, found.executable, options, what)
    files = [f"reproduce: cd {shlex.quote(folder)} && {command}"]
    if not is_shown:
        files.append("the files alone do not show the error: it depends on the buffers or the state of the whole run")
    return Mismatch(error.message, error.where, error.hint, (*error.notes, row, *files)), row, tuple(files)
