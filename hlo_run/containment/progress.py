"""The line at the end of a terminal that shows what a command does. It is on stderr, and only if that is a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

DELAY_SECONDS = 2.0
"""A command shows its progress once it has taken this long."""
_REDRAW_SECONDS = 0.1
_CLEAR = "\r\x1b[2K"


def shows_progress() -> bool:
    """True if stderr is a terminal that can clear a line."""
    stream = sys.stderr
    if stream is None or not stream.isatty():  # pyright: ignore[reportUnnecessaryComparison] - Python's value if it is closed
        return False
    return os.environ.get("TERM", "dumb") != "dumb"


@dataclass
class ProgressLine:
    """The line. `text` returns what to show now."""

    text: Callable[[], str]
    _began: float = field(default_factory=lambda: time.monotonic())
    _drawn: float = 0.0
    _shown: str = ""

    def wait_seconds(self) -> float:
        """Return the time until the next drawing."""
        now = time.monotonic()
        return max(0.0, self._began + DELAY_SECONDS - now, self._drawn + _REDRAW_SECONDS - now)

    def draw(self) -> None:
        """Show the line if it is time."""
        now = time.monotonic()
        if now < self._began + DELAY_SECONDS or now < self._drawn + _REDRAW_SECONDS:
            return
        self._drawn = now
        try:
            width = os.get_terminal_size(2).columns
        except OSError:
            width = 0
        line = _cut(f"{self.text()}, {now - self._began:.0f} s", (width or 80) - 1)
        if line != self._shown:
            _write(_CLEAR + line)
            self._shown = line

    def clear(self) -> None:
        """Remove the line, so that other text can be printed."""
        if self._shown:
            _write(_CLEAR)
            self._shown = ""


def _cut(text: str, width: int) -> str:
    """Return the text with at most `width` characters. Characters that would act on the terminal are replaced."""
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= width else plain[: max(0, width - 3)] + ".."


def _write(text: str) -> None:
    data = text.encode(sys.stderr.encoding or "utf-8", "replace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # a terminal that is gone shows nothing
        return
