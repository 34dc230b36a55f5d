"""Convert Python values to attribute values: print them as HLO text, and parse it.

So a built module equals a parsed one, and has the same errors. A `str` is the text itself, unless the attribute is a
string.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from hlo_run.builder.values import ShapeLike, literal_of, shape_of
from hlo_run.errors import HloRunError, ParseError, Where
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.table import AttributeValue, Window, WindowDim, attribute_kind
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.text.parser import HEADER_ATTRIBUTES
from hlo_run.hlo.values.literal import format_literal

# A field of a window: text, or its numbers; the padding has pairs.
_Sizes: TypeAlias = str | Sequence[Any]
_Index: TypeAlias = Sequence[int]
_Source: TypeAlias = int | tuple[int, _Index] | tuple[int, _Index, str]


def attribute_value(opcode: Opcode, name: str, value: object, where: Where | None) -> AttributeValue:
    """Return the value of attribute `name` of an opcode for a Python value; raises ParseError for an invalid one."""
    return _read(name, _SPELL.get(name, _plain)(value), attribute_kind(opcode, name).parse, where)


def header_value(name: str, value: object, where: Where | None) -> AttributeValue:
    """Return the value of module attribute `name` for a Python value; raises ParseError for an invalid name or value."""
    if name not in HEADER_ATTRIBUTES:
        raise ParseError(f"a module has no attribute '{name}'", where, hint=f"it may have {', '.join(HEADER_ATTRIBUTES)}")
    return _read(name, _SPELL.get(name, _plain)(value), HEADER_ATTRIBUTES[name], where)


def _read(name: str, text: str, parse: Callable[[Lexer], AttributeValue], where: Where | None) -> AttributeValue:
    try:
        lexer = Lexer(f"{name}={text}", "<attribute>")
        value = parse(lexer)
        if lexer.kind != "eof":
            raise lexer.error(f"unexpected {lexer.seen()} after the value")
    except HloRunError as error:
        raise ParseError(f"attribute {name}={text[:200]}: {error.message}", where, error.hint) from None
    return value


def _plain(value: object) -> str:
    """Return the text of a bool, a number, a (nested) sequence of numbers, or text itself."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, Iterable):
        parts: list[object] = [*value]
        return "{" + ",".join(_plain(part) for part in parts) + "}"
    number = getattr(value, "item", None)  # of a number of numpy
    return str(number() if callable(number) else value)


def _quoted(value: object) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def _words(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else "{" + ",".join(value) + "}"


def _json_or_quoted(value: object) -> str:
    """Return the text of a backend config: a mapping becomes JSON, and text that begins with a brace is JSON."""
    if isinstance(value, Mapping):
        return json.dumps(value, separators=(",", ":"))
    return text if (text := str(value)).startswith("{") else _quoted(text)


def _metadata(value: str | Mapping[str, object]) -> str:
    if isinstance(value, str):
        return value
    fields = (f"{key}={_quoted(field) if isinstance(field, str) else _plain(field)}" for key, field in value.items())
    return "{" + " ".join(fields) + "}"


def _frontend(value: str | Mapping[str, object]) -> str:
    if isinstance(value, str):
        return value
    return "{" + ",".join(f"{key}={_json_or_quoted(field)}" for key, field in value.items()) + "}"


def _slice(value: str | Sequence[Sequence[int]]) -> str:
    """Return the text of (start, limit) or (start, limit, stride) per dimension."""
    if isinstance(value, str):
        return value
    return "{" + ", ".join("[" + ":".join(map(str, bounds)) + "]" for bounds in value) + "}"


def _padding(value: str | Sequence[Sequence[int]]) -> str:
    return value if isinstance(value, str) else "x".join("_".join(map(str, edges)) for edges in value)


def _window(value: str | Mapping[str, _Sizes] | Window | Sequence[WindowDim]) -> str:
    """Return the text of a Window, of WindowDims, or of a mapping by XLA's field names (size, stride, pad, lhs_dilate, ..)."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{key}={_window_field(key, field)}" for key, field in value.items()) + "}"
    dims: Sequence[WindowDim] = value.dims if isinstance(value, Window) else value
    named: dict[str, _Sizes] = {
        "size": [dim.size for dim in dims],
        "stride": [dim.stride for dim in dims],
        "pad": [(dim.pad_low, dim.pad_high) for dim in dims],
        "lhs_dilate": [dim.base_dilation for dim in dims],
        "rhs_dilate": [dim.window_dilation for dim in dims],
        "rhs_reversal": [int(dim.reversal) for dim in dims],
    }
    return _window(named) if dims else "{}"


def _window_field(key: str, field: _Sizes) -> str:
    if isinstance(field, str):
        return field
    return "x".join("_".join(map(str, size)) if key == "pad" else str(int(size)) for size in field)


def _shapes(value: str | Sequence[ShapeLike]) -> str:
    return value if isinstance(value, str) else "{" + ", ".join(str(shape_of(shape)) for shape in value) + "}"


def _aliasing(value: str | Mapping[_Index, _Source]) -> str:
    """Return the text of {output index: (operand, operand index)}, for a module with a kind; a plain operand has index {}."""
    return value if isinstance(value, str) else "{" + ", ".join(_alias(*entry) for entry in value.items()) + "}"


def _module_aliasing(value: str | Mapping[_Index, _Source]) -> str:
    # XLA prints blanks inside these braces, but not inside those of an instruction.
    return value if isinstance(value, str) else "{ " + ", ".join(_alias(*entry) for entry in value.items()) + " }"


def _alias(output: _Index, source: _Source) -> str:
    operand, index, *kind = (source, ()) if isinstance(source, int) else source
    return f"{_plain(output)}: ({', '.join([str(operand), _plain(index), *kind])})"


def _donors(value: str | Sequence[int | tuple[int, _Index]]) -> str:
    if isinstance(value, str):
        return value
    pairs = [(donor, ()) if isinstance(donor, int) else donor for donor in value]
    return "{ " + ", ".join(f"({parameter}, {_plain(index)})" for parameter, index in pairs) + " }"


def _literal(value: object) -> str:
    if isinstance(value, str):
        return value
    literal, shape = literal_of(value)
    return f"{shape} {format_literal(literal, shape)}"


_SPELL: dict[str, Callable[[Any], str]] = {
    "slice": _slice,
    "padding": _padding,
    "window": _window,
    "metadata": _metadata,
    "frontend_attributes": _frontend,
    "backend_config": _json_or_quoted,
    "operand_precision": _words,
    "operand_layout_constraints": _shapes,
    "output_to_operand_aliasing": _aliasing,
    "input_output_alias": _module_aliasing,
    "buffer_donor": _donors,
    "literal": _literal,
    "outfeed_shape": lambda value: str(shape_of(value)),
    **dict.fromkeys(("custom_call_target", "infeed_config", "outfeed_config", "async_execution_thread"), _quoted),
}
