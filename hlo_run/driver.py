"""One run: read, parse, compile, run, compare with the reference; for every file, in XLA's order of work."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import hlo_run
from hlo_run import target as targets
from hlo_run.artifact import Executable
from hlo_run.backends import Backend
from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.backends.memory import check_memory
from hlo_run.backends.platforms import INTERPRETER, choose_platform, open_backend, platform_name
from hlo_run.errors import DeviceError, HloRunError, InternalError, Mismatch, UsageError
from hlo_run.formats.read import read_module
from hlo_run.hlo.arguments import fit_arguments
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.literal import Literal, literal_to_string
from hlo_run.hlo.printer import PrintOptions, module_to_string
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options, read_text
from hlo_run.pipeline.observer import OPTIMIZED_HLO, Observer, StopAtStage
from hlo_run.pipeline.observers.dump import DumpObserver, compile_pattern
from hlo_run.pipeline.observers.stage import StageObserver
from hlo_run.pipeline.observers.timing import TimingObserver
from hlo_run.pipeline.observers.verbose import VerboseObserver
from hlo_run.pipeline.passes import PassContext
from hlo_run.pipeline.print_options import dump_options
from hlo_run.reference.arguments import make_fake_arguments
from hlo_run.reference.compare import ErrorSpec, compare
from hlo_run.reference.random import RandomEngine

HLO_INPUT = "hlo-input"


class Console(Protocol):
    """Where a run's text goes: results to `out`, everything else to `err`; both add the last newline."""

    def out(self, text: str) -> None: ...

    def out_bytes(self, data: bytes) -> None: ...

    def err(self, text: str) -> None: ...

    def error(self, error: HloRunError) -> None: ...

    def busy(self, what: str) -> AbstractContextManager[None]: ...


def run_files(options: Options, files: Sequence[str], console: Console) -> int:
    """Run every file and return the first exit code that is not 0; raises UsageError when there is nothing to do."""
    if options.list_passes:
        console.out(list_passes())
        return 0
    if not files:
        raise UsageError("no input file", hint="hlo-run FILE..., or - for stdin")
    _check_names(options)
    _check_output(options, files)
    codes = [_run_file(options, file, number, console) for number, file in enumerate(files)]
    return next((code for code in codes if code), 0)


def _run_file(options: Options, file: str, number: int, console: Console) -> int:
    """Run one file, say what failed, and return its exit code."""
    try:
        FileRun(options, file, number, console).run()
    except StopAtStage:
        return 0
    except HloRunError as error:
        return _failed(error, console)
    except MemoryError:
        return _failed(DeviceError("out of memory", hint="the module's arrays do not fit into this machine's memory"), console)
    except Exception as error:  # a bug of ours outside the rows, which report their own
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}"
        return _failed(InternalError(message, notes=(f"at {Path(frame.filename).name}:{frame.lineno}, {frame.name}",)), console)
    return 0


def _failed(error: HloRunError, console: Console) -> int:
    console.error(error)
    return error.exit_code


def choose_target(options: Options) -> targets.TargetSpec:
    """Return the GPU to compile for: a spec file, a preset, or the default; raises UsageError."""
    path = options.xla_gpu_target_config_filename
    if path:
        return targets.from_text_proto(read_text(path, "--xla_gpu_target_config_filename"), path)
    return targets.preset(options.target or targets.DEFAULT_TARGET)


