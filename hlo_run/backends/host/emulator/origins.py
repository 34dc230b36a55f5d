"""Map a PTX line to its HLO instruction, by the `.loc` and `.file` directives of kernels that were compiled for checks.

The name of a `.file` has the HLO instruction and the op of the kernel's LLVM dialect that it was lowered to. The line of a `.loc`
is the op's number in the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\b")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
_BEGIN = re.compile(r"\s*(?:\.\w+\s+)*\.(?:entry|func)\b")


def origin(source_lines: Sequence[str], line: int) -> str:
    """Return the IR op and the HLO instruction of PTX `line` (from 1); empty if the text has no directives for it."""
    for text in reversed(source_lines[: max(line, 0)]):
        if match := _LOC.match(text):
            name = _file_name(source_lines, match.group(1))
            instruction, _, op = name.rpartition(" ")
            return f"{op} (op {match.group(2)} of the kernel) of HLO instruction '{instruction}'" if instruction else ""
        if _BEGIN.match(text):
            break
    return ""


def _file_name(source_lines: Sequence[str], number: str) -> str:
    # LLVM writes the list of files after the code.
    found = (match for text in reversed(source_lines) if (match := _FILE.match(text)))
    return next((match.group(2) for match in found if match.group(1) == number), "")
