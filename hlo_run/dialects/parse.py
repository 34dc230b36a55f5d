"""Parses and verifies IR text."""

from __future__ import annotations

import re
import sys

from msgspec import Struct
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.utils.exceptions import DiagnosticException, InvalidIRException, UnregisteredConstructException, VerifyException
from xdsl.utils.exceptions import ParseError as XdslParseError

from hlo_run.dialects.context import make_context
from hlo_run.dialects.dominance import first_undominated_use
from hlo_run.dialects.earlier_spellings import GpuReader, modernise
from hlo_run.dialects.names import default_name
from hlo_run.errors import ParseError, Where

# A comment, a string literal in MLIR's syntax, or a quote that is part of neither.
_QUOTE = re.compile(r'//[^\n]*|"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"|"')

# What the constructors and parsers of xDSL's operations raise for text that they do not expect.
_CONSTRUCTOR_ERRORS = (
    *(AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError, ArithmeticError),
    *(DiagnosticException, InvalidIRException, UnregisteredConstructException),
)


def parse_module(text: str, file: str = "<text>", context: Context | None = None) -> ModuleOp:
    """Return the verified module of an IR text. Ops outside of a module are wrapped in one. `file` is for messages.

    Raises ParseError for syntax errors, with their position. For IR that does not verify, the position is line 1.
    """
    _check_strings(text, file)
    try:
        module = Parser(context or make_context(), text, file).parse_module()
        module.verify()
        _read_xlas_form(module)
    except XdslParseError as error:
        raise ParseError(error.msg, _where(error.span.start, text, file)) from error
    except VerifyException as error:
        raise ParseError(f"invalid IR: {_last_line(error)}", Where(file, 1, 1)) from error
    except RecursionError:
        raise ParseError("invalid IR: it is nested too deeply", Where(file, 1, 1)) from None
    except _CONSTRUCTOR_ERRORS as error:
        raise ParseError(f"invalid IR: {_last_line(error) or type(error).__name__}", Where(file, 1, 1)) from error
    if (user := first_undominated_use(module)) is not None:
        raise ParseError(f"invalid IR: an operand of '{user.name}' is not defined before it", Where(file, 1, 1))
    _drop_default_hints(module)
    return module


class PlacedModule(Struct, frozen=True):
    """A module of the gpu dialect, and where its operations are in the text."""

    module: ModuleOp
    text: str
    file: str
    places: dict[Operation, int]

    def where(self, op: Operation | None) -> Where:
        """Return the place of an operation, or of the nearest operation around it that has one."""
        while op is not None and op not in self.places:
            op = op.parent_op()
        return _where(self.places[op] if op is not None else 0, self.text, self.file)


def parse_gpu_module(text: str, file: str = "<text>") -> PlacedModule:
    """Return the verified module of a text of the gpu dialect, in today's spelling or in an earlier one.

    Raises ParseError with the position of the operation at fault.
    """
    _check_strings(text, file)
    reader = GpuReader(make_context(), text, file)
    try:
        module = reader.parse_module()
        modernise(module, reader.places)
    except XdslParseError as error:
        raise ParseError(error.msg, _where(error.span.start, text, file)) from error
    except RecursionError:
        raise ParseError("invalid IR: it is nested too deeply", Where(file, 1, 1)) from None
    except (VerifyException, *_CONSTRUCTOR_ERRORS) as error:
        message = f"invalid IR: {_last_line(error) or type(error).__name__}"
        raise ParseError(message, _where(reader.pos, text, file)) from error
    placed = PlacedModule(module, text, file, reader.places)
    for op in module.walk(reverse=True):
        _verify_at(op, placed)
    if (user := first_undominated_use(module)) is not None:
        raise ParseError(f"invalid IR: an operand of '{user.name}' is not defined before it", placed.where(user))
    _drop_default_hints(module)
    return placed


def _verify_at(op: Operation, placed: PlacedModule) -> None:
    try:
        op.verify(verify_nested_ops=False)
    except Exception as error:  # xDSL's operations raise errors of any class
        raise ParseError(f"invalid IR: '{op.name}': {_last_line(error)}", placed.where(op)) from error


def _read_xlas_form(module: ModuleOp) -> None:
    """Replace the ops of a dump of XLA that have no single counterpart. Their definitions are loaded if the text names one."""
    if (xla := sys.modules.get("hlo_run.dialects.xla")) is not None:
        xla.become_ours(module)


def _last_line(error: Exception) -> str:
    """Return the last line of the message: xDSL's verifier prints the whole op before its message."""
    lines = [line.strip(" |-^") for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _check_strings(text: str, file: str) -> None:
    """Reject a string literal that does not end: xDSL's lexer takes exponential time to find it."""
    for match in _QUOTE.finditer(text):
        if match[0] == '"':
            raise ParseError("string literal is not terminated or has an unknown escape", _where(match.start(), text, file))


def _where(start: int, text: str, file: str) -> Where:
    line = text.count("\n", 0, start) + 1
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    return Where(file, line, start - line_start + 1, text[line_start : line_end if line_end >= 0 else len(text)])


def _drop_default_hints(module: ModuleOp) -> None:
    """Drop name hints that equal the default name. Otherwise a value that replaces this one would get the name."""
    for op in module.walk():
        for result in op.results:
            if result.name_hint is not None and result.name_hint == default_name(result):
                result.name_hint = None
        for arg in (arg for region in op.regions for block in region.blocks for arg in block.args):
            hint = arg.name_hint
            if hint is not None and hint.startswith("arg") and hint[3:].isdigit():
                arg.name_hint = None
