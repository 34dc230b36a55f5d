"""Colours of text at a terminal: errors, verdicts and differences. Text is escaped before it comes here."""

from __future__ import annotations

import os
import re
from typing import TextIO

_RED, _GREEN, _YELLOW, _CYAN = "31", "32", "33", "36"
_BOLD = "1;"
# A line of a difference, below at most two blanks: its first word or mark says what it is.
_CHANGE = re.compile(r"^(?: {2})?(?P<kind>[-+](?![-+]{2} )|@@ |removed |added |changed |moved )")
_STYLES = {"-": _RED, "+": _GREEN, "@@ ": _CYAN, "removed ": _RED, "added ": _GREEN, "changed ": _YELLOW, "moved ": _YELLOW}
_LABEL = re.compile(r"^(note|hint): ")


def has_colours(stream: TextIO | None) -> bool:
    """Return True for a terminal that takes colours.

    NO_COLOR forbids colours (https://no-color.org). FORCE_COLOR and CLICOLOR_FORCE ask for them wherever the output goes.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if stream is None or not stream.isatty():
        return False
    return os.environ.get("TERM", "dumb") != "dumb"


def error_text(text: str) -> str:
    """Return the text of an error with its first line in red and the words before its notes and its hint in cyan."""
    first, *rest = text.split("\n")
    return "\n".join([_painted(first, _BOLD + _RED), *(_LABEL.sub(lambda word: _painted(word[0], _CYAN), line) for line in rest)])


def verdict_text(text: str, good: bool) -> str:
    """Return a verdict in green or red."""
    return "\n".join(_painted(line, _BOLD + (_GREEN if good else _RED)) for line in text.split("\n"))


def difference_text(text: str) -> str:
    """Return the lines of a difference, what came in green and what went in red."""
    return "\n".join(map(_difference_line, text.split("\n")))


def _difference_line(line: str) -> str:
    found = _CHANGE.match(line)
    return line if found is None else _painted(line, _STYLES[found["kind"]])


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text else text
