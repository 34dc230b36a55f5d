"""The line at the end of a terminal that shows what a command does. It is on stderr, and only if that is a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

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
    """Shows a line that tells how far the command is. `text` returns the line."""

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


class Progress:
    """The output of a tool that runs many trials: lines that stay, and the line at the end of a terminal while it waits.

    `doing` is what the line shows first; `trials` counts the trials that have ended. Leave the `with` before other output.
    """

    def __init__(self, tell: Callable[[str], None] = lambda text: None, has_line: bool = False) -> None:
        """`tell` prints a line that stays. Without `has_line` nothing else is shown."""
        self.doing, self.trials = "", 0
        self._tell = tell
        self._line = ProgressLine(self._text) if has_line else None

    def tell(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._tell(text)

    def draw(self, seconds: float) -> float:
        """Show the line if it is time. Return for how long the tool may wait, at most `seconds`."""
        if self._line is None:
            return seconds
        self._line.draw()
        return min(seconds, max(self._line.wait_seconds(), 0.01))

    def clear(self) -> None:
        """Remove the line."""
        if self._line is not None:
            self._line.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def _text(self) -> str:
        return ", ".join(filter(None, (self.doing, f"{self.trials} trial{'s' * (self.trials != 1)}" if self.trials else "")))


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
