"""Runs every file of a command line in its mode, and writes the reports. `MODE_FUNCTIONS` is the table of modes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from msgspec import Struct, field

from hlo_run.cache import choose_cache
from hlo_run.commands.load import load
from hlo_run.commands.task import Task
from hlo_run.commands.validate import validate
from hlo_run.containment.board import at_place, counted
from hlo_run.containment.crash import Crash, choose_crash_directory, crash_error, set_input_file, set_words
from hlo_run.containment.relay import Relay
from hlo_run.errors import HloRunError, known_error
from hlo_run.execution.console import Console, FilePosition
from hlo_run.execution.output_files import append_line, write_artefact
from hlo_run.execution.profile_csv import append_times
from hlo_run.execution.results import FileResult
from hlo_run.formats.gpu_modules import is_gpu_module
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.options.effects import NOT_RETURNED
from hlo_run.options.modes import Kind, chosen_modes, mode_of
from hlo_run.parallel import share_cores
from hlo_run.pass_support.observer import StopAtStage
from hlo_run.platforms import reference_platform
from hlo_run.processes.launcher import Launch, launch_of_failed, launch_of_flags
from hlo_run.sharding.analysis.partition_count import needed_partitions
from hlo_run.version import VERSION

# The flag of a mode -> file and function, which is imported when the mode is chosen. The empty flag is the run.
MODE_FUNCTIONS: Mapping[str, str] = {
    "stage": "stage.print_stage",
    "output": "save_executable.save_executable",
    "xla_diff": "xla_diff.show_xla_diff",
    "explain": "explain_fusion.explain_fusion",
    "golden_dir": "golden.check_golden",
    "localize": "localize.localize",
    "isolate_instructions": "isolate_instructions.isolate_instructions",
    "compile_only": "save_executable.compile_only",
    "check_each_pass": "checked_run.run_checked",
    "": "run.run",
}
# A file's exit code, the bucket of its failure, and what the reports say about it if there are any.
Entry: TypeAlias = "tuple[int, str, dict[str, str] | None]"
# The times of a file in its entry.
TIMES = "times_ns"
_READING = "the reading of the file"


def run_files(options: Options, files: Sequence[str], console: Console, relay: Relay | None = None) -> int:
    """Run every file and return the first exit code that is not 0, in the order of the files. Raises UsageError for bad flags.

    A worker gets the results of the workers before it from `relay`, and the numbers of the files that it runs. Only the first
    worker checks the flags: the others start once it asks for a file.
    """
    relay = relay or Relay()
    warnings = validate(options, files) if relay.is_first else ()
    if options.list_passes:
        from hlo_run.pipeline.row_names import describe_rows

        console.out(describe_rows())
        return 0
    launch = launch_of_flags(options)
    if launch.count > 1:
        from hlo_run.execution.sharing import options_of_process  # imports the backends

        options = options_of_process(options, launch)
    problem = choose_cache(options.cache)
    choose_crash_directory(options.crash_dir)
    set_words(relay.words)
    if not relay.reports:
        share_cores(options.jobs or len(files))
    if relay.is_first:
        for warning in (*warnings, *([problem] if problem else ())):
            console.err(f"warning: {warning}")
        if options.report_jsonl not in ("", "-"):
            write_artefact(options.report_jsonl, "")
    return _Command(options, files, console, relay, launch, cast("dict[int, Entry]", dict(relay.earlier))).run()


class _Command(Struct):
    """A command line that runs files. `entries` are the results by the number of the file."""

    options: Options
    files: Sequence[str]
    console: Console
    relay: Relay
    launch: Launch
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
                self._keep(number, self._run_file(number))  # reports omit an interrupted file, which has no outcome
        finally:
            if relay.reports:
                self._report()
        if not relay.reports:
            return 0
        return next((code for _, (code, _, _) in sorted(self.entries.items()) if code), 0)

    def _run_file(self, number: int) -> FileResult:
        """Run one file and return its result. Prints its error."""
        options, result = self.options, FileResult(self.files[number])
        set_input_file(result.file)
        at_place(_READING)
        counted("")
        place = FilePosition(number, len(self.files))
        task = Task.of(options, place, result, self.console, self.relay.claim, self.launch, self.noted_flags)
        try:
            _run_mode(task)
        except StopAtStage:
            pass
        except Exception as error:  # a bug of any type, outside of the rows: the other files and the reports must not suffer
            result.error = known_error(error)
        if result.error is not None:
            self.console.error(result.error)
            self._say_next(result)
            if not task.has_met_others:
                tell_others(options, result.error, self.console, number)
        return result

    def _report_crash(self, crash: Crash, number: int) -> None:
        """Print and keep the error about the file in which a worker died. Raises it if that was outside of the files (-1)."""
        set_input_file(self.files[number] if number >= 0 else "")
        error = crash_error(crash)
        if number < 0:
            raise error
        self.console.error(error)
        result = FileResult(self.files[number], error=error)
        self._say_next(result)
        if crash.place == _READING:
            tell_others(self.options, error, self.console, number)
        self._keep(number, result)

    def _say_next(self, result: FileResult) -> None:
        """Print what to run next after an error. Of several processes that share a run, process 0 does."""
        if self.launch.number:
            return
        from hlo_run.commands.next_step import next_step

        if result.error is not None and (words := next_step(result.error, self.options, result.file)):
            self.console.err(f"next: {words}")

    def _keep(self, number: int, result: FileResult) -> None:
        """Keep the report about a file, pass it to the supervisor, and write its line of `--report_jsonl`."""
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


def tell_others(options: Options, error: HloRunError, console: Console, number: int = -1) -> None:
    """Tell the processes that would share the run, if there are any, that this one has failed before they met.

    `number` is that of the input file (-1: all files fail).
    """
    if chosen_modes(options) or launch_of_failed(options) is None:
        return
    from hlo_run.execution import sharing  # imports the backends

    sharing.tell_others(options, error, console.err, number)


def _run_mode(task: Task) -> None:
    """Run the mode that the flags choose. Raises its first error, and StopAtStage once the stage is printed."""
    is_first = not task.launch.number  # of several processes that share a run, process 0 prints
    if not task.options.stage and is_first:
        task.console.out(f"\n** {'Compiling' if task.options.compile_only else 'Running'} {task.file} **")
    if is_gpu_module(task.file, task.options.input_format):
        from hlo_run.commands.gpu_module import run_gpu_module

        run_gpu_module(task)
        return
    module = load(task)
    if task.options.other_xla_flags and is_first:
        from hlo_run.execution.flag_notes import note_silent_flags

        note_silent_flags(task.options, module, task.noted_flags, task.console.err)
    if task.options.isolate_fusion:
        from hlo_run.commands.isolate_fusion import isolate

        module = isolate(task, module)
    task.result.module = module.name
    if is_first:
        _note_shardings(task, module)
    mode = mode_of(task.options)
    if mode.kind in (Kind.COMPILATION, Kind.RUN):
        task.result.reference = "" if task.options.output_mode == NOT_RETURNED else reference_platform(task.options)
    mode_function(mode.flag)(task, module)


def mode_function(flag: str) -> Callable[[Task, HloModule], None]:
    """Return the function of the mode that a flag chooses, and import it: a stage needs no reference, for example."""
    file, _, name = MODE_FUNCTIONS[flag].partition(".")
    function: Callable[[Task, HloModule], None] = getattr(importlib.import_module(f"hlo_run.commands.{file}"), name)
    return function


def _note_shardings(task: Task, module: HloModule) -> None:
    """Say in one line that shardings of several devices have no effect, and which flag runs the module on them."""
    if task.executable is not None or (task.options.num_partitions or module.num_partitions) != 1:
        return
    needed = needed_partitions(module)
    if needed > 1:
        words = f"shardings over {needed} partitions divide nothing on one; --num_partitions={needed} divides the work"
        task.console.err(f"note: {words}")
