"""IR text to modules."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError as XdslParseError
from xdsl.utils.exceptions import VerifyException

from hlo_run.dialects.context import make_context
from hlo_run.dialects.names import default_name
from hlo_run.errors import ParseError, Where


def parse_module(text: str, file: str = "<text>", context: Context | None = None) -> ModuleOp:
    """Return the verified module of an IR text; functions without a module around them get one.

    Raises ParseError, with the place where the text cannot be read, or without one where the verifier refuses the IR.
    """
    try:
        module = Parser(context or make_context(), text, file).parse_module()
        module.verify()
    except XdslParseError as error:
        raise ParseError(error.msg, _where(error, text, file)) from error
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


def _where(error: XdslParseError, text: str, file: str) -> Where:
    start = error.span.start
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
