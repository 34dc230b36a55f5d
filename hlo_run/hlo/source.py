"""Where a module's text comes from: a file or stdin, by extension or `--input_format`."""

from __future__ import annotations

import os
import re
import sys

from hlo_run.errors import UsageError
from hlo_run.options import read_text

TEXT_FORMATS = ("hlo", "txt")
# What a log line puts before a module that was printed into a log: `I0521 12:04:45.883483    1509 file.cc:186] `.
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [^\]\n]+\] ?", re.MULTILINE)


def read_module_text(path: str, input_format: str) -> str:
    """Return the HLO text of `path` (`-`: stdin), log prefixes stripped; raises UsageError for what is no text file."""
    kind = input_format or (os.path.splitext(path)[1].lstrip(".") if path != "-" else "hlo")
    if path != "-" and os.path.isdir(path):
        raise UsageError(f"'{path}' is a directory", hint="give the files in it")
    if path != "-" and not os.path.exists(path):
        raise UsageError(f"'{path}' does not exist")
    if kind not in TEXT_FORMATS:
        raise UsageError(
            f"'{path}': format '{kind}' is not read",
            hint=f"--input_format={'|'.join(TEXT_FORMATS)} says that it is HLO text",
        )
    text = _read_stdin() if path == "-" else read_text(path, "input file")
    if "\0" in text:
        raise UsageError(f"'{path}' is not a text file: it holds NUL bytes")
    return _LOG_PREFIX.sub("", text)


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise UsageError("stdin is not text") from None
