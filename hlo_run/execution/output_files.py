"""Checks before a run that the files of output flags can be written, and writes them."""

from __future__ import annotations

import os

from hlo_run.errors import UsageError
from hlo_run.whole_files import append_whole, write_problem, write_whole

_EXECUTABLE_ENDING = ".hlox"
RESULT_FLAGS = (
    *("report_json", "report_jsonl", "report_junit", "report_html", "save_inputs", "save_outputs", "output_literals_file"),
    *("dump_output_literal_to", "append_profile_to_csv_file", "profile"),
)
"""The flags that name a file for the results of a run. Of several processes that share a run, only process 0 writes them."""


def is_executable_file(path: str) -> bool:
    """True if `path` names a saved executable (.hlox)."""
    return path.endswith(_EXECUTABLE_ENDING)


def check_writable(path: str, flag: str) -> None:
    """Raise UsageError if no file can be written at `path`. Callers check before a long run."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"--{flag}={path} is a directory")
    if not os.path.isdir(folder):
        raise UsageError(f"--{flag}={path}: directory '{folder}' does not exist")


def write_artefact(path: str, text: str) -> None:
    """Write a text file, whole or not at all; raises UsageError if it cannot be written."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {write_problem(error)}") from None


def append_line(path: str, line: str) -> None:
    """Add a line to a text file that several processes may write; raises UsageError if it cannot be written."""
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {write_problem(error)}") from None


def write_output(path: str, data: bytes, append: bool = False) -> None:
    """Write the file of `--output_file`; raises UsageError if it cannot be written. `append`: after this run's earlier texts."""
    try:
        (append_whole if append else write_whole)(path, data)
    except OSError as error:
        raise UsageError(f"--output_file={path} cannot be written: {write_problem(error)}") from None
