"""Compiles an HLO module to an Executable: runs the HLO rows, assigns buffers, plans thunks, compiles one kernel per fusion."""

from __future__ import annotations

import importlib
from functools import partial
from itertools import count, product
from typing import Any

from msgspec import Struct

from hlo_run.analysis.buffers.concurrent_regions import concurrent_regions
from hlo_run.analysis.executed_computations import constants_in_memory
from hlo_run.artifact import Executable, Kernel, Thunk
from hlo_run.containment.board import at_place, counted
from hlo_run.garbage_collection import paused_collection
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.printer import module_to_string
from hlo_run.options import CompileOptions
from hlo_run.options.flag import names
from hlo_run.parallel import available_cores, can_fork, run_in_processes
from hlo_run.pass_support.fuel import kernel_fuel
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import (
    BUFFER_TEXTS,
    CONSTANTS,
    FUSION_ANALYSIS,
    GPU_DIALECT,
    MEMORY_USAGE_PROTO,
    OPTIMIZED_HLO,
    THUNK_METADATA,
    THUNK_METADATA_PROTO,
    THUNKS,
    THUNKS_AFTER_PASSES,
    Level,
    Observer,
    Step,
    StopAtStage,
)
from hlo_run.pass_support.print_options import dump_options
from hlo_run.pipeline.kernel_cache import KernelCache
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import BACKEND_PIPELINE, PIPELINE, pipeline_until
from hlo_run.records import replace
from hlo_run.runtime.buffers import BufferAssignment, assign_buffers, computed_values
from hlo_run.runtime.command_buffers import command_buffer_conversion
from hlo_run.runtime.kernel_requests import KernelRequest
from hlo_run.runtime.memory_spaces import assign_collective_space
from hlo_run.runtime.thunks import plan_thunks

# Fewer kernels compile faster than processes start.
_WORTH_PROCESSES = 3
# What LLVM compiles together at most, and how many such parts a process compiles at least, so that all end together.
_TOGETHER = 32
_PARTS_PER_PROCESS = 4


def optimize(ctx: PassContext, module: HloModule) -> list[HloInstruction]:
    """Run the HLO table on `module` in place and return the entry's schedule.

    A module that already has a schedule skips the optimisation rows and runs only BACKEND_PIPELINE. Raises StopAtStage after
    the pipeline with which the flags end the compilation.
    """
    _, last = ctx.options.early_exit if module.schedule is None else ("", "")
    with paused_collection():
        groups = pipeline_until(last) if last else PIPELINE if module.schedule is None else BACKEND_PIPELINE
        if ctx.options.insert_passes:
            from hlo_run.pipeline.plugin_passes import with_insertions

            groups = with_insertions(groups, names(ctx.options.insert_passes))
        run_hlo_groups(groups, ctx, module)
        if last:
            raise StopAtStage
        assign_collective_space(module, ctx.options.has_collective_memory)
    assert module.schedule is not None, "the schedule row is required"
    done = Step(
        Level.HLO,
        "",
        OPTIMIZED_HLO,
        text=lambda: module_to_string(module, dump_options(ctx.show)),
        changed=False,
        op_count=lambda: sum(len(computation.instructions) for computation in module.computations),
    )
    for observer in ctx.observers:
        observer.after(done)
    return module.schedule[module.entry]


class ModulePlan(Struct, frozen=True):
    """The plan of a module's run before its kernels are compiled: memory, thunks, and requests for kernels."""

    buffers: BufferAssignment
    thunks: tuple[Thunk, ...]
    requests: list[KernelRequest]


def planned_buffers(options: CompileOptions, module: HloModule) -> BufferAssignment:
    """Return the buffers of a module with a schedule, as the options ask for them."""
    return assign_buffers(
        module,
        options.xla_gpu_temp_buffer_use_separate_color,
        options.xla_multiheap_size_constraint_per_heap,
        options.thunk_ordering,
    )


def plan_module(ctx: PassContext, module: HloModule) -> ModulePlan:
    """Optimise `module` in place and return the plan of its run; raises errors of the HloRunError family."""
    optimize(ctx, module)
    for observer in ctx.observers:
        observer.note("", FUSION_ANALYSIS, lambda: _texts().fusion_table(module, ctx.target))
    with paused_collection():
        buffers = planned_buffers(ctx.options, module)
    if ctx.options.verify == "every":
        from hlo_run.runtime.buffer_check import check_buffers

        check_buffers(module, buffers)
    for title, observer in product(BUFFER_TEXTS, ctx.observers):
        observer.note("", title, partial(_buffer_text, buffers, module, title))
    for observer in ctx.observers:
        observer.note("", MEMORY_USAGE_PROTO, lambda: _texts().memory_usage_proto(buffers).decode("latin-1"))
        observer.assigned(lambda: _texts().memory_use(buffers))
    with paused_collection():
        many_streams = ctx.options.xla_gpu_experimental_enable_collective_multi_streaming
        return ModulePlan(buffers, *plan_thunks(module, buffers, ctx.target, many_streams))


