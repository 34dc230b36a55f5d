"""Checks the flags, runs every file of a command line in its mode, and writes the reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.cache import choose_cache
from hlo_run.commands.list_passes import check_names
from hlo_run.commands.load import load
from hlo_run.commands.task import Task
from hlo_run.containment.board import at_place, counted
from hlo_run.containment.crash import Crash, choose_crash_directory, crash_error, set_input_file, set_words
from hlo_run.containment.relay import Relay
from hlo_run.errors import HloRunError, UsageError, known_error
from hlo_run.execution.console import Console, FilePosition
from hlo_run.execution.output_files import append_line, check_writable, is_executable_file, write_artefact
from hlo_run.execution.profile_csv import append_times, csv_file
from hlo_run.execution.results import FileResult
from hlo_run.formats.gpu_modules import is_gpu_module
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.options.effects import NOT_RETURNED, check_effects, check_least_values
from hlo_run.parallel import share_cores
from hlo_run.pass_support.observer import FUSION_ANALYSIS, HLO_INPUT, OPTIMIZED_HLO, StopAtStage
from hlo_run.platforms import platform_name, reference_platform
from hlo_run.processes.launcher import launch_of_failed, launch_of_flags
from hlo_run.sharding.analysis.partition_count import needed_partitions
from hlo_run.version import VERSION

# A file's exit code, the bucket of its failure, and what the reports say about it if there are any.
Entry: TypeAlias = "tuple[int, str, dict[str, str] | None]"
# The times of a file in its entry.
TIMES = "times_ns"
_READING = "the reading of the file"
_BOUNDS = (Options().abs_error_bound, Options().rel_error_bound)


def run_files(options: Options, files: Sequence[str], console: Console, relay: Relay | None = None) -> int:
    """Run every file and return the first exit code that is not 0, in the order of the files. Raises UsageError for bad flags.

    A worker gets the results of the workers before it from `relay`, and the numbers of the files that it runs.
    """
    check_least_values(options)
    check_effects(options, files)
    if options.list_passes:
        from hlo_run.commands.list_passes import list_passes

        console.out(list_passes())
        return 0
    if not files:
        raise UsageError("no input file", hint="hlo-run FILE..., or - for stdin")
    launch = launch_of_flags(options)
    if launch.count > 1:
        from hlo_run.execution.sharing import options_of_process  # imports the backends

        options = options_of_process(options, launch)
    relay = relay or Relay()
    set_words(relay.words)
    _check_flags(options, files, console, is_first=relay.is_first)
    if not relay.reports:
        share_cores(options.jobs or len(files))
    return _Command(options, files, console, relay, dict(relay.earlier)).run()


def _check_flags(options: Options, files: Sequence[str], console: Console, *, is_first: bool) -> None:
    """Check what flags name, choose the directories, and empty the file of `--report_jsonl`. Only the first worker warns."""
    warnings = check_names(options)
    _check_output(options, files)
    _check_run_flags(options)
    if options.golden_dir:
        from hlo_run.commands.golden import check_golden_flags

        warnings = (*warnings, *check_golden_flags(options, files))
    if problem := choose_cache(options.cache):
        warnings = (*warnings, problem)
    choose_crash_directory(options.crash_dir)
    if not is_first:
        return
    for warning in warnings:
        console.err(f"warning: {warning}")
    if options.report_jsonl not in ("", "-"):
        write_artefact(options.report_jsonl, "")


class _Command(Struct):
    """A command line that runs files. `entries` are the results by the number of the file."""

    options: Options
    files: Sequence[str]
    console: Console
    relay: Relay
    entries: dict[int, Entry]
    noted_flags: set[str] = field(default_factory=set[str])

    def run(self) -> int:
        """Run the files that the relay gives and write the reports."""
        options, files, relay = self.options, self.files, self.relay
        try:
            if relay.crash is not None:
                self._report_crash(relay.crash, relay.crashed)
            if options.custom_calls and relay.runs and len(self.entries) < len(files):
                from hlo_run.commands.custom_call_files import load_custom_calls

                load_custom_calls(options.custom_calls)
            for number in relay.files(len(files)):
                result = FileResult(files[number])
                _run_file(options, FilePosition(number, len(files)), result, self.console, relay, self.noted_flags)
                self._keep(number, result)  # reports omit an interrupted file, which has no outcome
        finally:
            if relay.reports:
                self._report()
        if not relay.reports:
            return 0
        return next((code for _, (code, _, _) in sorted(self.entries.items()) if code), 0)

    def _report_crash(self, crash: Crash, number: int) -> None:
        """Print and keep the error about the file in which a worker died. Raises it if that was outside of the files (-1)."""
        set_input_file(self.files[number] if number >= 0 else "")
        error = crash_error(crash)
        if number < 0:
            raise error
        self.console.error(error)
        result = FileResult(self.files[number], error=error)
        _say_next(self.options, result, self.console)
        if crash.place == _READING:
            tell_others(self.options, error, self.console, number)
        self._keep(number, result)

    def _keep(self, number: int, result: FileResult) -> None:
        """Keep what is reported about a file, pass it to the supervisor, and write its line of `--report_jsonl`."""
        options = self.options
        record: dict[str, str] = {}
        if options.append_profile_to_csv_file and result.times_ns:
            record[TIMES] = " ".join(map(str, result.times_ns))
        if options.report_json or options.report_jsonl or options.report_junit:
            from hlo_run.execution.reports import file_report

            record |= file_report(result)
        if options.report_html:
            from hlo_run.report.section import file_section

            record["html"] = file_section(result, options)
        # The summary of several files needs the bucket.
        signature = result.signature if len(self.files) > 1 else None
        self.entries[number] = (result.exit_code, signature.bucket if signature is not None else "", record or None)
        with self.relay.undisturbed():
            if options.report_jsonl:
                self._write_line(record["json"])
            self.relay.done(number, self.entries[number])

    def _write_line(self, line: str) -> None:
        if self.options.report_jsonl == "-":
            self.console.record(line)
        else:
            append_line(self.options.report_jsonl, line)

    def _report(self) -> None:
        """Write the reports, and print the summary of several files."""
        found = sorted(self.entries.items())
        self._write_reports([record for _, (_, _, record) in found if record is not None])
        if len(self.files) > 1 and found:
            from hlo_run.commands.summary import summary

            results = [(self.files[number], code, bucket) for number, (code, bucket, _) in found]
            head, *rest = summary(results, len(self.files)).lstrip("\n").split("\n")
            self.console.verdict(f"\n{head}", good=not any(code for _, code, _ in results))
            if rest:
                self.console.err("\n".join(rest))

    def _write_reports(self, reports: Sequence[dict[str, str]]) -> None:
        options = self.options
        if options.append_profile_to_csv_file:
            self._append_times(options.append_profile_to_csv_file)
        if options.report_html:
            from hlo_run.report.page import page

            write_artefact(options.report_html, page([report["html"] for report in reports]))
        if not (options.report_json or options.report_jsonl or options.report_junit):
            return
        from hlo_run.execution.reports import to_json, to_json_line, to_junit

        if options.report_json:
            write_artefact(options.report_json, to_json(reports, VERSION))
        if options.report_junit:
            write_artefact(options.report_junit, to_junit(reports))
        if options.report_jsonl:
            self._write_line(to_json_line(reports, VERSION))

    def _append_times(self, path: str) -> None:
        times = {self.files[n]: record[TIMES] for n, (_, _, record) in self.entries.items() if record and TIMES in record}
        if times:
            append_times(path, {file: [int(time) for time in text.split()] for file, text in times.items()})


def _run_file(
    options: Options, place: FilePosition, result: FileResult, console: Console, relay: Relay, noted_flags: set[str]
) -> None:
    """Run one file. Print an error and keep it in `result`."""
    set_input_file(result.file)
    at_place(_READING)
    counted("")
    task = Task.of(options, place, result, console, relay.claim, noted_flags)
    try:
        _run_mode(task)
    except StopAtStage:
        pass
    except Exception as error:  # a bug of any type, outside of the rows: the other files and the reports must not suffer from it
        result.error = known_error(error)
    if result.error is not None:
        console.error(result.error)
        _say_next(options, result, console)
        if not task.has_met_others:
            tell_others(options, result.error, console, place.number)


def tell_others(options: Options, error: HloRunError, console: Console, number: int = -1) -> None:
    """Tell the processes that would share the run, if there are any, that this one has failed before they met.

    `number` is that of the input file (-1: all files fail).
    """
    if _shown(options) or launch_of_failed(options) is None:
        return
    from hlo_run.execution import sharing  # imports the backends

    sharing.tell_others(options, error, console.err, number)


def _say_next(options: Options, result: FileResult, console: Console) -> None:
    """Print what to run next after an error. Of several processes that share a run, process 0 does."""
    if launch_of_flags(options).number:
        return
    from hlo_run.commands.next_step import next_step

    if result.error is not None and (words := next_step(result.error, options, result.file)):
        console.err(f"next: {words}")


def _run_mode(task: Task) -> None:
    """Run the mode that the flags ask for. Raises its first error, and StopAtStage once the stage is printed.

    A mode is imported when it is chosen: a stage needs no reference, and a run with a cached executable needs no compiler.
    """
    if not task.options.stage and not launch_of_flags(task.options).number:
        task.console.out(f"\n** {'Compiling' if task.options.compile_only else 'Running'} {task.file} **")
    if is_gpu_module(task.file, task.options.input_format):
        from hlo_run.commands.gpu_module import run_gpu_module

        run_gpu_module(task)
        return
    module = load(task)
    if task.options.other_xla_flags and not launch_of_flags(task.options).number:
        from hlo_run.execution.flag_notes import note_silent_flags

        note_silent_flags(task.options, module, task.noted_flags, task.console.err)
    if task.options.isolate_fusion:
        from hlo_run.commands.isolate_fusion import isolate

        module = isolate(task, module)
    options = task.options
    task.result.module = module.name
    _note_shardings(task, module)
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
    elif options.golden_dir:
        from hlo_run.commands.golden import check_golden

        check_golden(task, module)
    else:
        _compile_or_run(task, module)


def _note_shardings(task: Task, module: HloModule) -> None:
    """Say in one line that shardings of several devices have no effect, and which flag runs the module on them."""
    options = task.options
    if task.executable is not None or launch_of_flags(options).number:
        return
    if (options.num_partitions or module.attrs.get("num_partitions", 1)) != 1:
        return
    needed = needed_partitions(module)
    if needed > 1:
        words = f"shardings over {needed} partitions divide nothing on one; --num_partitions={needed} divides the work"
        task.console.err(f"note: {words}")


def _compile_or_run(task: Task, module: HloModule) -> None:
    options = task.options
    task.result.reference = "" if options.output_mode == NOT_RETURNED else reference_platform(options)
    if options.stage == FUSION_ANALYSIS:
        from hlo_run.commands.stage import analyze_fusions

        analyze_fusions(task, module)
    elif options.stage:
        from hlo_run.commands.stage import print_stage

        print_stage(task, module)
    elif options.output:
        from hlo_run.commands.save_executable import save_executable

        save_executable(task, module)
    elif options.compile_only:
        from hlo_run.commands.save_executable import compile_only

        compile_only(task, module)
    elif options.check_each_pass:
        from hlo_run.commands.checked_run import run_checked

        run_checked(task, module, task.result.reference)
    else:
        from hlo_run.commands.run import run

        run(task, module, task.result.reference)


def _check_run_flags(options: Options) -> None:
    """Raise UsageError for invalid bounds and for files that cannot be written, before anything runs."""
    if (options.abs_error_bound, options.rel_error_bound) != _BOUNDS or options.low_precision_fp_error_spec:
        from hlo_run.execution.error_bounds import error_spec  # imports the reference

        error_spec(options)
    if not 0 < options.input_scale < float("inf"):
        raise UsageError(f"--input_scale must be > 0 and finite, got {options.input_scale:g}")
    for flag in (
        "report_json",
        "report_jsonl",
        "report_junit",
        "report_html",
        "save_inputs",
        "save_outputs",
        "output_literals_file",
        "dump_output_literal_to",
        "append_profile_to_csv_file",
        "output",
        "profile",
    ):
        path: str = getattr(options, flag)
        if flag == "append_profile_to_csv_file" and path:
            path = csv_file(path)
        if path and (flag, path) not in (("profile", "-"), ("report_jsonl", "-")):  # printed
            check_writable(path, flag)


def _shown(options: Options) -> list[str]:
    """Return the flags that ask for another mode than a run."""
    modes = ("stage", "output", "xla_diff", "explain", "golden_dir", "localize", "isolate_instructions", "compile_only")
    return [flag for flag in modes if getattr(options, flag)]


def _check_output(options: Options, files: Sequence[str]) -> None:
    """Raise UsageError for output flags that would have no effect or contradict each other, and for unknown platforms."""
    if options.output_format != "hlo" and options.stage not in (HLO_INPUT, OPTIMIZED_HLO):
        hint = f"add --stage={OPTIMIZED_HLO} for the optimised module or --stage={HLO_INPUT} for the module as read"
        raise UsageError(f"--output_format={options.output_format} needs a stage that is an HLO module", hint=hint)
    if options.output_file and not options.stage:
        raise UsageError("--output_file needs --stage, which chooses what to write")
    if options.output and (options.stage or len(files) > 1 or not is_executable_file(options.output)):
        raise UsageError("--output=FILE.hlox needs exactly one input file, a name that ends in .hlox, and no --stage")
    if options.dump_output_literal_to:
        if len(files) > 1:
            raise UsageError("--dump_output_literal_to needs exactly one input file")
        if not options.dump_output_literal_to.endswith(".txt"):
            raise UsageError(f"--dump_output_literal_to={options.dump_output_literal_to} must end in .txt: it is written as text")
    if options.xla_early_exit_with_layouts and not (options.stage or options.compile_only):
        hint = "--compile_only with --xla_dump_to, or --stage=NAME"
        raise UsageError("--xla_early_exit_with_layouts: the compilation stops before it has made what could run", hint=hint)
    if options.enable_mock_nccl or options.run_single_shard_id >= 0:
        flag = "enable_mock_nccl" if options.enable_mock_nccl else "run_single_shard_id"
        reason = "mock NCCL returns whatever the memory holds; hlo-run simulates all devices and their collectives"
        raise UsageError(f"--{flag}: {reason}", hint="--num_replicas=N and --num_partitions=N set the devices")
    if not 0 < options.gpu_client_mem_fraction < 1:
        raise UsageError(f"--gpu_client_mem_fraction={options.gpu_client_mem_fraction} must be between 0 and 1")
    if options.force_auto_layout:
        reason = "arguments and results have the layouts of entry_computation_layout"
        raise UsageError(f"--force_auto_layout: {reason}", hint="change them in the module's header")
    if options.execution_options_path:
        hint = "--num_replicas, --num_partitions, --seed and --debug_options_file set the same"
        raise UsageError("--execution_options_path: hlo-run does not read an ExecutionOptions message", hint=hint)
    shown = _shown(options)
    if len(shown) > 1 and shown != ["stage", "output"]:
        raise UsageError(f"{' and '.join(f'--{flag}' for flag in shown)} cannot be used together")
    if not shown:
        reference_platform(options)
        if options.platform:
            platform_name(options.platform)
    if options.explain:
        from hlo_run.commands.explain_fusion import asked_names

        asked_names(options.explain)
    if options.output_file and len(files) > 1:
        raise UsageError("--output_file needs exactly one input file")
