"""`--localize`: replays a run thunk by thunk beside the reference, names the first that differs, and cuts it out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from hlo_run.artifact import Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.memory import check_memory
from hlo_run.commands.check_each_pass import pass_checker
from hlo_run.commands.compilation import compiling
from hlo_run.commands.task import Task
from hlo_run.containment.board import busy
from hlo_run.errors import DeviceError, HloRunError, Mismatch, Unsupported, UsageError
from hlo_run.execution.arguments import MODULE_SEED, Arguments, infeeds
from hlo_run.execution.error_bounds import error_spec, has_fixed_bounds
from hlo_run.execution.iterations import rounds_on_the_way
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import FULL
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.replacements import Replacements, file_name
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module, optimize
from hlo_run.platforms import HOST, platform_name
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.runtime.buffers import BufferAssignment, assign_buffers
from hlo_run.triage.localize.replay import Event, Kind, Replay
from hlo_run.triage.localize.report import culprit, summed_up, table
from hlo_run.triage.localize.reproducer import Reproducer, make_reproducer, smallest_that_differs, write_reproducer
from hlo_run.triage.localize.verdicts import Verdicts


@dataclass(frozen=True)
class Localized:
    """What `--localize` has found: the compiled run, its replay, and how the results of the whole modules compare.

    `passes` compares the optimised module with the module by the reference, and is None if the reference cannot evaluate it.
    `run` compares the run with the module, and is None after a fault.
    """

    ctx: PassContext
    buffers: BufferAssignment
    executable: Executable
    replay: Replay
    passes: Comparison | None
    run: Comparison | None


def open_host(options: Options) -> HostBackend:
    """Return the platform of a replay; raises UsageError if the flags ask for another one."""
    if options.platform and platform_name(options.platform) != HOST:
        raise UsageError(f"the replay runs on Host, not on {platform_name(options.platform)}", hint="--platform=Host")
    return HostBackend((), options.timeout, options.host_engine, options.xla_gpu_deterministic_ops)


def verdicts_of(options: Options) -> Verdicts:
    """Return the rules by which a run with these flags compares."""
    return Verdicts(error_spec(options), has_fixed_bounds(options), MODULE_SEED)


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
    with busy("evaluating the module"):
        expected = evaluate(module, values, seed=MODULE_SEED, feeds=feeds)
    with compiling(replace_checks(task), module) as (ctx, working):
        executable = compile_module(ctx, working)
    check_memory(executable)
    console.err(f"Replaying {module.name} on Host with {source}...")
    passes: Comparison | None = None
    try:
        with busy("evaluating the optimised module"):
            optimised = evaluate(unscheduled(working), values, seed=MODULE_SEED, feeds=feeds)
        passes = verdicts.of_module(module, values, expected, optimised, feeds)
    except Unsupported as error:
        console.err(f"the HLO passes are not checked: {error.message}")
    try:
        actual = backend.run(executable, values, MODULE_SEED, feeds)
        run = verdicts.of_module(module, values, expected, actual, feeds)
    except DeviceError as error:
        console.err(f"the run fails: {error.message}")
        run = None
    buffers = assign_buffers(working)
    replay = Replay(working, buffers, executable, backend, verdicts, feeds, options.timeout)
    with busy("replaying"):
        replay.replay(values)
    return Localized(ctx, buffers, executable, replay, passes, run)


def replace_checks(task: Task) -> Task:
    """Return the task without the flag that checks every pass: a compilation for a replay checks none."""
    return replace(task, options=replace(task.options, check_each_pass=False))


def unscheduled(module: HloModule) -> HloModule:
    """Return a copy of a module for the reference, which may not have a schedule's order."""
    copy = module.clone()
    copy.schedule = None
    return copy


def localize(task: Task, module: HloModule) -> None:
    """Print the table of all thunks. Raises Mismatch with the culprit if something differs."""
    found = find(task, module)
    replay, console = found.replay, task.console
    records = list(replay.records.values())
    console.out(table(records))
    event = replay.first
    blame = culprit_with_files(task, module, found, event) if event is not None else None
    if found.passes is not None and not found.passes.ok:
        raise pass_to_blame(task, module, found.passes, blame)
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


def pass_to_blame(task: Task, module: HloModule, passes: Comparison, kernel: Mismatch | None) -> Mismatch:
    """Return the error that names the HLO row that changed the module's meaning. `kernel` is another culprit, if any."""
    notes = [f"the optimised module by the reference: {passes.summary()}"]
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


def culprit_with_files(task: Task, module: HloModule, found: Localized, event: Event) -> Mismatch:
    """Return the error that names the culprit, after its reproducer was written if the culprit is a thunk of its own."""
    error = culprit(event)
    if event.kind not in (Kind.MADE, Kind.FAULT):
        return error
    options = task.options
    reproducer, is_shown = reproducer_of(found, event, options)
    folder = options.localize_dir or os.path.join(task.folder, f"{file_name(module.name)}.localize")
    what = f"{module.name}: {error.message}."
    if not is_shown:
        what += "\nThe files alone do not show the error: it depends on the buffers or the state of the whole run."
    command = write_reproducer(folder, reproducer, found.executable, options, what)
    notes = [*error.notes, f"reproduce: cd {folder} && {command}"]
    if not is_shown:
        notes.append("the files alone do not show the error: it depends on the buffers or the state of the whole run")
    return Mismatch(error.message, error.where, error.hint, tuple(notes))


def reproducer_of(found: Localized, event: Event, options: Options) -> tuple[Reproducer, bool]:
    """Return the reproducer of a thunk that differs or fails, and whether it shows that alone."""

    def make(scheduled: bool) -> Reproducer:
        given = found.ctx.replacements
        return make_reproducer(event.instruction, event.kernels, event.operands, found.buffers, given, scheduled, event.leaves)

    fails = event.kind is Kind.FAULT
    return smallest_that_differs(make, lambda made: shows(found.ctx, made, options, fails))


def shows(ctx: PassContext, made: Reproducer, options: Options, fails: bool) -> bool:
    """True if the reproducer, as it will be read from its files, differs from the reference; with `fails`, if it fails."""
    try:
        module = parse(made.module.to_string(FULL), f"{made.name}.hlo")
        expected = evaluate(unscheduled(module), made.values, seed=MODULE_SEED)
        executable = compile_module(alone_context(ctx, made), module)
        actual = open_host(options).run(executable, made.values, MODULE_SEED)
    except DeviceError:
        return fails
    except HloRunError:
        return False
    return not verdicts_of(options).of_module(module, made.values, expected, actual).ok


def alone_context(ctx: PassContext, made: Reproducer) -> PassContext:
    """Return a context for the reproducer: the replacements of its own kernels, no observers and no checks of passes."""
    given = ctx.replacements
    own = Replacements(
        {kernel: dump for kernel, dump in given.ir.items() if kernel in made.kernels},
        {kernel: text for kernel, text in given.llvm.items() if kernel in made.kernels},
        {kernel: text for kernel, text in given.ptx.items() if kernel in made.kernels},
    )
    return replace(ctx, observers=(), replacements=own, options=replace(ctx.options, check_each_pass=False))
