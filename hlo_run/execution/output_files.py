"""Files that flags ask for: what their names say, whether they can be written, before a long run, and writing them."""

from __future__ import annotations

import os

from hlo_run.errors import UsageError

_EXECUTABLE_ENDING = ".hlox"


def is_executable_file(path: str) -> bool:
    """True for the name of a saved executable."""
    return path.endswith(_EXECUTABLE_ENDING)


def check_writable(path: str, flag: str) -> None:
    """Raise UsageError if a file cannot be made at `path`: better before a long run than after it."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"--{flag}={path} is a directory")
    if not os.path.isdir(folder):
        raise UsageError(f"--{flag}={path}: there is no directory '{folder}'")


def write_artefact(path: str, text: str) -> None:
    """Write a text file; raises UsageError."""
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {os.strerror(error.errno or 0)}") from None


def write_output(path: str, data: bytes, append: bool = False) -> None:
    """Write a file of `--output_file`; raises UsageError."""
    try:
        with open(path, "ab" if append else "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"--output_file={path} cannot be written: {os.strerror(error.errno or 0)}") from None
