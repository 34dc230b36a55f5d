"""Loads LLVM in a fork while this process still lowers the kernel, since loading it takes a sixth of a short command's time.

Only a command that prints a stage does so, for its first module: one that runs kernels on Host needs LLVM in its own process.
If the fork dies, LLVM runs here, so that a crash is reported as any other.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from msgspec import Struct

from hlo_run.codegen.llvm.emit_ptx import CompiledPtx, compile_llvm
from hlo_run.codegen.llvm.libdevice import read_libdevice
from hlo_run.codegen.llvm.nvptx import DATA_LAYOUT, TRIPLE
from hlo_run.parallel import Assistant, available_cores, can_fork
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import TargetSpec


class LlvmSettings(Struct, frozen=True):
    """The arguments of `compile_llvm` besides the text."""

    target: TargetSpec
    cuda_data_dir: str
    optimization_level: int
    flushes_denormals: bool


_assistant: Assistant | None = None
_was_started = False


def settings_of(ctx: PassContext) -> LlvmSettings:
    """Return the settings that the flags ask for."""
    options = ctx.options
    return LlvmSettings(ctx.target, options.xla_gpu_cuda_data_dir, options.xla_backend_optimization_level, options.xla_gpu_ftz)


def load_llvm(settings: LlvmSettings) -> None:
    """Load LLVM and libdevice. An empty kernel brings the code of the optimiser and of the code generator into memory."""
    empty = (
        f'target datalayout = "{DATA_LAYOUT}"\ntarget triple = "{TRIPLE}"\ndefine ptx_kernel void @empty() {{\n  ret void\n}}\n'
    )
    compile_text(empty, settings)
    read_libdevice(settings.cuda_data_dir)


@contextmanager
def llvm_ahead(ctx: PassContext) -> Generator[None]:
    """Start the fork if the command prints a stage, this process has not loaded LLVM, and there is a core for it."""
    global _assistant, _was_started
    options = ctx.options
    wanted = options.compile_processes or options.xla_gpu_force_compilation_parallelism or available_cores()
    is_worth_it = (
        bool(ctx.show.stage) and wanted > 1 and options.llvm_opt_bisect_limit < 0 and "llvmlite.binding" not in sys.modules
    )
    if _was_started or not is_worth_it or not can_fork():
        yield
        return
    _was_started = True
    settings = settings_of(ctx)
    _assistant = Assistant(lambda: load_llvm(settings), lambda request: compile_text(*request))
    try:
        yield
    finally:
        _assistant.end()
        _assistant = None


def compiled_ahead(ir_text: str, settings: LlvmSettings) -> CompiledPtx | None:
    """Return what the forked process computed, or None if no process was forked."""
    return _assistant.ask((ir_text, settings)) if _assistant is not None else None


def compile_text(ir_text: str, settings: LlvmSettings) -> CompiledPtx:
    """Compile LLVM IR in this process; raises the errors of `compile_llvm`."""
    return compile_llvm(
        ir_text,
        settings.target,
        cuda_data_dir=settings.cuda_data_dir,
        optimization_level=settings.optimization_level,
        flushes_denormals=settings.flushes_denormals,
    )
