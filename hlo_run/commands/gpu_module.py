"""A module of the gpu dialect: compiles its kernels, runs it, and compares with the interpretation of the IR before any pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.memory import check_memory
from hlo_run.commands.compilation import compiling
from hlo_run.commands.task import Task
from hlo_run.commands.validate import check_flags_of_gpu_module
from hlo_run.containment.board import limited
from hlo_run.execution.arguments import Arguments
from hlo_run.execution.iterations import Execution, Runner
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.values.literal import Literal
from hlo_run.ops.parse import parse
from hlo_run.options.text_files import read_text
from hlo_run.pass_support.observer import StopAtStage
from hlo_run.pipeline.observers.stage import StageObserver
from hlo_run.platforms import INTERPRETER, choose_platform, open_backend, reference_platform
from hlo_run.records import replace

if TYPE_CHECKING:
    from hlo_run.codegen.gpu_modules.program import Argument, Program
    from hlo_run.dialects.parse import PlacedModule
    from hlo_run.hlo.graph import HloModule
    from hlo_run.pass_support.hlo_pass import PassContext
    from hlo_run.pipeline.gpu_modules import CompiledProgram, Output

_GRACE_SECONDS = 2.0
_SECONDS = 600.0


def run_gpu_module(task: Task) -> None:
    """Run the mode that the flags ask for: a stage, a compilation, or a run with its comparison.

    Raises UsageError for modes that need an HLO module, DeviceError for a fault of the program, Mismatch for another result.
    """
    from hlo_run.codegen.gpu_modules.program import plan_program
    from hlo_run.dialects.parse import parse_gpu_module  # imports xDSL

    options = task.options
    check_flags_of_gpu_module(options, task.file)
    placed = parse_gpu_module(read_text(task.file, "MLIR"), task.file)
    if options.stage == "hlo-input":
        from hlo_run.dialects.printer import print_module

        task.stage_output.show(print_module(placed.module, generic=options.print_ir_generic).rstrip("\n"))
        raise StopAtStage
    program = plan_program(placed, _module_name(task.file), options.sizes, options.kernel_launch)
    task.result.module = program.name
    _Run(task, placed, program).run()


def _module_name(file: str) -> str:
    name = re.sub(r"\W", "_", file.rpartition("/")[2].removesuffix(".mlir"))
    return name if name and not name[0].isdigit() else f"m_{name}"


class _Run:
    def __init__(self, task: Task, placed: PlacedModule, program: Program) -> None:
        self._task, self._placed, self._program = task, placed, program
        self._outputs: tuple[Output, ...] = ()
        self._expected: tuple[object, Literal] | None = None

    def run(self) -> None:
        """Compile, and run unless the flags ask for less."""
        task, options = self._task, self._task.options
        signature = _hlo_module(self._program, ())
        if options.stage or options.compile_only:
            self._compile_only(signature)
            return
        platform = task.result.platform = choose_platform(options.platform)
        reference = task.result.reference = reference_platform(options)
        backend = None if platform == INTERPRETER else open_backend(platform, options)
        with compiling(task, signature, backend.target if backend is not None else None) as (ctx, _):
            compiled = self._compiled(ctx)
        check_memory(compiled.executable)
        module = _hlo_module(self._program, self._outputs)
        arguments = Arguments(options, module, task.given, task.place, task.given_from)
        execution = Execution(options, task.console, module, arguments, task.place, task.result)
        execution.prepare()
        if backend is None:
            runner = Runner(INTERPRETER, "the IR before any pass", self._interpret)
            execution.run(runner, "", None)
            return

        def run(values: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
            if reference == INTERPRETER:
                self._interpret(values, seed, feeds)  # first, as it names the operation at fault
            with limited(options.timeout and options.timeout + _GRACE_SECONDS):
                return run_on_grid(backend, compiled.executable, values, arguments.grid, seed, feeds)

        task.result.device = backend.description
        runner = Runner(
            backend.name,
            backend.description,
            run,
            lambda: backend.outfeed,
            lambda: backend.profile.last_run_seconds() if backend.profile is not None else 0.0,
        )
        try:
            execution.run(runner, reference, self._interpret)
        finally:
            _report(task, backend)

    def _compile_only(self, signature: HloModule) -> None:
        options = self._task.options
        with compiling(self._task, signature) as (ctx, _):
            if options.stage:
                observer = StageObserver(options.stage, self._task.stage_output.show)
                ctx = replace(ctx, observers=(*ctx.observers, observer), show=options.show)
            self._compiled(ctx)
        if options.stage:
            self._task.console.err(f"nothing to print: a module of the gpu dialect has no stage '{options.stage}'")
        else:
            self._task.console.err("Compiled.")

    def _compiled(self, ctx: PassContext) -> CompiledProgram:
        from hlo_run.pipeline.gpu_modules import compile_program  # imports the passes

        compiled = compile_program(ctx, self._placed, self._program)
        self._outputs = compiled.outputs
        return compiled

    def _interpret(self, values: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
        """Return the results by interpretation. Those for the same arguments are kept once."""
        del seed, feeds
        if self._expected is not None and self._expected[0] is values:
            return self._expected[1]
        from hlo_run.interpret.gpu_results import interpreted  # imports xDSL

        seconds = self._task.options.timeout or _SECONDS
        results = interpreted(self._placed, self._program, self._outputs, values, seconds)
        self._expected = values, results
        return results


def _report(task: Task, backend: Any) -> None:
    task.result.launches = backend.launch_records()
    if report := backend.report():
        task.console.err(report)
    if backend.profile is not None and task.options.profile:
        task.result.profile = backend.profile
        task.console.err(backend.profile.table())


def _hlo_module(program: Program, outputs: Sequence[Output]) -> HloModule:
    """Return an HLO module with the parameters and the results of a program, for what reads, makes and compares arrays."""
    given = program.given
    arrays = [_shape(argument) for argument in given]
    lines = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(arrays)]
    operands = ", ".join(f"p{number}" for number in range(len(given)))
    results = [_shape(output) for output in outputs] or ["f32[]"]
    result = results[0] if len(results) == 1 else f"({', '.join(results)})"
    lines.append(f'  ROOT program = {result} custom-call({operands}), custom_call_target="gpu_module"')
    module = parse("\n".join(["HloModule program", "", "ENTRY main {", *lines, "}"]), f"{program.name}.hlo")
    module.name = program.name  # that of the file, which may be a word of HLO, such as u1
    return module


def _shape(array: Argument | Output) -> str:
    return f"{array.dtype}[{','.join(map(str, array.dims))}]"
