"""Adds the rows that a search skips to those that the user's flags skip."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from hlo_run.cli import parse_arguments
from hlo_run.options.compile import RowSelection
from hlo_run.options.flag import names
from hlo_run.options.parsing import read_flags
from hlo_run.pipeline.kernel_table import KERNEL_GROUP, KERNEL_PIPELINE
from hlo_run.pipeline.table import BACKEND_PIPELINE, PIPELINE
from hlo_run.pipeline.table_rows import base_name, selects

_FUELS = ("xla_fuel", "kernel_fuel")
# The flag that skips rows -> the flags that it cannot stand beside.
_FLAGS = {
    "xla_disable_hlo_passes": ("xla_disable_hlo_passes", "disable", "xla_enable_hlo_passes_only", "only"),
    "disable_kernel_passes": ("disable_kernel_passes", "enable_kernel_passes_only"),
}


def merged(flags: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Return the user's flags (--NAME=VALUE) with `extra` ones, which override them.

    Rows that either skip are skipped, and fuel of other passes stays limited, where the last flag alone would count. Extra
    flags without a value remove the user's.
    """
    kept, added = list(flags), list(extra)
    for name, replaced in _FLAGS.items():
        skipped = [flag.partition("=")[2] for flag in added if flag.startswith(f"--{name}=")]
        given = [flag for flag in kept if _name(flag) in replaced]
        if not skipped or not (given or len(skipped) > 1):
            continue
        options, _, _ = parse_arguments(given)
        is_kernel = name == "disable_kernel_passes"
        selection = (options.kernel_rows if is_kernel else options.hlo_rows)._replace(required_only=False)
        rows = dict.fromkeys([*_skipped(selection, is_kernel), *(row for text in skipped for row in text.split(","))])
        kept = [flag for flag in kept if flag not in given]
        added = [flag for flag in added if not flag.startswith(f"--{name}=")] + [f"--{name}={','.join(rows)}"]
    for name in _FUELS:
        given = [flag.partition("=")[2] for flag in kept if _name(flag) == name]
        limits = {limit.rpartition("=")[0]: limit for text in given for limit in names(text)}
        added = [_with_limits(flag, limits) if _name(flag) == name else flag for flag in added]
    last = {_name(flag): flag for flag in added}
    set_elsewhere = read_flags((), os.environ).defaults
    added = [flag for name, flag in last.items() if not flag.endswith("=") or name in set_elsewhere]
    return [*(flag for flag in kept if _name(flag) not in last), *added]


def _with_limits(flag: str, limits: Mapping[str, str]) -> str:
    """Return a flag of fuel with further limits for passes that it does not name."""
    name, _, own = flag.partition("=")
    limited = {limit.rpartition("=")[0]: limit for limit in names(own)}
    return f"{name}={','.join({**limits, **limited}.values())}"


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0].replace("-", "_")


def _skipped(selection: RowSelection, is_kernel: bool) -> Iterator[str]:
    """Yield the optional rows that a selection skips."""
    if is_kernel:
        rows = [((KERNEL_GROUP,), row.name, row.required) for row in KERNEL_PIPELINE]
    else:
        groups = (*PIPELINE, *BACKEND_PIPELINE)
        rows = [(names, row.name, row.required) for group in groups for names, row in group.all_rows()]
    # The name of a pass means all its rows, so a row cannot be named alone if another one of its pass is required.
    fixed = {word for _, name, required in rows if required for word in (name, base_name(name))}
    for groups, name, _ in rows:
        if name not in fixed and not selects(selection, name, groups):
            yield name
