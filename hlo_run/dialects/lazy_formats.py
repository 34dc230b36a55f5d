"""Assembly formats of operations are read when one is first printed or parsed, not when its dialect is imported.

xDSL reads the declarative format of every operation that it defines, which is a seventh of the time that importing the dialects
takes; a kernel that is neither printed nor parsed needs none of them. A format that is not valid is then reported at its first
use; the tests of the dialects use them all.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from xdsl.irdl import OpDef
from xdsl.irdl.declarative_assembly_format import FormatProgram

_read = FormatProgram.from_str


class _LazyFormat:
    """Stands for a `FormatProgram`: offers what xDSL's operations use of it."""

    def __init__(self, text: str, definition: OpDef) -> None:
        self._text, self._definition = text, definition

    @cached_property
    def _program(self) -> FormatProgram:
        return _read(self._text, self._definition)

    def parse(self, parser: Any, op_type: Any) -> Any:
        """Parse an operation; raises xDSL's ParseError."""
        return self._program.parse(parser, op_type)

    def print(self, printer: Any, op: Any) -> None:
        """Print an operation."""
        self._program.print(printer, op)


def read_formats_late() -> None:
    """Let the dialects that are imported from now on read their formats late."""
    setattr(FormatProgram, "from_str", staticmethod(_LazyFormat))  # noqa: B010 - the type of the stand-in differs