def compile_module(ctx: PassContext, module: HloModule) -> Executable:
    """Optimise `module` in place and return its Executable; raises errors of the HloRunError family."""
    plan = plan_module(ctx, module)
    buffers = plan.buffers
    bodies = _KernelBodies(ctx.show.stage == GPU_DIALECT or any(o.wants_note(GPU_DIALECT) for o in ctx.observers))
    kernels = _compile_kernels(bodies.watching(ctx), plan.requests)
    program = Executable(
        name=module.name,
        target=ctx.target.name,
        kernels=kernels,
        thunks=plan.thunks,
        allocations=buffers.allocations,
        parameters=tuple(buffers.array_tree(parameter) for parameter in module.entry.parameters),
        result=buffers.array_tree(module.entry.root),
        divided=module.divided,
        values=computed_values(module, buffers, plan.thunks),
    )
    # XLA makes no LLVM module of constants without one.
    has_constants = bool(ctx.observers) and bool(constants_in_memory(module))
    for observer in ctx.observers:
        for title in CONSTANTS if has_constants else ():
            observer.note("", title, partial(_constants_text, ctx, module, title))
        observer.note("", THUNKS, lambda: _texts().thunk_sequence_text(program))
    final = _with_command_buffers(ctx, program)
    shown, checks = final, None
    if ctx.observers and ctx.show.checks_floats:
        checks = _texts().float_checks(program.thunks, module, buffers)
        shown = _with_command_buffers(ctx, program, frozenset(checks))
    has_outputs = bool(ctx.observers) and ctx.show.xla_gpu_experimental_thunk_buffer_debug_module_outputs
    outputs = _texts().checked_outputs(module, buffers) if has_outputs else None
    has_regions = bool(ctx.observers) and ctx.options.thunk_ordering == "regions"
    regions = {i.name: number for i, number in concurrent_regions(module).items()} if has_regions else None
    for observer in ctx.observers:
        observer.note("", THUNKS_AFTER_PASSES, lambda: _texts().thunk_sequence_text(shown, checks, outputs))
        observer.note("", THUNK_METADATA, lambda: _texts().thunk_metadata_text(shown, checks, regions, outputs))
        observer.note(
            "", THUNK_METADATA_PROTO, lambda: _texts().thunk_metadata_proto(shown, checks, regions, outputs).decode("latin-1")
        )
        if bodies.is_wanted:
            observer.note("", GPU_DIALECT, lambda: _texts().gpu_dialect_text(final, bodies.texts))
    return final


def _texts() -> Any:
    """Return the module of functions that make texts for observers. Imports it when an observer first asks for a text."""
    return importlib.import_module("hlo_run.pipeline.module_texts")


def _buffer_text(buffers: BufferAssignment, module: HloModule, title: str) -> str:
    return _texts().buffer_texts(buffers, module)[title]()


def _constants_text(ctx: PassContext, module: HloModule, title: str) -> str:
    return _texts().constant_texts(module, ctx.target, ctx.options)[title]()


