"""Parse and print plain attribute values: numbers, words, strings, lists of integers, shapes.

The current token of an attribute's reader is the attribute's name, so that `lexer.pos` is right after the `=`. The reader
moves to the token after the value, and raises ParseError for text of another form. Helpers that read a part of a value
begin at the current token.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.shape_text import parse_shape
from hlo_run.hlo.values.attribute_values import AttributeValue, EntryLayout, RawText
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.escape import escape, json_dict_end, unescape
from hlo_run.hlo.values.shape import Shape

_T = TypeVar("_T")
_INTEGER = re.compile(r"-?\d+")


def comma_list(lexer: Lexer, begin: str, end: str, item: Callable[[], _T]) -> tuple[_T, ...]:
    """Read `begin item, item, .. end`; the list may be empty."""
    if begin == "{":
        open_brace(lexer, "at the start of a list")
    else:
        lexer.expect(begin, "at the start of a list")
    if lexer.take(end):
        return ()
    found = [item()]
    while lexer.take(","):
        found.append(item())
    lexer.expect(end, "at the end of a list")
    return tuple(found)


def at_brace(lexer: Lexer) -> bool:
    """True if the current token is or begins with `{`: a list of integers is one token."""
    return lexer.kind == "ints" or (lexer.kind == "punct" and lexer.value == "{")


def at_attribute(lexer: Lexer, name: str) -> bool:
    """True if the current token is the attribute name `name`."""
    return lexer.kind == "attr" and lexer.value == name


def open_brace(lexer: Lexer, context: str) -> None:
    """Skip a `{`, also at the start of a token that is a list of integers."""
    if lexer.kind == "ints":
        lexer.jump(lexer.start + 1)
    else:
        lexer.expect("{", context)


def sub_attributes(lexer: Lexer, readers: Mapping[str, Callable[[Lexer], Any]], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read `{name=value, name=value}`, with an optional comma before each; every name may occur once."""
    start = lexer.start
    open_brace(lexer, "to start sub attributes")
    found: dict[str, Any] = {}
    while lexer.value != "}":
        lexer.take(",")
        name = attribute_name(lexer)
        if name in found:
            raise lexer.error(f"attribute {name} already exists")
        if name not in readers:
            raise lexer.error(f'unexpected attribute "{name}". Allowed attributes: {", ".join(sorted(readers))}')
        found[name] = readers[name](lexer)
    for name in required:
        if name not in found:
            raise lexer.error(f"sub-attribute {name} is expected but not seen", start)
    lexer.advance()
    return found


def attribute_name(lexer: Lexer) -> str:
    """Return the attribute name at the current token; the lexer does not move."""
    if lexer.kind != "attr":
        raise lexer.error(f"expects an attribute name, but sees {lexer.seen()}")
    return lexer.value


def string_value(lexer: Lexer) -> str:
    """Read a quoted string, and return its text without escapes."""
    if lexer.kind == "bad" and lexer.value in "\"'":
        raise lexer.error("the string is never closed", hint="the text may be cut off")
    text = unescape(lexer.value[1:-1]) if lexer.kind == "string" else None
    if text is None:
        raise lexer.error(f"expects string, but sees {lexer.seen()}")
    lexer.advance()
    return text


def parse_string(lexer: Lexer) -> str:
    """Read `"text"`, and return the text without quotes and escapes."""
    lexer.advance()
    return string_value(lexer)


def format_string(value: AttributeValue) -> str:
    """Return `"text"`, with escapes."""
    return f'"{escape(str(value))}"'


def parse_string_or_json(lexer: Lexer) -> str:
    """Read `"text"` or `{json}`; JSON is returned unchanged, with its braces."""
    lexer.advance()
    if not at_brace(lexer):
        return string_value(lexer)
    start = lexer.start
    end = json_dict_end(lexer.text, start)
    if end is None:
        raise lexer.error("expects JSON dict: '{' is never closed", start, hint="the text may be cut off")
    lexer.jump(end)
    return lexer.text[start:end]


def parse_raw(lexer: Lexer) -> RawText:
    """Read the value without parsing it, and return its text."""
    return RawText(lexer.raw_value())


def parse_int(lexer: Lexer) -> int:
    """Read a signed integer of up to 64 bits."""
    lexer.advance()
    return parse_integer(lexer)


