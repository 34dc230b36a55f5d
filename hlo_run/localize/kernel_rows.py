"""Finds the kernel row that breaks a kernel: completes the IR after every row with the required rows only, and runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from hlo_run.errors import HloRunError
from hlo_run.hlo.printer import FULL
from hlo_run.localize.found import Localized, alone_context, shows
from hlo_run.localize.interpreted import blame_by_interpreter
from hlo_run.localize.replay import Event, Kind
from hlo_run.localize.reproducer import Reproducer
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import EMIT_KERNELS, Level, Observer, Step
from hlo_run.pass_support.replacements import KernelIr, parse_kernel_dump
from hlo_run.pass_support.replacements import header as dump_header
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE
from hlo_run.records import replace


class RowVerdict(Struct, frozen=True):
    """A row that changed the kernel, and whether the kernel is right if no optional row follows."""

    row: str
    is_right: bool


class KernelDumps(Observer):
    """Keeps the IR of one kernel after the emitter and after every row that changed it."""

    def __init__(self, kernel: str, target: str) -> None:
        self._kernel, self._target = kernel, target
        self.dumps: list[KernelIr] = []

    def after(self, step: Step) -> None:
        """Keep the text of a step of the kernel."""
        if step.level is not Level.KERNEL or step.kernel != self._kernel or step.changed is False:
            return
        first = dump_header(step.row, step.kernel, step.launch, step.unroll_factor, self._target, "m")
        self.dumps.append(parse_kernel_dump(f"{first}\n{step.text()}", f"{step.kernel}.{step.row}.mlir"))


def check_rows(ctx: PassContext, dumps: list[KernelIr], is_right: Callable[[PassContext], bool]) -> list[RowVerdict]:
    """Return verdicts on the dumps in order, up to the first wrong one. `is_right` compiles with a context, runs and compares."""
    found: list[RowVerdict] = []
    for dump in dumps:
        found.append(RowVerdict(dump.row, is_right(_resumed(ctx, dump))))
        if not found[-1].is_right:
            break
    return found


def _resumed(ctx: PassContext, dump: KernelIr) -> PassContext:
    """Return the context that completes a dump with the required rows after it."""
    names = [EMIT_KERNELS, *(row.name for row in KERNEL_PIPELINE)]
    later = KERNEL_PIPELINE[names.index(dump.row) :] if dump.row in names else ()
    optional = [row.name for row in later if not row.required]
    disabled = ",".join([*ctx.options.kernel_rows.disabled, *optional])
    options = dataclasses.replace(ctx.options, disable_kernel_passes=disabled, enable_kernel_passes_only="")
    return replace(ctx, options=options, replacements=replace(ctx.replacements, ir={dump.kernel: dump}))


def blame(verdicts: list[RowVerdict], ctx: PassContext, dumps: list[KernelIr], is_right: Callable[[PassContext], bool]) -> str:
    """Return the sentence that tells where in the kernel's compilation to look."""
    if not verdicts or verdicts[-1].is_right:
        return "no kernel row alone breaks it: the rows were checked on a copy of the kernel, which is right"
    row, dump = verdicts[-1].row, dumps[len(verdicts) - 1]
    if len(verdicts) > 1:
        return f"look at kernel row '{row}': the kernel is right after '{verdicts[-2].row}', and wrong after '{row}'"
    resumed = _resumed(ctx, dump)
    plain = replace(resumed, options=dataclasses.replace(resumed.options, xla_backend_optimization_level=0))
    if ctx.options.xla_backend_optimization_level and is_right(plain):
        return "look at LLVM: the kernel is right with --xla_backend_optimization_level=0"
    required = ", ".join(f"'{row.name}'" for row in KERNEL_PIPELINE if row.required)
    return (
        f"look at '{row}', which writes the kernel's first IR, at the rows that no run can skip ({required}), "
        "or at what follows them: the kernel is wrong without any other row"
    )


def row_of_kernel(options: Options, found: Localized, event: Event, made: Reproducer, is_shown: bool) -> str:
    """Return the sentence on the rows of the kernel."""
    ctx = found.ctx
    if len(event.kernels) != 1:
        return "it has no kernel of its own" if not event.kernels else "its rows are not checked: it has several kernels"
    (kernel,) = event.kernels
    for texts in (ctx.replacements.ptx, ctx.replacements.llvm):
        if kernel in texts:
            return f"look at '{texts[kernel].file}', which replaces it"
    if not is_shown:
        return "its rows are not checked: alone, the kernel is right"
    fails = event.kind is Kind.FAULT
    dumps = KernelDumps(kernel, ctx.target.name)
    given = ctx.replacements.ir.get(kernel)
    plain = replace(ctx, replacements=replace(ctx.replacements, ir={}))

    def is_right(with_rows: PassContext) -> bool:
        return not shows(with_rows, made, options, fails)

    try:
        compile_module(
            replace(alone_context(ctx, made), observers=(dumps,)),
            parse(made.module.to_string(FULL), f"{made.name}.hlo"),
        )
    except HloRunError as error:
        return f"its rows are not checked: {error.message}"
    found_dumps = [given, *dumps.dumps] if given is not None else dumps.dumps
    verdicts = check_rows(plain, found_dumps, is_right)
    if given is not None and verdicts and not verdicts[0].is_right:
        return f"look at '{given.file}', which replaces it: the IR there is wrong with no optional row after it"
    sentence = blame(verdicts, plain, found_dumps, is_right)
    if not verdicts or verdicts[-1].is_right:
        return sentence
    # An optional row may only expose the fault of a required one behind it: the IR itself decides.
    first = found_dumps[len(verdicts) - 1]
    later = KernelDumps(kernel, ctx.target.name)
    resumed = _resumed(alone_context(ctx, made), first)
    with suppress(HloRunError):
        compile_module(replace(resumed, observers=(later,)), parse(made.module.to_string(FULL), f"{made.name}.hlo"))
    known = first.row if len(verdicts) > 1 else ""
    found_row = blame_by_interpreter(ctx, made, options, [first, *later.dumps], known)
    if "look at LLVM" in sentence or not found_row.startswith("look at"):
        return f"{sentence}; {found_row}" if found_row else sentence
    return found_row
