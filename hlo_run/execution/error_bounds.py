"""Reads the flags that bound the difference between a result and the expected result."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.options import Options, RunOptions
from hlo_run.reference.compare.compare import ErrorSpec

DEFAULT_BOUNDS = (RunOptions().abs_error_bound, RunOptions().rel_error_bound)


def error_spec(options: Options) -> ErrorSpec:
    """Return the bounds of the flags; raises UsageError for a negative bound, NaN, and a malformed TYPE,N."""
    for name in ("abs_error_bound", "rel_error_bound"):
        if not getattr(options, name) >= 0:
            raise UsageError(f"--{name}={getattr(options, name):g} is not a bound", hint="a bound must be >= 0")
    return ErrorSpec(
        abs=options.abs_error_bound,
        rel=options.rel_error_bound,
        relaxed_nans=options.relaxed_nans,
        fewer_infs_ok=options.fewer_infs_ok,
        low_precision=_low_precision(options.low_precision_fp_error_spec),
    )


def has_fixed_bounds(options: Options) -> bool:
    """True if the bounds alone decide: `--fixed_bounds`, or bounds that differ from the defaults."""
    return (
        options.fixed_bounds
        or bool(options.low_precision_fp_error_spec)
        or (options.abs_error_bound, options.rel_error_bound) != DEFAULT_BOUNDS
    )


def _low_precision(text: str) -> tuple[str, int] | None:
    """Return (type, number of values) of `f8e4m3fn,1`; None for an empty text."""
    if not text:
        return None
    name, _, count = text.partition(",")
    if name not in DTYPES or not DTYPES[name].is_float or not count.isdecimal():
        hint = "TYPE is a float type and N the largest number of its values between two results: f8e4m3fn,1"
        raise UsageError(f"--low_precision_fp_error_spec={text} is not of the form TYPE,N", hint=hint)
    return name, int(count)
