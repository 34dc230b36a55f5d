"""IR text to modules."""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError as XdslParseError
from xdsl.utils.exceptions import VerifyException

from hlo_run.dialects.context import make_context
from hlo_run.dialects.names import default_name
from hlo_run.errors import ParseError, Where

# A comment, a string literal as MLIR allows it, or a quote that begins neither.
_QUOTE = re.compile(r'//[^\n]*|"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"|"')


def parse_module(text: str, file: str = "<text>", context: Context | None = None) -> ModuleOp:
    """Return the verified module of an IR text; functions without a module around them get one.

    Raises ParseError, with the place where the text cannot be read, or without one where the verifier refuses the IR.
    """
    _check_strings(text, file)
    try:
        module = Parser(context or make_context(), text, file).parse_module()
        module.verify()
    except XdslParseError as error:
        raise ParseError(error.msg, _where(error.span.start, text, file)) from error
    except VerifyException as error:
        raise ParseError(f"invalid IR: {_last_line(error)}", Where(file, 1, 1)) from error
    except Exception as error:  # xDSL's op parsers let assertions and value errors of their constructors out
        raise ParseError(f"invalid IR: {_last_line(error) or type(error).__name__}", Where(file, 1, 1)) from error
    _drop_default_hints(module)
    return module


def _last_line(error: Exception) -> str:
    """Return what the error says; xDSL's verifier puts the whole op in front of its message."""
    lines = [line.strip(" |-^") for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _check_strings(text: str, file: str) -> None:
    """Refuse a string literal that does not end; xDSL's lexer takes exponential time to find out."""
    for match in _QUOTE.finditer(text):
        if match[0] == '"':
            raise ParseError("string literal without end or with an unknown escape", _where(match.start(), text, file))


def _where(start: int, text: str, file: str) -> Where:
    line = text.count("\n", 0, start) + 1
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    return Where(file, line, start - line_start + 1, text[line_start : line_end if line_end >= 0 else len(text)])


def _drop_default_hints(module: ModuleOp) -> None:
    """Forget names that say no more than the op: they would stick to whatever replaces the value later."""
    for op in module.walk():
        for result in op.results:
            if result.name_hint is not None and result.name_hint == default_name(result):
                result.name_hint = None
        for arg in (arg for region in op.regions for block in region.blocks for arg in block.args):
            hint = arg.name_hint
            if hint is not None and hint.startswith("arg") and hint[3:].isdigit():
                arg.name_hint = None