def parse_int32(lexer: Lexer) -> int:
    """Read an integer; raises ParseError if it exceeds int32."""
    start = lexer.pos
    value = parse_int(lexer)
    if not -(2**31) <= value < 2**31:
        raise lexer.error("value out of range for int32_t", start)
    return value


def parse_truncated_int(lexer: Lexer) -> int:
    """Read an integer; only the low 32 bits count, as in XLA."""
    return (parse_int(lexer) + 2**31) % 2**32 - 2**31


def parse_integer(lexer: Lexer) -> int:
    """Read the integer at the current token; raises ParseError for another token or more than 64 bits."""
    if lexer.kind != "number" or not _INTEGER.fullmatch(lexer.value):
        raise lexer.error(f"expects an integer, but sees {lexer.seen()}")
    value = to_int64(lexer.value)
    if value is None:
        raise lexer.error("expects an integer, but this one does not fit into 64 bits")
    lexer.advance()
    return value


def to_int64(digits: str) -> int | None:
    """Return a signed integer, or None if it exceeds 64 bits; as in XLA, [2^63, 2^64) wraps to negative numbers."""
    value = int(digits) if len(digits) <= 20 else int(digits) if len(digits.lstrip("-0")) <= 20 else 2**65
    if -(2**63) <= value < 2**63:
        return value
    return value - 2**64 if 2**63 <= value < 2**64 else None


def parse_bool(lexer: Lexer) -> bool:
    """Read `true` or `false` after the `=`."""
    lexer.advance()
    return bool_value(lexer)


def bool_value(lexer: Lexer) -> bool:
    """Read `true` or `false`."""
    if lexer.value not in ("true", "false") or lexer.kind != "ident":
        raise lexer.error(f"expects true or false, but sees {lexer.seen()}")
    value = lexer.value == "true"
    lexer.advance()
    return value


def format_bool(value: AttributeValue) -> str:
    """Return `true` or `false`."""
    return "true" if value else "false"


def parse_bools(lexer: Lexer) -> tuple[bool, ...]:
    """Read `{true,false}`."""
    lexer.advance()
    return comma_list(lexer, "{", "}", lambda: bool_value(lexer))


def format_bools(value: AttributeValue) -> str:
    """Return `{true,false}`."""
    assert isinstance(value, tuple)
    return "{" + ",".join("true" if item else "false" for item in value) + "}"


def number(lexer: Lexer) -> float:
    """Read an integer, decimal, `inf` or `-inf`, or a NaN, which XLA's lexer treats as a decimal."""
    if lexer.kind != "number" and lexer.value not in ("inf", "nan"):
        raise lexer.error(f"expects decimal or integer, but sees {lexer.seen()}")
    if _INTEGER.fullmatch(lexer.value):
        return float(parse_integer(lexer))
    value = float(lexer.value)
    if value in (float("inf"), float("-inf")) and "inf" not in lexer.value:
        raise lexer.error("Constant is out of range for double and so is unparsable.")
    lexer.advance()
    return value


def parse_float32(lexer: Lexer) -> float:
    """Read a number in the range of f32, and round it to f32."""
    start = lexer.pos
    lexer.advance()
    value = number(lexer)
    if abs(value) > _LARGEST_FLOAT32:
        raise lexer.error("value out of range for float", start)
    return struct.unpack("f", struct.pack("f", value))[0]


_LARGEST_FLOAT32 = 3.4028234663852886e38


def format_float(value: AttributeValue) -> str:
    """Return `value` with six digits, as XLA prints every float attribute."""
    return f"{value:g}"


def word(*choices: str, fold_case: bool = False) -> Callable[[Lexer], str]:
    """Return a reader of one unquoted word of `choices`; without choices, of any word."""

    def parse(lexer: Lexer) -> str:
        lexer.advance()
        return word_value(lexer, choices, fold_case)

    return parse


def word_value(lexer: Lexer, choices: tuple[str, ...], fold_case: bool = False) -> str:
    """Read one unquoted word of `choices` (any word if empty); with `fold_case`, return it in the case of the choices."""
    if lexer.kind != "ident":
        raise lexer.error(f"expects a word, but sees {lexer.seen()}")
    value = lexer.value
    if fold_case:
        value = next((choice for choice in choices if choice.lower() == value.lower()), value)
    if choices and value not in choices:
        raise lexer.error(f"unexpected value {lexer.seen()}", hint=f"allowed values: {', '.join(choices)}")
    lexer.advance()
    return value