class FileRun:
    """One file of the command line; `number` is its place there, from 0."""

    def __init__(self, options: Options, file: str, number: int, console: Console) -> None:
        self._options = options
        self._file = file
        self._number = number
        self._console = console
        self._timing = TimingObserver()
        self._given: list[Literal] = []  # the arguments of a snapshot
        self._has_output = False

    def run(self) -> None:
        """Do it all; raises the first error, StopAtStage once the stage asked for is printed, Mismatch if results differ."""
        options = self._options
        if not options.stage:
            self._console.out(f"\n** Running {self._file} **")
        module = self._load()
        reference = self._reference_platform()
        platform = "" if options.stage else choose_platform(options.platform)
        if platform == INTERPRETER:
            interpreter = InterpreterBackend()
            runner = _Runner(
                interpreter.name, lambda arguments: interpreter.run_module(module, arguments), interpreter.description
            )
            self._iterate(runner, module, reference)
            return
        backend = open_backend(platform, options) if platform else None
        executable = self._compile(module, backend)
        if backend is None:
            self._console.err(f"nothing to print: {module.name} has no kernel, or the row did not run")
            return
        check_memory(executable)
        runner = _Runner(platform, lambda arguments: backend.run(executable, arguments), backend.description)
        try:
            self._iterate(runner, module, reference)
        finally:
            if report := backend.report():
                self._console.err(report)

    def _load(self) -> HloModule:
        source = read_module(self._file, self._options.input_format)
        module = hlo_run.parse(source.text, self._file)
        if self._options.stage == HLO_INPUT:
            self._show_module(module)
            raise StopAtStage
        if source.arguments is not None:
            self._given = fit_arguments(module, source.arguments, f"'{self._file}'")
        return wrap_bare_module(module)

    def _show(self, text: str) -> None:
        """Give the text of a stage to stdout or `--output_file`."""
        if not self._options.output_file:
            self._console.out(text)
            return
        write_output(self._options.output_file, text.encode() + b"\n", append=self._has_output)
        self._has_output = True

    def _show_module(self, module: HloModule) -> None:
        """Give a module, in the format of `--output_format`, to stdout or `--output_file`."""
        if self._options.output_format == "hlo":
            self._show(module_to_string(module, dump_options(self._options)).rstrip("\n"))
            return
        from hlo_run.formats.write import module_to_bytes  # only who asks for another format waits for it

        data = module_to_bytes(module, self._options.output_format)
        if self._options.output_file:
            write_output(self._options.output_file, data)
        else:
            self._console.out_bytes(data)

    def _reference_platform(self) -> str:
        """Return the platform to compare with, or nothing."""
        text = self._options.reference_platform
        if text == "default":
            return INTERPRETER
        if text and platform_name(text) != INTERPRETER:
            raise UsageError(f"--reference_platform={text} is not available", hint=f'{INTERPRETER}, or "" for none')
        return platform_name(text) if text else ""

    def _compile(self, module: HloModule, backend: Backend | None) -> Executable:
        # xDSL and llvmlite take a third of a second to import: only who compiles waits for them.
        from hlo_run.pipeline.compile import compile_module

        target = self._target(backend)
        dump = self._dump_observer(module, target)
        # Compilation edits; the arguments and the reference want the module the user wrote.
        working = module.clone()
        observers: list[Observer] = []
        if self._options.v:
            observers.append(VerboseObserver(self._options.v, self._console.err))
        if dump is not None:
            dump.module("before_optimizations", module_to_string(module, dump_options(self._options)))
            observers.append(dump)
        if self._options.time_passes:
            observers.append(self._timing)
        if self._options.stage:
            observers.append(self._stage_observer(working))
        try:
            with self._console.busy(f"compiling {module.name}"):
                return compile_module(PassContext(target, self._options, tuple(observers)), working)
        except InternalError as error:
            reproducer = _write_reproducer(module, self._options.xla_dump_to)
            raise InternalError(error.message, error.where, error.hint, (*error.notes, f"reproducer: {reproducer}")) from error
        finally:
            if self._options.time_passes:
                self._console.err(self._timing.table())

    def _stage_observer(self, working: HloModule) -> Observer:
        if self._options.output_format == "hlo":
            return StageObserver(self._options.stage, self._show)
        return StageObserver(self._options.stage, lambda _: self._show_module(working))

    def _target(self, backend: Backend | None) -> targets.TargetSpec:
        """Return what to compile for: the flags' choice, else the device that will run it, else the default."""
        options = self._options
        if options.target or options.xla_gpu_target_config_filename or backend is None or backend.target is None:
            return choose_target(options)
        return backend.target

    def _dump_observer(self, module: HloModule, target: targets.TargetSpec) -> DumpObserver | None:
        options = self._options
        if not options.xla_dump_to:
            return None
        pattern = compile_pattern("xla_dump_hlo_module_re", options.xla_dump_hlo_module_re)
        if pattern is not None and pattern.search(module.name) is None:
            return None
        return DumpObserver(options, module.name, self._number, target.xla_name, self._console.out)

    def _iterate(self, runner: _Runner, module: HloModule, reference: str) -> None:
        """Run and compare `--iterations` times; raises the Mismatch of the first iteration that differs, after all of them."""
        options, console = self._options, self._console
        engine = RandomEngine(options.seed)
        mismatches: list[Mismatch] = []
        for iteration in range(1, options.iterations + 1):
            if options.iterations != 1:
                console.err(f"\n=== Iteration {iteration}")
            try:
                self._run_once(runner, module, reference, engine)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        if reference:
            console.err(f"{len(mismatches)}/{options.iterations} runs failed.")
        if mismatches:
            raise mismatches[0]

    def _run_once(self, runner: _Runner, module: HloModule, reference: str, engine: RandomEngine) -> None:
        options, console = self._options, self._console
        arguments = self._given or make_fake_arguments(
            module, engine, options.use_large_float_range, zero=not options.random_init_input_literals
        )
        if options.print_literals:
            for number, (argument, parameter) in enumerate(zip(arguments, module.entry.parameters, strict=True)):
                console.out(f"\n** Argument {number} **\n{literal_to_string(argument, parameter.shape)}")
        where = f" ({runner.description})" if runner.description else ""
        console.err(f"Running HLO module with runner {runner.platform}{where}...")
        actual = self._timed(runner.run, arguments)
        shape = module.entry.root.shape
        if options.print_literals:
            console.out(f"\n** Result with test runner {runner.platform} **\n{literal_to_string(actual, shape)}")
        if not reference:
            console.err("Skipping reference runner")
            return
        console.err(f"Running HLO module with runner {reference}...")
        expected = self._timed(lambda values: InterpreterBackend().run_module(module, values), arguments)
        if options.print_literals:
            console.out(f"\n** Result with reference runner {reference} **\n{literal_to_string(expected, shape)}")
        spec = ErrorSpec(abs=options.abs_error_bound, rel=options.rel_error_bound)
        comparison = compare(expected, actual, shape, spec)
        if not comparison.ok:
            console.out(comparison.report())
            raise Mismatch(comparison.summary(), notes=(f"{runner.platform} and {reference} differ in {self._file}",))
        console.err(f"\n** Results on {runner.platform} and {reference} are close enough. **")
        console.err(comparison.summary())

    def _timed(self, work: Callable[[Sequence[Literal]], Literal], arguments: Sequence[Literal]) -> Literal:
        begin = time.perf_counter()
        with self._console.busy("running"):
            result = work(arguments)
        self._console.err(f"... ran in {time.perf_counter() - begin:.3f}s.")
        return result


