"""How attribute values are read and printed, one pair of functions per form.

A reader is called with the lexer on the attribute's name, so that `lexer.pos` is right after the `=`; it leaves the
lexer on the token after the value and raises ParseError for text of another form.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hlo_run.hlo.attribute_values import AttributeValue, EntryLayout, RawText, Window, WindowDim
from hlo_run.hlo.lexer import Lexer
from hlo_run.hlo.shape import Shape
from hlo_run.hlo.shape_text import parse_shape


def parse_raw(lexer: Lexer) -> AttributeValue:
    return RawText(lexer.raw_value())


def parse_frontend_attributes(lexer: Lexer) -> RawText:
    """Read `{b="x",a={json}}`; like XLA, the keys come out sorted."""
    raw = lexer.raw_value()
    if raw[:1] != "{":
        raise lexer.error("expects '{' at the start of frontend_attributes")
    parts: list[str] = []
    pos = 1
    while found := _FRONTEND_KEY.match(raw, pos):
        begin, end = found.start(1), found.end()
        end = Lexer(raw, lexer.file).skip_bracketed(end) if raw[end] in "{\"'" else end
        parts.append(raw[begin:end])
        pos = end
    return RawText("{" + ",".join(sorted(parts)) + "}") if raw[pos:].strip(" \t\r\n,") == "}" else RawText(raw)


_FRONTEND_KEY = re.compile(r"[\s,]*([\w.\-]+=)(?=[{\"'])")


def parse_input_output_alias(lexer: Lexer) -> RawText:
    """Read `{ {0}: (1, {}), .. }`; an entry without a kind gets the default one."""
    raw = lexer.raw_value()
    return RawText(_ALIAS_WITHOUT_KIND.sub(r"\1, may-alias)", raw))


_ALIAS_WITHOUT_KIND = re.compile(r"(\(\d+, *\{[\d, ]*\})\)")


def parse_int(lexer: Lexer) -> AttributeValue:
    lexer.advance()
    return parse_integer(lexer)


def parse_integer(lexer: Lexer) -> int:
    """Read the integer token that the lexer stands on; raises ParseError for anything else or beyond 64 bits."""
    if lexer.kind != "number" or not _INTEGER.fullmatch(lexer.value):
        raise lexer.error(f"expects an integer, but sees {lexer.seen()}")
    if len(lexer.value) > 20:
        raise lexer.error("the integer does not fit into 64 bits")
    value = int(lexer.value)
    lexer.advance()
    return value


_INTEGER = re.compile(r"-?\d+")


def parse_bool(lexer: Lexer) -> AttributeValue:
    lexer.advance()
    if lexer.value not in ("true", "false"):
        raise lexer.error(f"expects true or false, but sees {lexer.seen()}")
    value = lexer.value == "true"
    lexer.advance()
    return value


def parse_float(lexer: Lexer) -> AttributeValue:
    lexer.advance()
    if lexer.kind != "number" and lexer.value not in ("inf", "nan"):
        raise lexer.error(f"expects a number, but sees {lexer.seen()}")
    value = float(lexer.value)
    lexer.advance()
    return value


def word(*choices: str, fold_case: bool = False) -> Callable[[Lexer], AttributeValue]:
    """Return a parser of one bare word out of `choices`; no choices means any word."""

    def parse(lexer: Lexer) -> AttributeValue:
        lexer.advance()
        if lexer.kind not in ("ident", "labels"):
            raise lexer.error(f"expects a word, but sees {lexer.seen()}")
        value = lexer.value.lower() if fold_case else lexer.value
        if choices and value not in choices:
            raise lexer.error(f"unexpected value {lexer.seen()}", hint=f"allowed values: {', '.join(choices)}")
        lexer.advance()
        return value

    return parse


def parse_ints(lexer: Lexer) -> AttributeValue:
    lexer.advance()
    values = integer_list(lexer)
    lexer.advance()
    return values


def integer_list(lexer: Lexer) -> tuple[int, ...]:
    """Return the integers of the token `{1,2}` that the lexer stands on."""
    if lexer.kind != "ints":
        raise lexer.error(f"expects a list of integers like {{0,1}}, but sees {lexer.seen()}")
    parts = lexer.value[1:-1].split(",")
    try:
        values = tuple(map(int, parts)) if len(parts) > 1 or parts[0].strip() else ()
    except ValueError:
        raise lexer.error(f"expects a list of integers like {{0,1}}, but sees {lexer.seen()}") from None
    if any(abs(value) >= 2**63 for value in values):
        raise lexer.error("an integer of the list does not fit into 64 bits")
    return values


def format_ints(value: AttributeValue) -> str:
    """Return `{1,2}`; raw text stays as it is."""
    if isinstance(value, RawText):
        return value
    assert isinstance(value, tuple)
    return "{" + ",".join(map(str, value)) + "}"


def parse_int_lists(lexer: Lexer) -> AttributeValue:
    """Read `{{0,1},{2,3}}` or `{}`."""
    lexer.advance()
    if lexer.kind == "ints" and not lexer.value[1:-1].strip():
        lexer.advance()
        return ()
    lexer.expect("{", "at the start of a list of lists")
    lists: list[tuple[int, ...]] = []
    while lexer.kind == "ints":
        lists.append(integer_list(lexer))
        lexer.advance()
        if not lexer.take(","):
            break
    lexer.expect("}", "at the end of a list of lists")
    return tuple(lists)


def format_int_lists(value: AttributeValue) -> str:
    if isinstance(value, RawText):
        return value
    assert isinstance(value, tuple)
    return "{" + ",".join(format_ints(group) for group in value if isinstance(group, tuple)) + "}"


def parse_ints_or_lists(lexer: Lexer) -> AttributeValue:
    # `slice_sizes` is a list for gather and a list of lists for collective-permute.
    following = lexer.text[lexer.pos : lexer.pos + 8].split()
    return parse_int_lists(lexer) if "".join(following).startswith("{{") else parse_ints(lexer)


def format_ints_or_lists(value: AttributeValue) -> str:
    assert isinstance(value, tuple)
    return format_int_lists(value) if value and isinstance(value[0], tuple) else format_ints(value)


_MESH = re.compile(r"\s*@?\w*mesh\[[^\]]*\](?:\s*,\s*device_ids=\([^)]*\))?\s*(?=\{)")


def parse_groups(lexer: Lexer) -> AttributeValue:
    """Read replica groups: lists become tuples, the iota and mesh forms stay raw."""
    rest = lexer.text[lexer.pos : lexer.pos + 1]
    mesh = _MESH.match(lexer.text, lexer.pos)
    if mesh:
        begin, end = lexer.pos, lexer.skip_bracketed(mesh.end())
        lexer.jump(end)
        return RawText(lexer.text[begin:end].strip())
    return parse_raw(lexer) if rest == "[" else parse_int_lists(lexer)


_SLICE_RANGE = re.compile(r"\s*\[\s*(-?\d{1,19})\s*:\s*(-?\d{1,19})\s*(?::\s*(-?\d{1,19})\s*)?\]\s*,?")


def parse_slice(lexer: Lexer) -> AttributeValue:
    """Read `{[0:4], [1:9:2]}` to (start, limit, stride) per dimension."""
    lexer.advance()
    if lexer.kind == "ints" and not lexer.value[1:-1].strip():
        lexer.advance()
        return ()
    lexer.expect("{", "at the start of slice ranges")
    ranges: list[tuple[int, ...]] = []
    pos = lexer.start
    while found := _SLICE_RANGE.match(lexer.text, pos):
        ranges.append((int(found[1]), int(found[2]), int(found[3] or 1)))
        pos = found.end()
    lexer.jump(pos)
    lexer.expect("}", "after slice ranges like [0:4:1]")
    return tuple(ranges)


def format_slice(value: AttributeValue) -> str:
    assert isinstance(value, tuple)
    ranges = [item for item in value if isinstance(item, tuple)]
    strided = any(stride != 1 for _, _, stride in ranges)
    shown = (f"[{start}:{limit}:{stride}]" if strided else f"[{start}:{limit}]" for start, limit, stride in ranges)
    return "{" + ", ".join(shown) + "}"


def parse_padding(lexer: Lexer) -> AttributeValue:
    """Read `1_2x0_0_1` to (low, high, interior) per dimension; a scalar's padding is empty."""
    lexer.advance()
    if lexer.kind == "string" and len(lexer.value) == 2:
        lexer.advance()
        return ()
    if lexer.kind != "pad":
        raise lexer.error(f"expects padding like 0_1x2_3_1, but sees {lexer.seen()}")
    if any(len(part) > 20 for row in lexer.value.split("x") for part in row.split("_")):
        raise lexer.error("a padding does not fit into 64 bits")
    rows = [tuple(map(int, part.split("_"))) for part in lexer.value.split("x")]
    lexer.advance()
    return tuple(row if len(row) == 3 else (*row, 0) for row in rows)


