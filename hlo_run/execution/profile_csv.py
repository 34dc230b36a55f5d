"""`--append_profile_to_csv_file`: the times of the runs of a command as a row of a table, as XLA's hlo_runner_main writes it.

Datetime,a.hlo,b.hlo
2026-05-04 09:03:02, 1.234ms, 0.0123ms
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from hlo_run.execution.output_files import append_line


def csv_file(path: str) -> str:
    """Return the name of the table for the value of the flag."""
    return f"{path}.csv"


def append_times(path: str, times_ns: Mapping[str, Sequence[int]]) -> None:
    """Append a row with the mean time of each file, in the order of their names; a new table gets a row of names first.

    The first of several runs of a file warms up and does not count. Raises UsageError if the table cannot be written.
    """
    files = sorted(times_ns)
    table = csv_file(path)
    if not os.path.exists(table):
        shared = os.path.commonpath([os.path.abspath(os.path.dirname(file)) for file in files])
        names = [os.path.relpath(file, shared) for file in files]
        append_line(table, ",".join(["Datetime", *names]))
    row = [f", {_mean_ns(times_ns[file]) / 1e6:.4g}ms" for file in files]
    append_line(table, time.strftime("%Y-%m-%d %H:%M:%S") + "".join(row))


def _mean_ns(times_ns: Sequence[int]) -> float:
    counted = times_ns[1:] or times_ns
    return sum(counted) / len(counted)
