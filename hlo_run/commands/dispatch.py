"""Checks the flags, runs every file of a command line in its mode, and writes the reports."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from hlo_run.cache import choose_cache
from hlo_run.commands.list_passes import check_names
from hlo_run.commands.load import load
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, HloRunError, InternalError, UsageError
from hlo_run.execution.console import Console, Place
from hlo_run.execution.output_files import check_writable, is_executable_file, write_artefact
from hlo_run.execution.results import FileResult
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.observer import FUSION_ANALYSIS, HLO_INPUT, OPTIMIZED_HLO, StopAtStage
from hlo_run.options import Options
from hlo_run.platforms import reference_platform
from hlo_run.version import VERSION

_BOUNDS = (Options().abs_error_bound, Options().rel_error_bound)


def run_files(options: Options, files: Sequence[str], console: Console) -> int:
    """Run every file and return the first exit code that is not 0. Raises UsageError for bad flags and without files."""
    if options.list_passes:
        from hlo_run.commands.list_passes import list_passes

        console.out(list_passes())
        return 0
    if not files:
        raise UsageError("no input file", hint="hlo-run FILE..., or - for stdin")
    for warning in check_names(options):
        console.err(f"warning: {warning}")
    _check_output(options, files)
    _check_run_flags(options)
    if options.custom_calls:
        from hlo_run.commands.custom_call_files import load_custom_calls

        load_custom_calls(options.custom_calls)
    if problem := choose_cache(options.cache):
        console.err(f"warning: {problem}")
    results: list[FileResult] = []
    try:
        for number, file in enumerate(files):
            result = FileResult(file)
            _run_file(options, Place(number, len(files)), result, console)
            results.append(result)  # reports omit an interrupted file, which has no outcome
    finally:
        _write_reports(options, results)
    return next((result.exit_code for result in results if result.exit_code), 0)


def _run_file(options: Options, place: Place, result: FileResult, console: Console) -> None:
    """Run one file. Print an error and keep it in `result`."""
    try:
        _run_mode(Task.of(options, place, result, console))
    except StopAtStage:
        pass
    except HloRunError as error:
        result.error = error
    except MemoryError:
        result.error = DeviceError("out of memory", hint="the module's arrays do not fit into this machine's memory")
    except Exception as error:  # a bug outside of the rows; the runner reports those inside
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}"
        result.error = InternalError(message, notes=(f"at {Path(frame.filename).name}:{frame.lineno}, {frame.name}",))
    if result.error is not None:
        console.error(result.error)


def _run_mode(task: Task) -> None:
    """Run the mode that the flags ask for. Raises its first error, and StopAtStage once the stage is printed.

    A mode is imported when it is chosen: a stage needs no reference, and a run with a cached executable needs no compiler.
    """
    if not task.options.stage:
        task.console.out(f"\n** Running {task.file} **")
    module = load(task)
    if task.options.isolate_fusion:
        from hlo_run.commands.isolate_fusion import isolate

        module = isolate(task, module)
    options = task.options
    task.result.module = module.name
    if options.xla_diff:
        from hlo_run.commands.xla_diff import show_xla_diff

        show_xla_diff(task, module)
    elif options.explain:
        from hlo_run.commands.explain_fusion import explain_fusion

        explain_fusion(task, module)
    elif options.localize:
        from hlo_run.commands.localize import localize

        localize(task, module)
    elif options.isolate_instructions:
        from hlo_run.commands.isolate_instructions import isolate_instructions

        isolate_instructions(task, module)
    else:
        _compile_or_run(task, module)


def _compile_or_run(task: Task, module: HloModule) -> None:
    options = task.options
    task.result.reference = reference_platform(options)
    if options.stage == FUSION_ANALYSIS:
        from hlo_run.commands.analyze_fusions import analyze_fusions

        analyze_fusions(task, module)
    elif options.stage:
        from hlo_run.commands.stage import print_stage

        print_stage(task, module)
    elif options.output:
        from hlo_run.commands.save_executable import save_executable

        save_executable(task, module)
    elif options.check_each_pass:
        from hlo_run.commands.checked_run import run_checked

        run_checked(task, module, task.result.reference)
    else:
        from hlo_run.commands.run import run

        run(task, module, task.result.reference)


def _write_reports(options: Options, results: Sequence[FileResult]) -> None:
    if not (options.report_json or options.report_junit):
        return
    from hlo_run.execution.reports import to_json, to_junit

    if options.report_json:
        write_artefact(options.report_json, to_json(results, VERSION))
    if options.report_junit:
        write_artefact(options.report_junit, to_junit(results))


def _check_run_flags(options: Options) -> None:
    """Raise UsageError for invalid bounds and timeouts and for files that cannot be written, before anything runs."""
    if (options.abs_error_bound, options.rel_error_bound) != _BOUNDS or options.low_precision_fp_error_spec:
        from hlo_run.execution.error_bounds import error_spec  # imports the reference

        error_spec(options)
    if not options.timeout >= 0:
        raise UsageError(f"--timeout must be >= 0, got {options.timeout:g} seconds", hint="--timeout=0 sets no limit")
    for flag in ("report_json", "report_junit", "save_inputs", "save_outputs", "output", "profile"):
        path: str = getattr(options, flag)
        if path and (flag, path) != ("profile", "-"):  # prints only the table
            check_writable(path, flag)


def _check_output(options: Options, files: Sequence[str]) -> None:
    """Raise UsageError for output flags that would have no effect or contradict each other."""
    if options.output_format != "hlo" and options.stage not in (HLO_INPUT, OPTIMIZED_HLO):
        hint = f"add --stage={OPTIMIZED_HLO} for the optimised module or --stage={HLO_INPUT} for the module as read"
        raise UsageError(f"--output_format={options.output_format} needs a stage that is an HLO module", hint=hint)
    if options.output_file and not options.stage:
        raise UsageError("--output_file needs --stage, which chooses what to write")
    if options.output and (options.stage or len(files) > 1 or not is_executable_file(options.output)):
        raise UsageError("--output=FILE.hlox needs exactly one input file, a name that ends in .hlox, and no --stage")
    modes = ("stage", "output", "xla_diff", "explain", "localize", "isolate_instructions")
    shown = [flag for flag in modes if getattr(options, flag)]
    if len(shown) > 1 and shown != ["stage", "output"]:
        raise UsageError(f"{' and '.join(f'--{flag}' for flag in shown)} cannot be used together")
    if options.explain:
        from hlo_run.commands.explain_fusion import asked_names

        asked_names(options.explain)
    if options.output_machine_code and not options.output:
        raise UsageError("--output_machine_code needs --output=FILE.hlox, the file that holds the code")
    if options.output_file and len(files) > 1:
        raise UsageError("--output_file needs exactly one input file")
