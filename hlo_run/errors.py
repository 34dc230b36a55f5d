"""The HloRunError family, the only errors that leave the package. The class determines the command line's exit code."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import ClassVar

_NOT_PLAIN = re.compile(r"[^\t\n -~]")


def escaped(text: str) -> str:
    """Return a text with escapes such as `\\x1b` for unprintable characters, so that a terminal shows it and obeys nothing.

    Newlines and tabs stay. Bytes of a file name that are not UTF-8 become `\\xNN`; Python keeps them as halves of surrogates.
    """
    return _NOT_PLAIN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a text from the user. Line and column count from 1. `source_line` is that line without its newline."""

    file: str
    line: int
    column: int
    source_line: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ReaderLeft(BaseException):
    """The reader of stdout closed it, as in `| head -1`. The command ends at once and quietly.

    It is not an Exception, so that code that handles errors lets it pass.
    """

    exit_code: ClassVar[int] = 141  # as a process that SIGPIPE ends


class HloRunError(Exception):
    """Base of all errors that users see.

    `message` is one sentence. `where` is the place in the user's file, if known. `hint` is an action that helps. `notes` are
    further lines (the failing instruction, the row, the file that reproduces the error).
    """

    exit_code: ClassVar[int] = 70
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, where: Where | None = None, hint: str = "", notes: tuple[str, ...] = ()) -> None:
        super().__init__(escaped(message))
        self.message = message
        self.where = where
        self.hint = hint
        self.notes = notes

    def __reduce__(self) -> tuple[type[HloRunError], tuple[object, ...]]:
        # By default only `args` are pickled. A compile worker must send every field to its parent.
        return type(self), (self.message, self.where, self.hint, self.notes)

    def render(self) -> str:
        """Return the text that the command line prints: place, message, source line with a caret, notes, hint.

        Control characters are escaped.
        """
        lines = [f"{self.where}: {self.kind}: {self.message}" if self.where else f"{self.kind}: {self.message}"]
        if self.where and self.where.source_line:
            lines += _source_with_caret(self.where)
        lines += [f"note: {note}" for note in self.notes]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return escaped("\n".join(lines))


def _source_with_caret(where: Where, width: int = 160) -> list[str]:
    """Return the source line (cut around the caret when it is long) and the caret line; tabs keep their width."""
    start = max(0, where.column - 1 - width // 2) if len(where.source_line) > width else 0
    shown = where.source_line[start : start + width]
    before = escaped(shown[: where.column - 1 - start])
    pad = "".join("\t" if char == "\t" else " " for char in before)
    return [f"  {escaped(shown)}", f"  {pad}^"]


class Mismatch(HloRunError):
    """The run ended but differs from the reference."""

    exit_code = 1
    kind = "mismatch"


class KernelMismatch(Mismatch):
    """A kernel whose results differ from the reference's on the same operands, while the module's result agrees.

    `kernel` is its name, or that of its instruction; `how` is `wrong values`, `NaN` or `shape`.
    """

    def __init__(
        self,
        message: str,
        where: Where | None = None,
        hint: str = "",
        notes: tuple[str, ...] = (),
        kernel: str = "",
        how: str = "",
    ) -> None:
        super().__init__(message, where, hint, notes)
        self.kernel, self.how = kernel, how

    def __reduce__(self) -> tuple[type[HloRunError], tuple[object, ...]]:
        return type(self), (self.message, self.where, self.hint, self.notes, self.kernel, self.how)


class GoldenDifference(Mismatch):
    """A stage that differs from its golden, or has none. `what` names the difference in a few words: `ptx differs`, `missing`."""

    kind = "golden"

    def __init__(
        self, message: str, where: Where | None = None, hint: str = "", notes: tuple[str, ...] = (), what: str = "differs"
    ) -> None:
        super().__init__(message, where, hint, notes)
        self.what = what

    def __reduce__(self) -> tuple[type[HloRunError], tuple[object, ...]]:
        return type(self), (self.message, self.where, self.hint, self.notes, self.what)


class UsageError(HloRunError):
    """Bad flags, or a file that is missing or cannot be read."""

    exit_code = 2
    kind = "usage error"


class PluginError(HloRunError):
    """A pass of another package, which the user inserted, raised or made an invalid module."""

    exit_code = 2
    kind = "plugin error"


class ParseError(HloRunError):
    """Invalid HLO, found by the parser, shape inference or the verifier."""

    exit_code = 3


class Unsupported(HloRunError):
    """Valid HLO (or PTX) that is not handled yet."""

    exit_code = 4
    kind = "unsupported"


class DeviceError(HloRunError):
    """A missing driver, exhausted memory, a failed launch, a fault inside a kernel, or a timeout."""

    exit_code = 5
    kind = "device error"


class OutOfTime(DeviceError):
    """The compilation, a run or a kernel took longer than `--timeout`."""


class Vacuous(HloRunError):
    """The comparison saw no kernel or no element, and `--fail_on_vacuous` is given.

    The results do not differ, so the code is not 1.
    """

    exit_code = 6
    kind = "vacuous"


class InternalError(HloRunError):
    """A bug in hlo-run. Names the row, the kernel and a file that reproduces it."""

    exit_code = 70
    kind = "internal error"


def bug_report(error: Exception) -> InternalError:
    """Return an exception that is not of the HloRunError family as an InternalError that names the line that raised it."""
    import traceback  # slow to import, and only a bug needs it

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return InternalError(
        f"{type(error).__name__}: {error}", notes=(f"at {os.path.basename(frame.filename)}:{frame.lineno}, {frame.name}",)
    )


def known_error(error: Exception) -> HloRunError:
    """Return any exception as an error of the HloRunError family: a bug unless it is of the family or comes from the system."""
    if isinstance(error, HloRunError):
        return error
    if isinstance(error, MemoryError):
        return DeviceError("out of memory", hint="the module's arrays do not fit into this machine's memory")
    if isinstance(error, OSError):
        return UsageError(f"{error.filename or 'a file'} cannot be read or written: {error.strerror or error}")
    return bug_report(error)
