"""The default mode: runs a module on a platform and compares its result with the reference."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.backends.memory import check_memory
from hlo_run.commands.compilation import compiling, set_device_counts
from hlo_run.commands.target_choice import choose_target
from hlo_run.commands.task import Task
from hlo_run.containment.board import limited
from hlo_run.errors import DeviceError, Unsupported, UsageError
from hlo_run.execution.arguments import Arguments
from hlo_run.execution.iterations import Execution, Runner
from hlo_run.execution.kernel_checks import checks_of_run
from hlo_run.execution.kernel_meter import KernelMeter
from hlo_run.execution.output_files import write_artefact
from hlo_run.execution.reference_platforms import opened_reference
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.options import Options
from hlo_run.pipeline.executable_cache import compile_or_load
from hlo_run.platforms import INTERPRETER, choose_platform, open_backend
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.values import NO_REFERENCE

if TYPE_CHECKING:
    from hlo_run.artifact import Executable
    from hlo_run.backends import Backend
    from hlo_run.backends.profile import Profile
    from hlo_run.execution.sharing import Joined
    from hlo_run.kernel_checks.checks import KernelChecks

_GRACE_SECONDS = 2.0


def run(task: Task, module: HloModule) -> None:
    """Run on the platform of the flags and compare with the result's reference, if any; raises Mismatch if results differ."""
    options, result = task.options, task.result
    platform = result.platform = choose_platform(options.platform)
    arguments = Arguments(options, module, task.given, task.place, task.given_from)
    if not (options.use_spmd_partitioning or options.is_spmd_partitioned_module) and arguments.grid.partitions > 1:
        reason = "every partition runs the module with its own number, which only partitioning gives a meaning"
        raise UsageError(f"--use_spmd_partitioning=false with {arguments.grid}: {reason}", hint="--num_partitions=1")
    if task.launch.count == 1:
        _run_module(task, module, arguments)
        return
    sharing = _sharing()
    sharing.check_sharing(task.launch, module, arguments.grid, platform)
    task.has_met_others = True  # they learn of errors from here on
    with sharing.joined(options, task.console, task.place, task.launch, arguments.grid) as joined:
        _run_module(task, module, arguments, joined)


def _run_module(task: Task, module: HloModule, arguments: Arguments, joined: Joined | None = None) -> None:
    """Run on the platform of the result, with the devices of other processes if there are any, and compare."""
    options, result = task.options, task.result
    platform = result.platform
    execution = Execution(options, task.console, module, arguments, task.place, result)
    if not task.launch.number:
        execution.prepare()
    if options.dumps_snapshots:
        from hlo_run.execution.snapshots import Snapshots  # few command lines dump them

        execution.snapshots = Snapshots.of(options, module, arguments.grid, task.place.number, platform)
    if platform == INTERPRETER:
        _interpret(task, module, execution, arguments.grid)
        return
    set_device_counts(options, module)
    watch = _float_checks().float_watch(options, task.console.err) if options.checks_floats else None
    try:
        backend = open_backend(platform, options, watch)
    except DeviceError:
        # Without a device the module is still compiled, so that every dump that the flags ask for is there.
        if task.executable is None:
            with compiling(task, module) as (ctx, working):
                compile_or_load(ctx, working)
        raise
    executable = task.executable
    optimised: HloModule | None = None
    if executable is None:
        with compiling(task, module, backend.target) as (ctx, working):
            executable = compile_or_load(ctx, working) if watch is None else _float_checks().compile_watched(watch, ctx, working)
            optimised = None if executable.module_text else working  # an executable from the cache has the text
            if execution.snapshots is not None:
                execution.snapshots.optimized = working
    elif watch is not None:
        _float_checks().watch_saved(watch, executable)
    if options.report_html:
        task.result.executable = executable
    check_memory(executable)
    result.device = backend.description
    shared = backend if joined is None else joined.share(backend, module, executable, task.file)
    if shared is not None:
        meter = KernelMeter.of(options, executable, optimised, arguments.grid.size) if joined is None else None
        checked = None if joined is not None else partial(checks_of_run, options, shared, executable, optimised)
        _run_compiled(task, module, execution, arguments.grid, shared, executable, checked, meter)


