"""The rows of the pass tables as text, and the check of names of rows in flags."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

from hlo_run.columns import aligned
from hlo_run.errors import UsageError
from hlo_run.options import CompileOptions, Options
from hlo_run.options.flag import names
from hlo_run.pass_support.fuel import Fuel, kernel_fuel
from hlo_run.pass_support.observer import STAGES
from hlo_run.pipeline.kernel_table import (
    GPU_INPUT,
    GPU_MODULE_GROUP,
    GPU_MODULE_PIPELINE,
    KERNEL_GROUP,
    KERNEL_PIPELINE,
    SPECIALIZE_KERNEL,
    KernelContext,
)
from hlo_run.pipeline.table import PIPELINE
from hlo_run.pipeline.table_rows import RowFlags, base_name, check_names, spelling, spellings
from hlo_run.target import DEFAULT_TARGET, preset


def describe_rows() -> str:
    """Return a table of all rows: group, name, `required` or nothing, and the first line of the pass's docstring."""
    ctx = KernelContext(preset(DEFAULT_TARGET), CompileOptions())
    hlo = [(names, row) for group in PIPELINE for names, row in group.all_rows()]
    rows = [(names[-1], row.name, row.required, row.make(ctx)) for names, row in hlo]
    rows += [(KERNEL_GROUP, row.name, row.required, row.make(ctx)) for row in KERNEL_PIPELINE]
    rows += [
        (GPU_MODULE_GROUP, row.name, row.required, row.make(ctx)) for row in GPU_MODULE_PIPELINE if row not in KERNEL_PIPELINE
    ]
    cells = [(group, name, "required" if required else "", _first_line(made)) for group, name, required, made in rows]
    return "\n".join(aligned(cells))


def _first_line(made: object) -> str:
    module = sys.modules[type(made).__module__]
    return (module.__doc__ or "").strip().splitlines()[0]


def _named_by(rows: Iterable[tuple[str, tuple[str, ...], bool]], what: str) -> dict[str, str]:
    return {known: f"it is {what}" for name, groups, _ in rows for known in (*groups, *spellings(name, groups))}


def _check_limited(flag: str, table: str, limited: Iterable[str], passes: set[str]) -> None:
    """Raise UsageError for a pass of a flag of fuel that is not in `passes`."""
    for name in limited:
        if name not in passes:
            close = difflib.get_close_matches(name, sorted(passes), n=1)
            raise UsageError(f"--{flag}: no {table} pass is called '{name}'", hint=f"did you mean {close[0]}?" if close else "")


def check_row_names(options: Options) -> tuple[str, ...]:
    """Return a warning for each unknown row in the flags that select rows.

    Raises UsageError for an unknown stage, an unknown pass in a flag of fuel, and a required row that is disabled or limited.
    """
    hlo = [(row.name, groups, row.required) for group in PIPELINE for groups, row in group.all_rows()]
    inserted = [text.partition(":")[0] for text in names(options.insert_passes)]
    hlo += [(name, (), False) for name in inserted]
    kernel = [(row.name, (KERNEL_GROUP,), row.required) for row in KERNEL_PIPELINE]
    passes = {spelling(row.pass_name) for group in PIPELINE for _, row in group.all_rows()} | set(map(spelling, inserted))
    hlo_flags = RowFlags("xla_enable_hlo_passes_only", "xla_disable_hlo_passes", options.hlo_rows, "HLO")
    kernel_flags = RowFlags("enable_kernel_passes_only", "disable_kernel_passes", options.kernel_rows, "kernel")
    warnings = (
        *check_names(hlo_flags, hlo, _named_by(kernel, "a kernel row, for --disable_kernel_passes")),
        *check_names(kernel_flags, kernel, _named_by(hlo, "an HLO row, for --xla_disable_hlo_passes")),
    )
    _check_limited("xla_fuel", "HLO", Fuel(options.fuel_limits).passes, passes)
    limited = kernel_fuel(options.kernel_fuel_limits).passes
    _check_limited("kernel_fuel", "kernel", limited, {base_name(row.name) for row in KERNEL_PIPELINE})
    for name in sorted({base_name(row.name) for row in KERNEL_PIPELINE if row.required}.intersection(limited)):
        raise UsageError(f"--kernel_fuel: pass '{name}' is required", hint="--list_passes marks the required rows")
    stages = [
        *STAGES,
        *(GPU_INPUT, SPECIALIZE_KERNEL),
        *(row.name for row in GPU_MODULE_PIPELINE),
        *(name for name, _, _ in (*hlo, *kernel)),
        *(f"{groups[-1]}/{name}" for name, groups, _ in (*hlo, *kernel) if groups),
    ]
    if options.stage and options.stage not in stages:
        close = difflib.get_close_matches(options.stage, stages, n=1)
        hint = f"did you mean {close[0]}?" if close else f"hlo-input, {', '.join(STAGES)}, or a row of --list_passes"
        raise UsageError(f"no stage is called '{options.stage}'", hint=hint)
    return warnings
