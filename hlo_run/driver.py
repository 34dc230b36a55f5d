"""One run: read, parse, compile, run, compare with the reference; for every file, in XLA's order of work."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import hlo_run
from hlo_run import target as targets
from hlo_run.analysis.cost.side_by_side import diff_record
from hlo_run.artifact import Executable
from hlo_run.backends import Backend
from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.backends.memory import check_memory
from hlo_run.backends.profile import Profile
from hlo_run.cache import choose_cache
from hlo_run.compile_run import StageOutput, Watch, choose_target, target_config
from hlo_run.errors import DeviceError, HloRunError, InternalError, Unsupported, UsageError
from hlo_run.executable_cache import compile_or_load
from hlo_run.executable_files import is_executable_file, load_custom_calls, read_executable, write_executable
from hlo_run.execution import MODULE_SEED, Arguments, Console, Execution, Place, Runner, error_spec
from hlo_run.explain import FusionExplainer, asked_names
from hlo_run.formats.read import read_module
from hlo_run.hlo.arguments import fit_arguments
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.observer import FUSION_ANALYSIS, OPTIMIZED_HLO, Observer, StopAtStage
from hlo_run.hlo_passes.replacements import KernelIr, is_kernel_dump, read_kernel_dump
from hlo_run.isolation import find_fusion, operands_in_run, write_isolated
from hlo_run.options import Options
from hlo_run.pass_check import PassChecker
from hlo_run.pipeline.observers.stage import StageObserver
from hlo_run.platforms import INTERPRETER, choose_platform, open_backend, platform_name
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.results import FileResult, check_writable, to_json, to_junit, write_artefact

HLO_INPUT = "hlo-input"


def run_files(options: Options, files: Sequence[str], console: Console) -> int:
    """Run every file and return the first exit code that is not 0; raises UsageError when there is nothing to do."""
    if options.list_passes:
        console.out(list_passes())
        return 0
    if not files:
        raise UsageError("no input file", hint="hlo-run FILE..., or - for stdin")
    for warning in _check_names(options):
        console.err(f"warning: {warning}")
    _check_output(options, files)
    _check_run_flags(options)
    load_custom_calls(options.custom_calls)
    choose_cache(options.cache)
    results: list[FileResult] = []
    try:
        for number, file in enumerate(files):
            result = FileResult(file)
            _run_file(options, Place(number, len(files)), result, console)
            results.append(result)  # an interrupted one has no outcome
    finally:
        _write_reports(options, results)
    return next((result.exit_code for result in results if result.exit_code), 0)


def _run_file(options: Options, place: Place, result: FileResult, console: Console) -> None:
    """Run one file, say what failed, and keep it in `result`."""
    try:
        FileRun(options, place, result, console).run()
    except StopAtStage:
        pass
    except HloRunError as error:
        result.error = error
    except MemoryError:
        result.error = DeviceError("out of memory", hint="the module's arrays do not fit into this machine's memory")
    except Exception as error:  # a bug of ours outside the rows, which report their own
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}"
        result.error = InternalError(message, notes=(f"at {Path(frame.filename).name}:{frame.lineno}, {frame.name}",))
    if result.error is not None:
        console.error(result.error)


def _write_reports(options: Options, results: Sequence[FileResult]) -> None:
    if options.report_json:
        write_artefact(options.report_json, to_json(results, hlo_run.__version__))
    if options.report_junit:
        write_artefact(options.report_junit, to_junit(results))


def _check_run_flags(options: Options) -> None:
    """Raise UsageError for bounds and times that are none and for files that cannot be written, before anything runs."""
    error_spec(options)
    if not options.timeout >= 0:
        raise UsageError(f"--timeout={options.timeout:g} is no time", hint="0 is no limit")
    for flag in ("report_json", "report_junit", "save_inputs", "save_outputs", "output", "profile"):
        path: str = getattr(options, flag)
        if path and (flag, path) != ("profile", "-"):  # that is the table alone
            check_writable(path, flag)


class FileRun:
    """One file of the command line; what becomes of it is kept in `result`."""

    def __init__(self, options: Options, place: Place, result: FileResult, console: Console) -> None:
        self._options = options
        self._place = place
        self._result = result
        self._file = result.file
        self._console = console
        self._watch = Watch(place.number, console)
        self._stage_output = StageOutput(options, console)
        self._given: list[Literal] = []  # the arguments of a snapshot, or of an isolated fusion
        self._given_from = "the input file"
        self._executable: Executable | None = None  # of a file that holds one

    def run(self) -> None:
        """Do it all; raises the first error, StopAtStage once the stage asked for is printed, Mismatch if results differ."""
        options = self._options
        if not options.stage:
            self._console.out(f"\n** Running {self._file} **")
        if is_kernel_dump(self._file):
            self._resume(read_kernel_dump(self._file))
            options = self._options
        module = self._load()
        if options.isolate_fusion:
            module = self._isolate(module)
            options = self._options
        self._result.module = module.name
        if options.xla_diff:
            self._compare_with_xla(module)
            return
        if options.explain:
            self._explain_fusion(module)
            return
        reference = self._reference_platform()
        platform = "" if options.stage or options.output else choose_platform(options.platform)
        self._result.platform, self._result.reference = platform, reference
        arguments = Arguments(options, module, self._given, self._place, self._given_from)
        execution = Execution(options, self._console, module, arguments, self._place, self._result)
        if platform:
            execution.prepare()
        if platform == INTERPRETER:
            interpreter = InterpreterBackend(arguments.grid)
            self._result.device = interpreter.description
            runner = Runner(
                platform,
                interpreter.description,
                lambda values, seed, feeds: interpreter.run_module(module, values, seed, feeds=feeds),
                lambda: interpreter.outfeed,
            )
            execution.run(runner, reference)
            return
        # Passes ask the header, not the flags, for how many devices they compile.
        for header, count in (("replica_count", options.num_replicas), ("num_partitions", options.num_partitions)):
            if count:
                module.attrs[header] = count
        if options.stage == FUSION_ANALYSIS:
            self._analyze_fusions(module)
            return
        backend = open_backend(platform, options) if platform else None
        executable = self._executable or self._compile(module, backend)
        if options.output:
            return
        if backend is None:
            self._console.err(f"nothing to print: {module.name} has no kernel, or the row did not run")
            return
        check_memory(executable)
        self._result.device = backend.description
        try:
            grid = arguments.grid
            description = backend.description + (f", {grid}" if grid.size > 1 else "")
            runner = Runner(
                platform,
                description,
                lambda values, seed, feeds: run_on_grid(backend, executable, values, grid, seed, feeds),
                lambda: backend.outfeed,
            )
            execution.run(runner, reference)
        finally:
            self._result.launches = backend.launch_records()
            if report := backend.report():
                self._console.err(report)
            if backend.profile is not None:
                self._show_profile(backend.profile)

    def _show_profile(self, profile: Profile) -> None:
        """Print the table, and write the trace where a file was named."""
        self._console.err(profile.table())
        if self._options.profile != "-":
            write_artefact(self._options.profile, profile.chrome_trace())

    def _compare_with_xla(self, module: HloModule) -> None:
        """Show what becomes of the module beside what XLA:GPU makes of it."""
        from hlo_run.xla_diff import compare_with_xla  # imports the pipeline

        text = module_to_string(module, FULL)
        with self._watch.compiling(self._options, module, choose_target(self._options)) as (ctx, working):
            diff = compare_with_xla(ctx, working, text, self._file, target_config(self._options))
        self._result.xla_diff = diff_record(diff)
        self._console.xla_diff(diff)

    def _explain_fusion(self, module: HloModule) -> None:
        """Print what the fusion passes decided."""
        from hlo_run.pipeline.compile import optimize

        names = asked_names(self._options.explain)
        target = choose_target(self._options)

        def explainer(working: HloModule) -> Observer:
            return FusionExplainer(working, target.name, names, self._console.out)

        with self._watch.compiling(self._options, module, target, [explainer]) as (ctx, working):
            optimize(ctx, working)

    def _analyze_fusions(self, module: HloModule) -> None:
        """Print the table of fusions for each of the targets."""
        options = self._options
        for name in options.target.split(","):
            self._options = replace(options, target=name.strip())
            try:
                self._compile(module, None)
            except StopAtStage:
                continue

    def _load(self) -> HloModule:
        if is_executable_file(self._file):
            if self._options.stage or self._options.output:
                raise UsageError(f"'{self._file}' is compiled already", hint="--stage and --output want a module")
            self._executable = read_executable(self._file)
            return hlo_run.parse(self._executable.source_text, self._file, verified=False)
        source = read_module(self._file, self._options.input_format)
        module = hlo_run.parse(source.text, self._file, self._options.verify != "off")
        if self._options.stage == HLO_INPUT:
            self._stage_output.show_module(module)
            raise StopAtStage
        if source.arguments is not None:
            self._given = fit_arguments(module, source.arguments, f"'{self._file}'")
        return wrap_bare_module(module)

    def _resume(self, dump: KernelIr) -> None:
        """Let the module that a kernel's dump lies beside run with it; with a stage, compile the kernel alone (StopAtStage)."""
        known = dump.target in targets.PRESETS and not self._options.xla_gpu_target_config_filename
        target = self._options.target or (dump.target if known else "")
        files = ",".join(filter(None, (self._options.kernel_ir_file, dump.file)))
        self._options = replace(self._options, target=target, kernel_ir_file=files)
        if self._options.stage:
            from hlo_run.pipeline.kernels import compile_kernel_ir  # imports xDSL and llvmlite

            watching = self._watch.observers(self._options)
            watching.append(StageObserver(self._options.stage, self._stage_output.show))
            try:
                compile_kernel_ir(PassContext(choose_target(self._options), self._options, tuple(watching)), dump)
            finally:
                self._watch.show_times(self._options)
            self._console.err(f"nothing to print: '{self._options.stage}' does not come after row '{dump.row}'")
            raise StopAtStage
        module = Path(dump.file).parent / f"{dump.module}.before_optimizations.txt"
        if not module.exists():
            hint = f"--kernel_ir_file={dump.file} with the HLO file, or --stage=ptx"
            raise UsageError(f"'{dump.file}' is kernel IR, and '{module}', its module, does not exist", hint=hint)
        self._file = str(module)
        self._options = replace(self._options, input_format="hlo")

    def _isolate(self, module: HloModule) -> HloModule:
        """Return the fusion of `--isolate_fusion` as a module, written as a file together with its operands in this run."""
        options = self._options
        fusion = find_fusion(module, options.isolate_fusion, choose_target(options), options)
        alone = isolate_instruction(fusion)
        # What remains concerns the new module, whose arguments are those found here.
        self._options = replace(options, inputs="", num_replicas=0, num_partitions=0)
        if options.stage:
            return alone
        arguments = Arguments(replace(options, save_inputs=""), module, self._given, self._place, self._given_from)
        try:
            values, source = arguments.next(1)
            self._given = operands_in_run(fusion, values, MODULE_SEED)
            self._given_from = f"the run of {module.name} with {source}"
        except (Unsupported, DeviceError) as error:
            self._given = make_fake_arguments(alone, options.seed)
            self._given_from = f"seed {options.seed}"
            self._console.err(f"%{fusion.name} gets random operands, the reference cannot make those of a run: {error.message}")
        folder = options.xla_dump_to if options.xla_dump_to not in ("", "-") else "."
        path = write_isolated(folder, f"{module.name}.{fusion.name}", alone, self._given)
        self._console.err(f"%{fusion.name} is isolated: hlo-run --inputs={path}.npz {path}.hlo")
        return alone

    def _reference_platform(self) -> str:
        """Return the platform (or the file) to compare with, or nothing."""
        if self._options.expected_output:
            return self._options.expected_output
        text = self._options.reference_platform
        if text == "default":
            return INTERPRETER
        if text and platform_name(text) != INTERPRETER:
            raise UsageError(f"--reference_platform={text} is not available", hint=f'{INTERPRETER}, or "" for none')
        return platform_name(text) if text else ""

    def _compile(self, module: HloModule, backend: Backend | None) -> Executable:
        options = self._options
        watching: list[Callable[[HloModule], Observer]] = [self._pass_checker(module)] if options.check_each_pass else []
        watching += [self._stage_output.observer] if options.stage else []
        with self._watch.compiling(options, module, self._target(backend), watching) as (ctx, working):
            executable = compile_or_load(ctx, working)
            if options.output:
                write_executable(options.output, executable, module, working, options.output_machine_code)
                self._console.err(f"{options.output}: {module.name} for {executable.target}")
            return executable

    def _pass_checker(self, module: HloModule) -> Callable[[HloModule], Observer]:
        """Return what makes the observer that evaluates `module` after every row, on the first iteration's arguments."""
        options = self._options
        source = Arguments(replace(options, save_inputs=""), module, self._given, self._place, self._given_from)
        values, _ = source.next(1)
        interpreter = InterpreterBackend(source.grid)
        folder = options.xla_dump_to if options.xla_dump_to not in ("", "-") else "."
        alone = values if source.grid.size == 1 else []
        return lambda working: PassChecker(
            working,
            lambda state: interpreter.run_module(state, values, MODULE_SEED),
            alone,
            error_spec(options),
            folder,
            self._console.err,
        )

    def _target(self, backend: Backend | None) -> targets.TargetSpec:
        """Return what to compile for: the flags' choice, else the device that will run it, else the default."""
        options = self._options
        if options.target or options.xla_gpu_target_config_filename or backend is None or backend.target is None:
            return choose_target(options)
        return backend.target