def _interpret(task: Task, module: HloModule, execution: Execution, grid: DeviceGrid) -> None:
    """Run in the numpy reference and compare its result with another one."""
    options, reference = task.options, task.result.reference
    interpreter = InterpreterBackend(grid)
    task.result.device = interpreter.description

    def interpret(values: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
        with limited(options.timeout):
            try:
                return interpreter.run_module(module, values, seed, feeds=feeds)
            except Unsupported as error:
                if error.hint == NO_REFERENCE:
                    error.hint = '--platform=Host --reference_platform="" runs our kernels on the CPU, without a comparison'
                raise

    runner = Runner(INTERPRETER, interpreter.description, interpret, lambda: interpreter.outfeed)
    set_device_counts(options, module)
    with opened_reference(options, module, INTERPRETER, reference, grid, choose_target(options)) as reference_run:
        execution.run(runner, reference, reference_run)


def _run_compiled(
    task: Task,
    module: HloModule,
    execution: Execution,
    grid: DeviceGrid,
    backend: Backend,
    executable: Executable,
    checked: Callable[[], KernelChecks | None] | None,
    meter: KernelMeter | None,
) -> None:
    """Run an executable and compare its results and its kernels' results with the reference."""
    options, reference = task.options, task.result.reference
    try:

        def limited_run(values: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
            # The backend stops after --timeout by itself, unless a library does not return.
            with limited(options.timeout and options.timeout + _GRACE_SECONDS):
                return run_on_grid(backend, executable, values, grid, seed, feeds)

        description = backend.description + (f", {grid}" if grid.size > 1 else "")
        runner = Runner(
            backend.name,
            description,
            limited_run,
            lambda: backend.outfeed,
            lambda: backend.profile.last_run_seconds() if backend.profile is not None else 0.0,
            checked,
            meter,
            backend.watch_next_run,
        )
        with opened_reference(options, module, backend.name, reference, grid, choose_target(options)) as reference_run:
            _note_equal_kernels(task)
            execution.run(runner, reference, reference_run)
    except (DeviceError, Unsupported) as error:
        error.notes += _replacements(options)
        raise
    finally:
        _report(task, backend)


def _sharing() -> ModuleType:
    """Import what processes do that share a run; most runs have one process."""
    return importlib.import_module("hlo_run.execution.sharing")


def _float_checks() -> ModuleType:
    """Import the checks of floats, which few command lines have."""
    return importlib.import_module("hlo_run.execution.float_checks")


def _note_equal_kernels(task: Task) -> None:
    """Say that the reference runs what the run runs, unless flags change one of the two."""
    options, reference = task.options, task.result.reference
    if reference == task.result.platform and options.run_reference_hlo_passes and not _replacements(options):
        task.console.err(f"note: the reference runs the same kernels on {reference}, so the comparison sees no wrong compilation")


def _replacements(options: Options) -> tuple[str, ...]:
    """Return a note that names the files with kernels of the user."""
    files = [file for file in (options.kernel_ir_file, options.xla_gpu_llvm_ir_file, options.xla_gpu_ptx_file) if file]
    return (f"kernels of the module are replaced by those in {', '.join(files)}",) if files else ()


def _report(task: Task, backend: Backend) -> None:
    """Print the backend's report and profile of the last run, and record its launches."""
    task.result.launches = backend.launch_records()
    if report := backend.report():
        task.console.err(report)
    if backend.profile is not None and task.options.profile:
        task.result.profile = backend.profile
        _show_profile(task, backend.profile)


def _show_profile(task: Task, profile: Profile) -> None:
    """Print the profile's table, and write the trace if the flag names a file."""
    task.console.err(profile.table())
    if task.options.profile != "-":
        write_artefact(task.options.profile, profile.chrome_trace())
