"""Checks before a run that the files of output flags can be written, and writes them."""

from __future__ import annotations

import os

from hlo_run.errors import UsageError

_EXECUTABLE_ENDING = ".hlox"


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
    """Write a text file; raises UsageError if it cannot be written."""
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {os.strerror(error.errno or 0)}") from None


def write_output(path: str, data: bytes, append: bool = False) -> None:
    """Write the file of `--output_file`; raises UsageError if it cannot be written."""
    try:
        with open(path, "ab" if append else "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"--output_file={path} cannot be written: {os.strerror(error.errno or 0)}") from None