def parse_words(*choices: str) -> Callable[[Lexer], tuple[str, ...]]:
    """Return a reader of `{word,word}`, with words of `choices` in any case."""

    def parse(lexer: Lexer) -> tuple[str, ...]:
        lexer.advance()
        return comma_list(lexer, "{", "}", lambda: word_value(lexer, choices, fold_case=True))

    return parse


def format_words(value: AttributeValue) -> str:
    """Return `{word,word}`."""
    assert isinstance(value, tuple)
    return braces(value)


def parse_ints(lexer: Lexer) -> tuple[int, ...]:
    """Read `{0,1}`."""
    lexer.advance()
    return integer_list(lexer)


def integer_list(lexer: Lexer) -> tuple[int, ...]:
    """Read `{1,2}`; the current token is the brace or the list."""
    if lexer.kind != "ints":
        # The list has comments, or it is not a list.
        if lexer.value != "{":
            raise lexer.error(f"expects a list of integers like {{0,1}}, but sees {lexer.seen()}")
        return comma_list(lexer, "{", "}", lambda: parse_integer(lexer))
    body = lexer.value[1:-1].strip()
    values = [to_int64(part.strip()) if _INTEGER.fullmatch(part.strip()) else None for part in body.split(",")] if body else []
    if None in values:
        return comma_list(lexer, "{", "}", lambda: parse_integer(lexer))
    lexer.advance()
    return tuple(value for value in values if value is not None)


def shape_index(lexer: Lexer) -> tuple[int, ...]:
    """Read a shape index, `{1,0}`; the current token is the brace. A comma at the end is allowed."""
    open_brace(lexer, "at the start of a shape index")
    index: list[int] = []
    while lexer.value != "}":
        index.append(parse_integer(lexer))
        if not lexer.take(","):
            break
    lexer.expect("}", "at the end of a shape index")
    return tuple(index)


def format_ints(value: AttributeValue) -> str:
    """Return `{1,2}`."""
    assert isinstance(value, tuple)
    return braces(value)


def parse_int_lists(lexer: Lexer) -> tuple[tuple[int, ...], ...]:
    """Read `{{0,1},{2,3}}` or `{}`."""
    lexer.advance()
    return int_lists(lexer)


def int_lists(lexer: Lexer) -> tuple[tuple[int, ...], ...]:
    """Read `{{0,1},{2,3}}`; the current token is the outer brace."""
    return comma_list(lexer, "{", "}", lambda: integer_list(lexer))


def format_int_lists(value: AttributeValue) -> str:
    """Return `{{0,1},{2,3}}`."""
    assert isinstance(value, tuple)
    return "{" + ",".join(format_ints(group) for group in value if isinstance(group, tuple)) + "}"


def parse_shape_value(lexer: Lexer) -> Shape:
    """Read a shape, as in `f32[2]{0}`."""
    lexer.advance()
    return parse_shape(lexer)


def parse_shapes(lexer: Lexer) -> tuple[Shape, ...]:
    """Read `{f32[2]{0}, s32[]}`."""
    lexer.advance()
    return comma_list(lexer, "{", "}", lambda: parse_shape(lexer))


def format_shapes(value: AttributeValue) -> str:
    """Return `{f32[2]{0}, s32[]}`."""
    assert isinstance(value, tuple)
    return "{" + ", ".join(map(str, value)) + "}"


def parse_entry_layout(lexer: Lexer) -> EntryLayout:
    """Read `{(f32[2]{0}, s32[])->f32[2]{0}}`; the current token is the attribute's name."""
    lexer.advance()
    lexer.expect("{", "at the start of entry_computation_layout")
    parameters = parse_shape(lexer)
    if not parameters.is_tuple:
        raise lexer.error("expects the parameter shapes in parentheses")
    lexer.expect("->", "before the result shape")
    result = parse_shape(lexer)
    lexer.expect("}", "at the end of entry_computation_layout")
    return EntryLayout(parameters.tuple_shapes, result)


def format_entry_layout(value: EntryLayout) -> str:
    """Return the text that `parse_entry_layout` reads."""
    return "{" + f"{Shape.make_tuple(value.parameters)}->{value.result}" + "}"
