"""`--list_passes`: prints the rows of the pass tables; checks the names of rows in other flags."""

from __future__ import annotations

from hlo_run.options import Options
from hlo_run.pass_support.observer import HLO_INPUT


def list_passes() -> str:
    """Return the rows of both pass tables as lines: pipeline, name, `required`, and the first line of the pass's docstring."""
    from hlo_run.pipeline.row_names import describe_rows

    return describe_rows()


def check_names(options: Options) -> tuple[str, ...]:
    """Return warnings about unknown rows in flags; raises UsageError for an unknown stage. Imports nothing without such flags."""
    if options.names_passes or options.stage not in ("", HLO_INPUT):
        from hlo_run.pipeline.row_names import check_row_names

        return check_row_names(options)
    return ()
