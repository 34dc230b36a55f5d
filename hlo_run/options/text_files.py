"""Reads the text files that flags name."""

from __future__ import annotations

import os

from hlo_run.errors import UsageError


def read_text(path: str, what: str) -> str:
    """Return the text of a UTF-8 file; raises UsageError with a message that begins with `what`, the flag."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{what} '{path}' cannot be read: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what} '{path}' is not a text file") from None
