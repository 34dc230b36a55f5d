"""Expands the files of a command line: directories and patterns stand for the modules in them."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from hlo_run.errors import UsageError

# The endings of files that are read from a directory. A text may be anything, so `.txt` must be named.
_ENDINGS = (".hlo", ".hlox", ".pb", ".pbtxt", ".mlir", ".stablehlo", ".mhlo", ".mlirbc")


def expand(files: Sequence[str]) -> tuple[str, ...]:
    """Return the files in order. A directory gives the modules in it and below it, sorted by path; a pattern its matches.

    A pattern has `*`, `?` or `[` and is not the name of a file; `**` matches any number of directories. Raises UsageError for
    a directory without modules and a pattern without matches.
    """
    found: list[str] = []
    for file in files:
        if os.path.isdir(file):
            modules = _modules_below(file)
            if not modules:
                raise UsageError(f"the directory '{file}' holds no module", hint=f"modules end in {', '.join(_ENDINGS)}")
            found += modules
        elif any(mark in file for mark in "*?[") and not os.path.lexists(file):
            matches = sorted(match for match in glob.glob(file, recursive=True) if not os.path.isdir(match))
            if not matches:
                raise UsageError(f"no file matches '{file}'")
            found += matches
        else:
            found.append(file)
    return tuple(found)


def _modules_below(directory: str) -> list[str]:
    found: list[str] = []
    for folder, _, names in os.walk(directory):
        found += (os.path.join(folder, name) for name in names if name.endswith(_ENDINGS))
    return sorted(found)