class _Runner:
    """A platform as the iterations see it: a name, and arguments to result."""

    def __init__(self, platform: str, run: Callable[[Sequence[Literal]], Literal], description: str = "") -> None:
        self.platform = platform
        self.run = run
        self.description = description


def _write_reproducer(module: HloModule, directory: str) -> str:
    """Write the module in full into the dump directory or the system's temporary one, and return the file's path."""
    folder = directory if directory not in ("", "-") else None
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"reproducer.{module.name}.", suffix=".hlo", dir=folder, delete=False, encoding="utf-8"
    ) as file:
        file.write(module_to_string(module, PrintOptions(large_constants=True)))
    return file.name


def write_output(path: str, data: bytes, append: bool = False) -> None:
    """Write a file of `--output_file`; raises UsageError."""
    try:
        with open(path, "ab" if append else "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"--output_file={path} cannot be written: {os.strerror(error.errno or 0)}") from None


def _check_output(options: Options, files: Sequence[str]) -> None:
    """Raise UsageError for output flags that nothing will obey."""
    if options.output_format != "hlo" and options.stage not in (HLO_INPUT, OPTIMIZED_HLO):
        hint = f"--stage={OPTIMIZED_HLO} is the module as executed, --stage={HLO_INPUT} the one that was read"
        raise UsageError(f"--output_format={options.output_format} needs a stage that is an HLO module", hint=hint)
    if options.output_file and not options.stage:
        raise UsageError("--output_file needs --stage, which says what to write")
    if options.output_file and len(files) > 1:
        raise UsageError("--output_file takes the output of one input file")


def list_passes() -> str:
    """Return the rows of both tables: pipeline, name, `required`, and the first line of the pass's docstring."""
    from hlo_run.pipeline.table import describe_rows  # imports every pass

    return describe_rows()


def _check_names(options: Options) -> None:
    """Raise UsageError for a flag that names no row or stage; costs nothing when no flag names one."""
    if options.only_rows or options.disabled_rows or options.stage not in ("", HLO_INPUT):
        from hlo_run.pipeline.table import check_row_names  # imports every pass

        check_row_names(options)
