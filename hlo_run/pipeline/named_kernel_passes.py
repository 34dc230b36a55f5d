"""`hlo-opt` on kernel IR: runs named kernel passes on a dump of a kernel and prints the IR, or continues it up to a stage."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hlo_run.errors import UsageError
from hlo_run.formats.gpu_modules import is_gpu_module
from hlo_run.options import Options
from hlo_run.options.opt import OptFlags
from hlo_run.options.text_files import read_text
from hlo_run.pass_support.replacements import KernelIr, is_kernel_dump, read_kernel_dump
from hlo_run.pipeline.table_rows import base_name
from hlo_run.records import replace
from hlo_run.target import TargetSpec

if TYPE_CHECKING:
    from hlo_run.pipeline.kernel_table import KernelRow

# XLA's names begin with these words.
_PREFIX = re.compile(r"^(?:xla-gpu-|xla-)")
# Passes that run on kernels before XLA's lower-xla-shared.
_BEFORE_SHARED = ("simplify-arith", "canonicalize", "cse", "erase-dead-functions", "inliner")
_OTHER_NAMES = {
    "inline": "inliner",
    "merge-pointers": "merge-pointers-to-same-slice",
    "convert-scf-to-cf": "scf-to-cf",
    "expand-integer-power": "integer-power",
}


def is_kernel_ir(file: str, flags: OptFlags) -> bool:
    """Tell whether a file is kernel IR: a dump of a kernel, a module of the gpu dialect, or MLIR for named kernel passes."""
    if is_kernel_dump(file) or is_gpu_module(file):
        return True
    names = _names(flags)
    return file.endswith(".mlir") and bool(names) and all(_row_of(name) is not None for name in names)


def opt_kernel(options: Options, flags: OptFlags, file: str, target: TargetSpec) -> str:
    """Return the kernel IR of a file after the passes of `--passes`, in this order; without passes, as it is read.

    Raises ParseError for a text that is not kernel IR, UsageError for an unknown pass.
    """
    from hlo_run.dialects.context import make_context  # imports xDSL
    from hlo_run.dialects.parse import parse_gpu_module, parse_module
    from hlo_run.dialects.printer import print_module
    from hlo_run.pipeline.kernel_table import KernelContext

    dump: KernelIr | None = None
    if is_kernel_dump(file):
        dump = read_kernel_dump(file, options.kernel_ir_before, options.kernel_launch)
    text = read_text(file, "kernel IR") if dump is None else dump.text
    rows = [_known_row(name) for name in _names(flags)]
    module = parse_gpu_module(text, file).module if is_gpu_module(file) else parse_module(text, file)
    ctx = KernelContext(target, options.compile)
    if dump is not None:
        ctx = replace(ctx, max_unroll_factor=dump.unroll_factor)
    for row in rows:
        row.make(ctx).apply(make_context(), module)
        module.verify()
    show = options.show
    if show.print_ir_as_xla and not show.print_ir_generic:
        from hlo_run.dialects.editing.released_form import print_released  # imports XLA's dialect

        kind = "loop" if "scf.forall" in text else ""
        stage = "shared" if all(base_name(row.name) in _BEFORE_SHARED for row in rows) else "lowered"
        return print_released(module, kind, stage=stage, print_locations=show.print_locations)
    return print_module(module, generic=show.print_ir_generic, print_locations=show.print_locations)


def _names(flags: OptFlags) -> list[str]:
    return [name.strip() for name in flags.passes.split(",") if name.strip()]


def _rows() -> dict[str, KernelRow]:
    """Return the rows by the names of their passes; a pass has its first row."""
    from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE, OTHER_KERNEL_PASSES

    rows: dict[str, KernelRow] = {}
    for row in (*KERNEL_PIPELINE, *OTHER_KERNEL_PASSES):
        rows.setdefault(re.sub(r"-\d+$", "", row.name), row)
    return rows


def _row_of(name: str) -> KernelRow | None:
    short = _PREFIX.sub("", name.replace("_", "-"))
    for candidate in (_OTHER_NAMES.get(short, short), short, re.sub(r"-\d+$", "", short)):
        if (row := _rows().get(candidate)) is not None:
            return row
    return None


def _known_row(name: str) -> KernelRow:
    row = _row_of(name)
    if row is None:
        close: Sequence[str] = difflib.get_close_matches(name, sorted(_rows()), n=1)
        raise UsageError(
            f"INVALID_ARGUMENT: Pass {name} not found.", hint=f"did you mean {close[0]}?" if close else ", ".join(sorted(_rows()))
        )
    return row
