"""Checks the PTX of kernels with ptxas: of one kernel as it is compiled, or of many small ones in a few processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager

from hlo_run.artifact import Kernel
from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas, join_entries
from hlo_run.containment.board import Blame, native
from hlo_run.errors import HloRunError, UsageError
from hlo_run.parallel import can_fork, run_in_processes
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.runtime.kernel_requests import KernelRequest

LONG_PTX = 300_000
"""ptxas needs two seconds for PTX of so many characters, minutes for long functions. It only checks: the driver assembles PTX."""
# Fewer kernels are checked as they are compiled: their texts may be printed, and an error ends the compilation early.
_MANY = 16
_FLOAT = re.compile(r"\b0[fF][0-9A-Fa-f]{8}\b|\b0[dD][0-9A-Fa-f]{16}\b")
# What one process of ptxas takes at most.
_TOGETHER = 64


def check_with_ptxas(ctx: PassContext, kernel: str, ptx: str, user_file: str = "") -> None:
    """Assemble the PTX if a ptxas is found, and pass its report to the observers; raises InternalError if ptxas rejects it.

    Long PTX of ours is only checked if flags ask for ptxas.
    """
    cuda_data_dir = ctx.options.xla_gpu_cuda_data_dir
    if not ctx.assembles or find_ptxas(cuda_data_dir) is None:
        return
    flags, refuses_spills = _flags(ctx), ctx.options.xla_gpu_fail_ptx_compilation_on_register_spilling
    if len(ptx) > LONG_PTX and not (flags or refuses_spills or user_file):
        for observer in ctx.observers:
            observer.note(kernel, "ptxas", lambda: f"not run, as the PTX has {len(ptx)} characters; --ptxas_opt_level=3 runs it")
        return
    with native_work("ptxas", kernel, user_file, "ptx", ptx):
        reports = assemble(ptx, cuda_data_dir=cuda_data_dir, flags=flags)
    spilling = [report for report in reports if report.spill_store_bytes or report.spill_load_bytes]
    if spilling and refuses_spills:
        raise UsageError(f"{spilling[0]}", hint="leave out --xla_gpu_fail_ptx_compilation_on_register_spilling")
    for observer in ctx.observers:
        observer.note(kernel, "ptxas", lambda: "\n".join(map(str, reports)))


def _flags(ctx: PassContext) -> tuple[str, ...]:
    level = ctx.options.ptxas_opt_level
    return (*ctx.options.ptxas_flags, *((f"-O{level}",) if level else ()))


def checks_together(ctx: PassContext, requests: Sequence[KernelRequest]) -> bool:
    """True if the kernels are checked after all are compiled: most of the time of a small check is the start of ptxas."""
    return (
        len(requests) >= _MANY
        and ctx.assembles
        and not ctx.options.xla_gpu_fail_ptx_compilation_on_register_spilling
        and all(observer.only_times for observer in ctx.observers)
        and not (ctx.replacements.ir or ctx.replacements.llvm or ctx.replacements.ptx)
    )


def check_together(ctx: PassContext, requests: Sequence[KernelRequest], kernels: Sequence[Kernel], workers: int) -> None:
    """Check kernels, each process of ptxas several. Raises the error of the first kernel that ptxas rejects, at its fusion.

    Of kernels that are equal but for their names and numbers of floats, ptxas checks the first one.
    """
    if find_ptxas(ctx.options.xla_gpu_cuda_data_dir) is None:
        return
    different: dict[str, tuple[KernelRequest, Kernel]] = {}
    for request, kernel in zip(requests, kernels, strict=True):
        if len(kernel.ptx) <= LONG_PTX or _flags(ctx):
            different.setdefault(_form(kernel), (request, kernel))
    pairs = list(different.values())
    size = min(_TOGETHER, -(-len(pairs) // workers)) or 1
    parts = [pairs[first : first + size] for first in range(0, len(pairs), size)]
    if workers > 1 and len(parts) > 1 and can_fork():
        run_in_processes(len(parts), lambda number: _check_part(ctx, parts[number]), workers)
        return
    for part in parts:
        _check_part(ctx, part)


def _form(kernel: Kernel) -> str:
    """Return the PTX without the name of the kernel and the values of immediate floats, which are valid whatever their bits."""
    text = kernel.ptx
    for before, after in (("\t", "\n"), (" ", "("), ("", "_param_")):
        text = text.replace(f"{before}{kernel.name}{after}", before + after)
    return _FLOAT.sub(lambda found: found[0][:2], text)


def _check_part(ctx: PassContext, pairs: Sequence[tuple[KernelRequest, Kernel]]) -> None:
    joined, rest = join_entries([kernel.ptx for _, kernel in pairs])
    if joined:
        try:
            with native_work("ptxas", pairs[0][1].name, "", "ptx", joined):
                assemble(joined, cuda_data_dir=ctx.options.xla_gpu_cuda_data_dir, flags=_flags(ctx))
        except HloRunError:
            # One by one, so that the error is that of the kernel.
            rest = range(len(pairs))
    for number in rest:
        request, kernel = pairs[number]
        try:
            check_with_ptxas(ctx, kernel.name, kernel.ptx)
        except HloRunError as error:
            error.where = error.where or request.fusion.where
            raise


def native_work(stage: str, kernel: str, user_file: str, ending: str, text: str) -> AbstractContextManager[None]:
    """Mark native code that works on a kernel. `user_file` is the file that replaces the kernel, or ""."""
    blame = Blame.FILE if user_file else Blame.US
    return native(stage, f"kernel '{kernel}'", blame=blame, user_file=user_file, input_name=f"{kernel}.{ending}", text=text)
