"""Compiles a fusion to a kernel: emits `xla_gpu` IR, runs the kernel rows, prints LLVM IR, and compiles it to PTX."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

# Before all of xDSL's dialects, whose definitions are then made when they are used.
from hlo_run.dialects.context import make_context

# isort: split
from xdsl.dialects.builtin import ModuleOp

from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.artifact import BufferSlice, Kernel
from hlo_run.codegen.emitters.emit import EmittedKernel, EntryArgument, emit_kernel
from hlo_run.codegen.llvm.emit_ptx import CompiledPtx
from hlo_run.codegen.llvm.nvptx import limit_passes
from hlo_run.codegen.llvm.print import llvm_ir_text
from hlo_run.codegen.llvm.together import compile_together, join_kernels
from hlo_run.errors import HloRunError, InternalError, ParseError, Where
from hlo_run.garbage_collection import paused_collection
from hlo_run.options.show import ShowOptions
from hlo_run.pass_support.fuel import kernel_fuel
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import EMIT_KERNELS, LLVM, LLVM_BEFORE_OPTIMIZATIONS, PTX, Level, Step
from hlo_run.pass_support.replacements import KernelIr, Replacements
from hlo_run.pipeline.kernel_table import (
    EMITTED_ROWS,
    GPU_INPUT,
    GPU_MODULE_PIPELINE,
    KERNEL_GROUP,
    KERNEL_PIPELINE,
    SHARED_ROWS,
    SPECIALIZE_KERNEL,
    KernelContext,
    KernelPass,
    KernelRow,
)
from hlo_run.pipeline.llvm_ahead import compile_text, compiled_ahead, load_llvm, settings_of
from hlo_run.pipeline.ptxas_check import check_with_ptxas, native_work
from hlo_run.pipeline.runner import KernelRun, run_crossing
from hlo_run.pipeline.table_rows import base_name
from hlo_run.records import replace
from hlo_run.runtime.kernel_requests import KernelRequest

# A row, the name of its pass, and the pass.
_RowPass: TypeAlias = "tuple[str, str, KernelPass]"
_SHARED = re.compile(r"^\s*\.shared \.align \d+ \.b(?P<bits>\d+) \w+(?:\[(?P<count>\d+)\])?;", re.MULTILINE)


def compile_kernel(ctx: PassContext, request: KernelRequest) -> Kernel:
    """Return the kernel of a fusion. Raises errors of the HloRunError family with at least the fusion's place in `where`."""
    with _at_fusion(request), paused_collection():
        return _compile_kernel(ctx, request)


def compile_kernels(ctx: PassContext, requests: Sequence[KernelRequest], lowered: Callable[[], None]) -> list[Kernel]:
    """Return the kernels of several fusions as `compile_kernel` does; LLVM compiles small ones together.

    Nobody must see the steps. Calls `lowered` after the LLVM IR of each kernel is made.
    """
    parts: list[tuple[LaunchDimensions, str]] = []
    passes: dict[int, list[_RowPass]] = {}
    for request in requests:
        with _at_fusion(request), paused_collection():
            run, emitted = _emitted(ctx, request)
            factor = emitted.unroll_factor
            if factor not in passes:
                passes[factor] = _passes_after(ctx, factor, EMIT_KERNELS, KERNEL_PIPELINE)
            parts.append((emitted.launch, _lowered(ctx, run, request.kernel, emitted, passes[factor])))
        lowered()
    together = _compiled_together(ctx, requests, [text for _, text in parts])
    kernels: list[Kernel] = []
    for number, (request, (launch, text)) in enumerate(zip(requests, parts, strict=True)):
        with _at_fusion(request):
            ptx = together[number] if number in together else _compile_llvm(ctx, request.kernel, text)
            check_with_ptxas(ctx, request.kernel, ptx)
        kernels.append(Kernel(request.kernel, ptx, launch.grid, launch.block, _shared_bytes(ptx)))
    return kernels


def compiles_together(ctx: PassContext) -> bool:
    """True if `compile_kernels` may compile the kernels: no text is wanted or given, and LLVM counts no passes."""
    is_plain = not ctx.observers and ctx.replacements == Replacements() and not ctx.locates
    return is_plain and not ctx.options.xla_gpu_ftz and ctx.options.llvm_opt_bisect_limit < 0


def _compiled_together(ctx: PassContext, requests: Sequence[KernelRequest], texts: list[str]) -> dict[int, str]:
    joined = join_kernels(texts)
    if joined is None:
        return {}
    names = [request.kernel for request in requests]
    settings = settings_of(ctx)
    try:
        with native_work("LLVM", f"{names[0]}' .. '{names[-1]}", "", "ll", joined.text):
            return compile_together(joined, settings.target, settings.optimization_level)
    except HloRunError:
        return {}  # one by one, so that the error is that of a kernel


