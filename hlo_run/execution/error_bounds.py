"""How far a result may be from what was expected, as the flags say."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.options import Options
from hlo_run.reference.compare.compare import ErrorSpec


def error_spec(options: Options) -> ErrorSpec:
    """Return the bounds of the flags; raises UsageError for those that make no sense."""
    for name in ("abs_error_bound", "rel_error_bound"):
        if not getattr(options, name) >= 0:
            raise UsageError(f"--{name}={getattr(options, name):g} is not a bound", hint="bounds are 0 or larger")
    return ErrorSpec(
        abs=options.abs_error_bound,
        rel=options.rel_error_bound,
        relaxed_nans=options.relaxed_nans,
        fewer_infs_ok=options.fewer_infs_ok,
        low_precision=_low_precision(options.low_precision_fp_error_spec),
    )


def _low_precision(text: str) -> tuple[str, int] | None:
    """Return (type, number of values) of `f8e4m3fn,1`; None for nothing."""
    if not text:
        return None
    name, _, count = text.partition(",")
    if name not in DTYPES or not DTYPES[name].is_float or not count.isdecimal():
        hint = "TYPE,N: a float type and how many of its values two results may be apart, f8e4m3fn,1"
        raise UsageError(f"--low_precision_fp_error_spec={text} is no type and number", hint=hint)
    return name, int(count)
