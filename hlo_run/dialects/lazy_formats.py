"""Makes at first use what xDSL makes for each of its classes at import: assembly formats, and the methods of dataclasses.

xDSL reads the declarative format of every operation that it defines, which is a seventh of the time that importing the dialects
takes; a kernel that is neither printed nor parsed needs none of them. A format that is not valid is then reported at its first
use; the tests of the dialects use them all. Another seventh compiles the source of `__init__`, `__eq__`, `__hash__`, `__repr__`,
`__setattr__` and `__delattr__` of 270 dataclasses. A kernel calls one in ten of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from types import FunctionType
from typing import Any


def _execute(text: str, module: dict[str, Any], made: dict[str, Any]) -> None:
    """Execute the source of methods that `dataclasses` wrote. Those of xDSL's classes are compiled when they are called.

    The source is a function that returns one function, or a tuple of functions.
    """
    head, _, result = text.rpartition("\n return ")
    if str(module.get("__name__")).startswith("xdsl.") and head.startswith("def __create_fn__(") and result:
        made["__create_fn__"] = partial(_late_methods, text, module, result)
    else:
        exec(text, module, made)


def _late_methods(text: str, module: dict[str, Any], result: str, **values: object) -> object:
    """Return functions that compile the source at the first call, and then call what it makes."""
    names = [name for name in result.strip("()").split(",") if name]
    made: dict[str, Callable[..., Any]] = {}

    def function(name: str) -> Callable[..., Any]:
        if not made:
            scope: dict[str, Any] = {}
            exec(text, module, scope)
            created = scope["__create_fn__"](**values)
            made.update(zip(names, created if result.startswith("(") else (created,), strict=True))
        return made[name]

    late = tuple(_late_method(name, function) for name in names)
    return late if result.startswith("(") else late[0]


def _late_method(name: str, function: Callable[[str], Callable[..., Any]]) -> FunctionType:
    def method(self: object, /, *arguments: object, **named: object) -> object:
        real = function(name)
        real.__qualname__ = method.__qualname__
        for kind in type(self).__mro__:
            if kind.__dict__.get(name) is method:
                setattr(kind, name, real)
        return real(self, *arguments, **named)

    method.__name__ = name
    return method


setattr(dataclasses, "exec", _execute)  # noqa: B010 - a builtin there

# The imports of xDSL come after this line, since they make its dataclasses.
from xdsl.irdl import OpDef  # noqa: E402
from xdsl.irdl.declarative_assembly_format import FormatProgram  # noqa: E402

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