def format_padding(value: AttributeValue) -> str:
    assert isinstance(value, tuple)
    rows = [item for item in value if isinstance(item, tuple)]
    interior = any(row[2] for row in rows)
    return "x".join("_".join(map(str, row if interior else row[:2])) for row in rows)


_WINDOW_FIELD = re.compile(r"\s*([a-z_]+)=([0-9_x\-]+)")


def parse_window(lexer: Lexer) -> AttributeValue:
    """Read `{size=3x3 stride=2x2 pad=1_1x0_1 lhs_dilate=1x2 rhs_dilate=2x2 rhs_reversal=1x0}`."""
    start = lexer.pos
    raw = lexer.raw_value()
    fields: dict[str, list[str]] = {}
    pos = 1
    while found := _WINDOW_FIELD.match(raw, pos):
        if found[1] in fields:
            raise lexer.error(f"attribute {found[1]} already exists", start)
        fields[found[1]] = found[2].split("x")
        pos = found.end()
    if raw[:1] != "{" or raw[pos:].strip() != "}":
        raise lexer.error(f"cannot read the window {raw[:80]}", start, hint="a window is written like {size=3x3 pad=1_1x0_1}")
    unknown = [name for name in fields if name not in _WINDOW_FIELDS]
    if unknown:
        raise lexer.error(f'unexpected attribute "{unknown[0]}"', start, hint=f"allowed: {', '.join(_WINDOW_FIELDS)}")
    try:
        return _window(fields)
    except ValueError as error:
        raise lexer.error(f"cannot read the window {raw[:80]}: {error}", start) from None


