"""Opens the reference platform of a run: XLA:CPU, or a platform that runs our kernels (CUDA, Host)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.memory import check_memory
from hlo_run.errors import HloRunError
from hlo_run.execution.iterations import ReferenceRun
from hlo_run.hlo.feeds import Feeds
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.executable_cache import compile_or_load
from hlo_run.platforms import CPU, CUDA, HOST, INTERPRETER, open_backend
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.target import TargetSpec


@contextmanager
def opened_reference(
    options: Options, module: HloModule, platform: str, name: str, grid: DeviceGrid, target: TargetSpec
) -> Generator[ReferenceRun | None]:
    """Yield the function that runs `module` on the reference platform `name`.

    None for the Interpreter, for a file of expected results, and without a comparison. `platform` is that of the run: the
    module is despecialised unless both platforms run our kernels, as XLA does. `target` is the GPU to compile for if the flags
    choose it or the platform runs code for any. Raises DeviceError without a device, and
    Unsupported for a module that the platform does not take.
    """
    if name == CPU:
        from hlo_run.execution.xla_cpu_reference import XlaCpuReference

        reference = XlaCpuReference(module, grid, options.timeout)
        try:
            yield reference.run
        finally:
            reference.stop()
    elif name in (CUDA, HOST):
        with _hints_of_reference():
            run = _compiled(options, module, platform, name, grid, target)
        yield run
    else:
        yield None


def _compiled(
    options: Options, module: HloModule, platform: str, name: str, grid: DeviceGrid, target: TargetSpec
) -> ReferenceRun:
    """Compile for the reference platform, without dumps and replaced kernels, which belong to the run."""
    backend = open_backend(name, replace(options, profile="", profile_execution=False, host_check=""))
    if platform == INTERPRETER:
        from hlo_run.execution.reference_module import despecialized

        module = despecialized(module)
    else:
        module = module.clone()
    own = replace(
        options.compile,
        run_test_hlo_passes=options.run_reference_hlo_passes,
        kernel_ir_file="",
        xla_gpu_llvm_ir_file="",
        xla_gpu_ptx_file="",
        check_each_pass=False,
        output="",
    )
    if backend.target is not None and not options.target and not options.xla_gpu_target_config_filename:
        target = backend.target
    executable = compile_or_load(PassContext(target, own), module)
    check_memory(executable)

    def run(values: Sequence[Literal], seed: int, feeds: Feeds) -> Literal:
        with _hints_of_reference():
            return run_on_grid(backend, executable, values, grid, seed, feeds)

    return run


@contextmanager
def _hints_of_reference() -> Generator[None]:
    """Let the hints of errors name the flag of the reference platform, not the run's flag."""
    try:
        yield
    except HloRunError as error:
        error.hint = error.hint.replace("--platform=", "--reference_platform=")
        raise