@contextmanager
def _at_fusion(request: KernelRequest) -> Generator[None]:
    """Give errors without a place the place of the fusion."""
    try:
        yield
    except HloRunError as error:
        error.where = error.where or request.fusion.where
        raise


def _compile_kernel(ctx: PassContext, request: KernelRequest) -> Kernel:
    for observer in ctx.observers:
        observer.note(request.kernel, "Fusion Analysis", lambda: str(analyze(request.fusion, ctx.target)))
    given = ctx.replacements.ir.get(request.kernel)
    if given is not None:
        return _compile_dump(ctx, given)
    run, emitted = _emitted(ctx, request)
    return _finish(ctx, run, request.kernel, emitted, EMIT_KERNELS, KERNEL_PIPELINE)


def _emitted(ctx: PassContext, request: KernelRequest) -> tuple[KernelRun, EmittedKernel]:
    run = _kernel_run(ctx, request.kernel)
    arguments = _entry_arguments(request)
    return run, run.emit(EMIT_KERNELS, lambda: emit_kernel(request.fusion, request.kernel, ctx.target, arguments, request.part))


def load_for_kernels(ctx: PassContext) -> None:
    """Load the passes of the kernel rows and LLVM, which forks of this process then need not load again."""
    kernel_ctx = KernelContext(ctx.target, ctx.options, ctx.observers, fuel=ctx.fuel)
    for row in KERNEL_PIPELINE:
        if row.runs(kernel_ctx, (KERNEL_GROUP,)):
            row.make(kernel_ctx)
    load_llvm(settings_of(ctx))


def compile_kernel_ir(ctx: PassContext, given: KernelIr) -> Kernel:
    """Return the kernel of a dump of kernel IR by running the rows after the dump's row; raises ParseError for a bad dump."""
    return _compile_dump(replace(ctx, fuel=kernel_fuel(ctx.options.kernel_fuel_limits)), given)


def compile_gpu_kernel(ctx: PassContext, kernel: str, make: Callable[[], EmittedKernel]) -> Kernel:
    """Return a kernel of a module of the gpu dialect; `make` returns it as a module with one gpu.func."""
    with paused_collection():
        run = _kernel_run(ctx, kernel)
        emitted = run.emit(SPECIALIZE_KERNEL, make)
        return _finish(ctx, run, kernel, emitted, GPU_MODULE_PIPELINE[0].name, GPU_MODULE_PIPELINE)


def outlined_module(ctx: PassContext, name: str, module: ModuleOp) -> None:
    """Run the first row of a module of the gpu dialect, in place: its launches become kernels."""
    kernel_ctx = KernelContext(ctx.target, ctx.options, ctx.observers, fuel=ctx.fuel)
    run = _kernel_run(ctx, name)
    one = LaunchDimensions((1, 1, 1), (1, 1, 1))
    run.emit(GPU_INPUT, lambda: EmittedKernel(module, one, 1, kind="", vector_size=0))
    row = GPU_MODULE_PIPELINE[0]
    run.apply(row.name, base_name(row.name), row.make(kernel_ctx), make_context(), module)


def _compile_dump(ctx: PassContext, given: KernelIr) -> Kernel:
    if given.row not in (EMIT_KERNELS, *(row.name for row in KERNEL_PIPELINE)):
        raise ParseError(f"the kernel pass table has no row '{given.row}'", Where(given.file, 1, 1), hint="see --list_passes")
    from hlo_run.dialects.parse import parse_module  # imports xDSL's parser, which most kernels do not need

    module = parse_module(given.text, given.file)
    emitted = EmittedKernel(module, given.launch, given.unroll_factor, kind="", vector_size=0)
    run = _kernel_run(ctx, given.kernel)
    run.resume(emitted, given.row)
    with _blaming(given.file):
        return _finish(ctx, run, given.kernel, emitted, given.row, KERNEL_PIPELINE)


def _kernel_run(ctx: PassContext, kernel: str) -> KernelRun:
    return KernelRun(kernel, ctx, partial(_kernel_text, ctx.show))


def _kernel_text(show: ShowOptions, module: ModuleOp, row: str, kind: str) -> str:
    """Return the text of a kernel of the emitter `kind` after a row."""
    from hlo_run.dialects.printer import print_module  # imports the printer, which most compilations do not need

    if show.print_ir_generic or not show.xla_dump_enable_mlir_pretty_form:
        return print_module(module, generic=True, print_locations=show.print_locations)
    if show.print_ir_as_xla:
        from hlo_run.dialects.editing.released_form import print_released  # imports XLA's dialect

        stage = "emitted" if row in EMITTED_ROWS else "shared" if row in SHARED_ROWS else "lowered"
        return print_released(module, kind, stage=stage, print_locations=show.print_locations)
    return print_module(module, print_locations=show.print_locations)