def _check_output(options: Options, files: Sequence[str]) -> None:
    """Raise UsageError for output flags that nothing will obey."""
    if options.output_format != "hlo" and options.stage not in (HLO_INPUT, OPTIMIZED_HLO):
        hint = f"--stage={OPTIMIZED_HLO} is the module as executed, --stage={HLO_INPUT} the one that was read"
        raise UsageError(f"--output_format={options.output_format} needs a stage that is an HLO module", hint=hint)
    if options.output_file and not options.stage:
        raise UsageError("--output_file needs --stage, which says what to write")
    if options.output and (options.stage or len(files) > 1 or not is_executable_file(options.output)):
        raise UsageError("--output=FILE.hlox takes the executable of one input file, without --stage")
    shown = [flag for flag in ("stage", "output", "xla_diff", "explain") if getattr(options, flag)]
    if len(shown) > 1 and shown != ["stage", "output"]:
        raise UsageError(f"{' and '.join(f'--{flag}' for flag in shown)} exclude each other")
    if options.explain:
        asked_names(options.explain)
    if options.output_machine_code and not options.output:
        raise UsageError("--output_machine_code needs --output=FILE.hlox, where the code goes")
    if options.output_file and len(files) > 1:
        raise UsageError("--output_file takes the output of one input file")


def list_passes() -> str:
    """Return the rows of both tables: pipeline, name, `required`, and the first line of the pass's docstring."""
    from hlo_run.pipeline.table import describe_rows  # imports every pass

    return describe_rows()


def _check_names(options: Options) -> tuple[str, ...]:
    """Return warnings about rows in flags, raise UsageError for a stage that does not exist; costs nothing without such flags."""
    if options.only_rows or options.disabled_rows or options.xla_fuel or options.stage not in ("", HLO_INPUT):
        from hlo_run.pipeline.table import check_row_names  # imports every pass

        return check_row_names(options)
    return ()