class _KernelBodies(Observer):
    """Keeps the text of each kernel in the LLVM dialect, if it `is_wanted`."""

    def __init__(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self.texts: dict[str, str] = {}

    def watching(self, ctx: PassContext) -> PassContext:
        """Return `ctx` with this observer added, if it is wanted."""
        return replace(ctx, observers=(*ctx.observers, self)) if self.is_wanted else ctx

    def after(self, step: Step) -> None:
        if step.level is Level.KERNEL and step.row == KERNEL_PIPELINE[-1].name:
            self.texts[step.kernel] = step.text()


def _with_command_buffers(ctx: PassContext, program: Executable, checked: frozenset[int] = frozenset()) -> Executable:
    """Return the executable with command buffers, which do not record the thunks in `checked`, given by their `id()`."""
    conversion = command_buffer_conversion(ctx.options)
    thunks = program.thunks if conversion is None else replace(conversion, checked=checked).convert(program.thunks)
    return program if thunks == program.thunks else replace(program, thunks=thunks)


def _compile_kernels(ctx: PassContext, requests: list[KernelRequest]) -> tuple[Kernel, ...]:
    """Compile in schedule order. A kernel stage stops each kernel at its row, so all kernels are printed."""
    ctx.replacements.check([request.kernel for request in requests])
    cache = KernelCache.open(ctx)
    known = {request.kernel: kernel for request in requests if (kernel := cache.get(request)) is not None} if cache else {}
    missing = [request for request in requests if request.kernel not in known]
    made = dict(zip((request.kernel for request in missing), _compile_missing(ctx, missing), strict=True))
    if cache is not None and missing:
        for request in missing:
            cache.put(request, made[request.kernel])
    return tuple(known.get(request.kernel) or made[request.kernel] for request in requests)


def _compile_missing(ctx: PassContext, requests: list[KernelRequest]) -> tuple[Kernel, ...]:
    if not requests:
        return ()
    # LLVM counts the passes of a process, and all kernels share the fuel, so all kernels are in one process.
    is_limited = ctx.options.llvm_opt_bisect_limit >= 0 or bool(ctx.options.kernel_fuel)
    ctx = replace(ctx, fuel=kernel_fuel(ctx.options.kernel_fuel_limits))
    wanted = ctx.options.compile_processes or ctx.options.xla_gpu_force_compilation_parallelism or available_cores()
    workers = 1 if is_limited else min(wanted, len(requests))
    from hlo_run.pipeline.ptxas_check import check_together, checks_together  # imports the code generator

    if checks_together(ctx, requests):
        kernels = _compile_all(replace(ctx, assembles=False), requests, workers)
        check_together(ctx, requests, kernels, workers)
        return kernels
    return _compile_all(ctx, requests, workers)


def _compile_all(ctx: PassContext, requests: list[KernelRequest], workers: int) -> tuple[Kernel, ...]:
    if workers > 1 and len(requests) >= _WORTH_PROCESSES and can_fork() and all(o.only_times for o in ctx.observers):
        return _compile_in_processes(ctx, requests, workers)
    from hlo_run.pipeline.llvm_ahead import llvm_ahead

    with llvm_ahead(ctx):
        return _compile_in_turn(ctx, requests)


def _compile_in_turn(ctx: PassContext, requests: list[KernelRequest]) -> tuple[Kernel, ...]:
    from hlo_run.pipeline.kernels import compile_kernel, compile_kernels, compiles_together  # imports xDSL

    kernels: list[Kernel] = []
    if compiles_together(ctx):
        numbers = count()
        for part in _parts(requests, _TOGETHER):
            kernels += compile_kernels(ctx, part, lambda: _count_kernels(next(numbers), len(requests)))
        return tuple(kernels)
    stopped: StopAtStage | None = None
    for number, request in enumerate(requests):
        _count_kernels(number, len(requests))
        try:
            kernels.append(compile_kernel(ctx, request))
        except StopAtStage as stop:
            stopped = stop
    if stopped is not None:
        raise stopped
    return tuple(kernels)


def _parts(requests: list[KernelRequest], size: int) -> list[list[KernelRequest]]:
    """Divide requests into lists of `size`, at least 1, and a last one of the rest."""
    step = max(size, 1)
    return [requests[first : first + step] for first in range(0, len(requests), step)]


def _count_kernels(done: int, count: int) -> None:
    counted(f"{done} of {count} kernels compiled")


class _Recorder(Observer):
    """Keeps the steps of a kernel without their texts, so that they can be sent to another process."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def after(self, step: Step) -> None:
        self.steps.append(replace(step, text=str, op_count=int))


def _compile_in_processes(ctx: PassContext, requests: list[KernelRequest], workers: int) -> tuple[Kernel, ...]:
    """Compile in `workers` processes. The observers see the steps in the order of the kernels."""
    from hlo_run.pipeline.kernels import compile_kernel, compile_kernels, compiles_together, load_for_kernels

    load_for_kernels(ctx)
    at_place("the compilation of kernels")
    if compiles_together(ctx):
        parts = _parts(requests, min(_TOGETHER, len(requests) // (workers * _PARTS_PER_PROCESS)))
        made = run_in_processes(
            len(parts),
            lambda number: compile_kernels(ctx, parts[number], lambda: None),
            workers,
            lambda done: _count_kernels(sum(map(len, parts[:done])), len(requests)),
        )
        return tuple(kernel for part in made for kernel in part)

    def work(number: int) -> tuple[Kernel, list[Step]]:
        recorder = _Recorder()
        kernel = compile_kernel(replace(ctx, observers=(recorder,)), requests[number])
        return kernel, recorder.steps

    compiled = run_in_processes(len(requests), work, workers, lambda done: _count_kernels(done, len(requests)))
    for _, steps in compiled:
        for observer, step in product(ctx.observers, steps):
            observer.after(step)
    return tuple(kernel for kernel, _ in compiled)