_WINDOW_FIELDS = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")


def _window(fields: dict[str, list[str]]) -> Window:
    rank = len(fields.get("size", []))
    for name, parts in fields.items():
        if len(parts) != rank:
            raise ValueError(f"{name} has {len(parts)} entries, but size has {rank}")

    def column(name: str, default: int) -> list[int]:
        return [int(part) for part in fields.get(name, [str(default)] * rank)]

    pads = [tuple(map(int, part.split("_"))) for part in fields.get("pad", ["0_0"] * rank)]
    if any(len(pad) != 2 for pad in pads):
        raise ValueError("each pad is low_high")
    rows = zip(
        column("size", 1),
        column("stride", 1),
        pads,
        column("lhs_dilate", 1),
        column("rhs_dilate", 1),
        column("rhs_reversal", 0),
        strict=True,
    )
    return Window(tuple(WindowDim(s, t, p[0], p[1], b, w, bool(r)) for s, t, p, b, w, r in rows))


def format_window(value: AttributeValue) -> str:
    assert isinstance(value, Window)

    def field(name: str, entries: list[str], default: str) -> str:
        return f" {name}={'x'.join(entries)}" if any(entry != default for entry in entries) else ""

    dims = value.dims
    text = "size=" + "x".join(str(d.size) for d in dims)
    text += field("stride", [str(d.stride) for d in dims], "1")
    text += field("pad", [f"{d.pad_low}_{d.pad_high}" for d in dims], "0_0")
    text += field("lhs_dilate", [str(d.base_dilation) for d in dims], "1")
    text += field("rhs_dilate", [str(d.window_dilation) for d in dims], "1")
    text += field("rhs_reversal", [str(int(d.reversal)) for d in dims], "0")
    return "{" + text + "}"


def parse_shape_value(lexer: Lexer) -> AttributeValue:
    lexer.advance()
    return parse_shape(lexer)


def parse_shaped_literal(lexer: Lexer) -> AttributeValue:
    """Keep `literal=s32[2]{0} {1, 2}` raw: a shape, then a value."""
    begin = lexer.pos
    lexer.advance()
    parse_shape(lexer)
    lexer.pos = lexer.start
    lexer.raw_value()
    return RawText(lexer.text[begin : lexer.start].strip().rstrip(",").rstrip())


def parse_entry_layout(lexer: Lexer) -> EntryLayout:
    """Read `{(f32[2]{0}, s32[])->f32[2]{0}}`; the lexer stands on the attribute's name."""
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
    """Return the form that `parse_entry_layout` reads."""
    return "{" + f"{Shape.make_tuple(value.parameters)}->{value.result}" + "}"


def format_bool(value: AttributeValue) -> str:
    return "true" if value else "false"


def format_float(value: AttributeValue) -> str:
    # XLA prints a float attribute with six digits, whatever was written.
    return f"{value:g}"
