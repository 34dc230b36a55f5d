"""Files of several modules, with a line `// -----` or `---` between them; `FILE#2` names the second module of FILE."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hlo_run.errors import UsageError
from hlo_run.options.text_files import read_bytes

# XLA's separator, and that of many collections of modules.
_SEPARATORS = ("// -----", "---")
_SEPARATOR = re.compile(rb"^(?:// -----|---)[ \t\r]*$", re.MULTILINE)
_PART = re.compile(r"(?P<file>.+)#(?P<number>[1-9]\d*)", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"^\s*ENTRY\b", re.MULTILINE)
_TEXTS = (".hlo", ".txt")


def with_parts(files: Sequence[str], input_format: str) -> tuple[str, ...]:
    """Return the files, with the names of its parts for each HLO text of several modules."""
    found: list[str] = []
    for file in files:
        count = _count(file) if (input_format or file.lower()).endswith(("hlo", *_TEXTS)) and os.path.isfile(file) else 1
        found += [file] if count == 1 else [f"{file}#{number}" for number in range(1, count + 1)]
    return tuple(found)


def _count(file: str) -> int:
    try:
        data = read_bytes(file, file)
    except UsageError:  # the reader of the file reports it
        return 1
    return max(1, len(_modules(data.decode("utf-8", "replace")))) if _SEPARATOR.search(data) else 1


def split_name(path: str) -> tuple[str, int]:
    """Return the file and the number of the module that a path names; 0 if it names the whole file."""
    found = _PART.fullmatch(path)
    if found is None or os.path.exists(path) or not os.path.isfile(found["file"]):
        return path, 0
    return found["file"], int(found["number"])


def module_of(text: str, file: str, number: int) -> str:
    """Return one module of a text, after empty lines that keep its line numbers. Number 0 is the only module.

    Raises UsageError for a number that is too large, and for 0 if there are several modules.
    """
    has_several = any(separator in text for separator in _SEPARATORS)
    modules = _modules(text) if number or has_several else []
    count = max(1, len(modules))
    if number > count:
        raise UsageError(f"'{file}' holds {count} module{'s' * (count > 1)}, and no module {number}")
    if count == 1:
        return text
    if not number:
        hint = "hlo-run runs all modules of a file; write them to one" if file == "-" else f"name one: {file}#1 to {file}#{count}"
        raise UsageError(f"{'stdin' if file == '-' else repr(file)} holds {count} modules", hint=hint)
    begin, end = modules[number - 1]
    return "\n" * begin + "\n".join(text.split("\n")[begin:end])


def _modules(text: str) -> list[tuple[int, int]]:
    """Return the first and the end line of each module; empty if a section is not a module: its line is then a comment."""
    lines = text.split("\n")
    cuts = [number for number, line in enumerate(lines) if line.rstrip() in _SEPARATORS]
    is_comment = all(lines[cut].startswith("//") for cut in cuts)
    found: list[tuple[int, int]] = []
    for begin, end in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(lines)], strict=True):
        body = _COMMENT.sub("", "\n".join(lines[begin:end])).strip()
        is_module = "\n" in body if body.startswith("HloModule") else _ENTRY.search(body)
        if body and is_comment and not is_module:
            return []
        if body:
            found.append((begin, end))
    return found