def _finish(
    ctx: PassContext,
    run: KernelRun,
    kernel: str,
    emitted: EmittedKernel,
    done: str,
    pipeline: tuple[KernelRow, ...],
) -> Kernel:
    """Run the rows after the row `done`, then make LLVM IR and PTX. Steps before a replacement text are skipped."""
    launch = emitted.launch
    given = ctx.replacements.ptx.get(kernel)
    if given is not None:
        ptx = run_crossing(Step(Level.PTX, "kernel", PTX, text=str, kernel=kernel), ctx, lambda: given.text)
        with _blaming(given.file):
            check_with_ptxas(ctx, kernel, ptx, given.file)
        return Kernel(kernel, ptx, launch.grid, launch.block, _shared_bytes(ptx))
    given = ctx.replacements.llvm.get(kernel)
    if given is not None:
        _llvm_crossing(ctx, kernel, lambda: given.text)
        with _blaming(given.file):
            ptx = _compile_llvm(ctx, kernel, given.text, given.file)
            check_with_ptxas(ctx, kernel, ptx, given.file)
    else:
        passes = _passes_after(ctx, emitted.unroll_factor, done, pipeline)
        ptx = _compile_llvm(ctx, kernel, _lowered(ctx, run, kernel, emitted, passes))
        check_with_ptxas(ctx, kernel, ptx)
    return Kernel(kernel, ptx, launch.grid, launch.block, _shared_bytes(ptx))


@contextmanager
def _blaming(file: str) -> Generator[None]:
    """Turn an InternalError about a user's replacement text into a ParseError at `file`."""
    try:
        yield
    except InternalError as error:
        raise ParseError(error.message, Where(file, 1, 1), notes=error.notes) from error


def _llvm_crossing(ctx: PassContext, kernel: str, work: Callable[[], str]) -> str:
    return run_crossing(Step(Level.LLVM, "kernel", LLVM_BEFORE_OPTIMIZATIONS, text=str, kernel=kernel), ctx, work)


def _passes_after(ctx: PassContext, unroll_factor: int, done: str, pipeline: tuple[KernelRow, ...]) -> list[_RowPass]:
    """Return the passes of the rows that come after `done`, which is a row or the step before the first one."""
    kernel_ctx = KernelContext(ctx.target, ctx.options, ctx.observers, fuel=ctx.fuel, max_unroll_factor=unroll_factor)
    names = [EMIT_KERNELS, *(row.name for row in pipeline)]
    rows = [row for row in pipeline[names.index(done) :] if row.runs(kernel_ctx, (KERNEL_GROUP,))]
    return [(row.name, base_name(row.name), row.make(kernel_ctx)) for row in rows]


def _lowered(ctx: PassContext, run: KernelRun, kernel: str, emitted: EmittedKernel, passes: list[_RowPass]) -> str:
    """Run passes on a kernel, and return its LLVM IR."""
    xdsl_context = make_context()
    for row, name, made in passes:
        run.apply(row, name, made, xdsl_context, emitted.module)
    for observer in ctx.observers:
        observer.kernel_done(kernel)
    launch = emitted.launch
    return _llvm_crossing(
        ctx, kernel, lambda: llvm_ir_text(emitted.module, kernel, launch.grid, launch.block, locations=ctx.locates)
    )


def _entry_arguments(request: KernelRequest) -> list[EntryArgument]:
    """Return the kernel's arguments. Slices are numbered in order of first appearance; equal slices get equal numbers."""
    numbers: dict[BufferSlice, int] = {}
    return [
        EntryArgument(
            slice_index=numbers.setdefault(argument.slice, len(numbers)),
            align=alignment,
            dereferenceable_bytes=argument.slice.size_bytes,
            invariant=not argument.written,
        )
        for argument, alignment in zip(request.arguments, request.alignments_bytes, strict=True)
    ]


def _compile_llvm(ctx: PassContext, kernel: str, ir_text: str, user_file: str = "") -> str:
    compiled: list[CompiledPtx] = []

    def optimize() -> str:
        options = ctx.options
        if options.llvm_opt_bisect_limit >= 0:
            limit_passes(options.llvm_opt_bisect_limit)
        with native_work("LLVM", kernel, user_file, "ll", ir_text):
            settings = settings_of(ctx)
            compiled.append(compiled_ahead(ir_text, settings) or compile_text(ir_text, settings))
        return compiled[0].llvm_optimized

    run_crossing(Step(Level.LLVM, "kernel", LLVM, text=str, kernel=kernel), ctx, optimize)
    return run_crossing(Step(Level.PTX, "kernel", PTX, text=str, kernel=kernel), ctx, lambda: compiled[0].ptx)


def _shared_bytes(ptx: str) -> int:
    """Return the bytes of static shared memory that the PTX declares: the sum of its arrays."""
    return sum(int(tile["bits"]) // 8 * int(tile["count"] or 1) for tile in _SHARED.finditer(ptx))
