"""Parse and print windows, padding, slices and dimension labels of convolutions."""

from __future__ import annotations

import re
from collections.abc import Callable

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.text import attribute_name, comma_list, open_brace, parse_int_lists, to_int64
from hlo_run.hlo.values.attribute_values import AttributeValue, DimLabels, OperandLabels, Window, WindowDim

_INT = r"-?[0-9]+"
_INTEGER = re.compile(_INT)
_EXTENTS = re.compile(rf"[0-9]+(?:x[0-9]+)+|{_INT}")
_PAD = rf"{_INT}_{_INT}(?:_[0-9]+)?"
_PADS = re.compile(rf"{_PAD}(?:x{_PAD})*")

_PLAIN_RANGE = re.compile(r"\[([0-9]{1,18}):([0-9]{1,18})(?::([0-9]{1,18}))?\]")
# A fast path for the form that XLA prints; other forms token by token.
_PLAIN_SLICE = re.compile(rf"\{{{_PLAIN_RANGE.pattern}(?:, ?{_PLAIN_RANGE.pattern})*+\}}")


def parse_slice(lexer: Lexer) -> AttributeValue:
    """Read `{[0:4], [1:9:2]}`, and return (start, limit, stride) per dimension; limits are exclusive."""
    found = _PLAIN_SLICE.match(lexer.text, lexer.pos)
    if found is not None:
        lexer.jump(found.end())
        return tuple((int(start), int(limit), int(stride or 1)) for start, limit, stride in _PLAIN_RANGE.findall(found[0]))
    lexer.advance()
    return comma_list(lexer, "{", "}", lambda: _slice_range(lexer))


def _slice_range(lexer: Lexer) -> tuple[int, int, int]:
    start = lexer.start
    lexer.expect("[", "at the start of a range like [0:4:1]")
    numbers: list[int] = []
    while lexer.value != "]":
        numbers.append(_integer(lexer))
        if not lexer.take(":"):
            break
        if lexer.value == "]":
            raise lexer.error("expects an integer after ':'")
    lexer.expect("]", "at the end of a range like [0:4:1]")
    if len(numbers) not in (2, 3):
        raise lexer.error(f"expects [start:limit:step] or [start:limit], but sees {len(numbers)} elements.", start)
    return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 1


def _integer(lexer: Lexer) -> int:
    found = _INTEGER.match(lexer.text, lexer.start)
    value = to_int64(found[0]) if found else None
    if found is None or value is None:
        raise lexer.error(f"expects an integer, but sees {lexer.seen()}")
    lexer.jump(found.end())
    return value


def format_slice(value: AttributeValue) -> str:
    """Return `{[0:4], [0:8]}` from (start, limit, stride) per dimension; strides are shown if one of them is not 1."""
    assert isinstance(value, tuple)
    ranges = [item for item in value if isinstance(item, tuple)]
    strided = any(stride != 1 for _, _, stride in ranges)
    shown = (f"[{start}:{limit}:{stride}]" if strided else f"[{start}:{limit}]" for start, limit, stride in ranges)
    return "{" + ", ".join(shown) + "}"


def _pad_rows(lexer: Lexer, counts: tuple[int, ...], message: str) -> list[tuple[int, ...]]:
    """Read `1_2x0_0_1`; `counts` are the allowed lengths of a row."""
    found = _PADS.match(lexer.text, lexer.start)
    rows = [[_in_range(part) for part in row.split("_")] for row in found[0].split("x")] if found else []
    numbers = [tuple(value for value in row if value is not None) for row in rows]
    if found is None or any(len(row) not in counts for row in numbers) or any(None in row for row in rows):
        raise lexer.error(f"{message}, but sees {lexer.seen()}")
    lexer.jump(found.end())
    return numbers


def _in_range(digits: str) -> int | None:
    """Return the integer, or None if it does not fit into a signed 64-bit word."""
    value = to_int64(digits)
    return value if value is None or (value < 0) == digits.startswith("-") or not value else None


def parse_padding(lexer: Lexer) -> AttributeValue:
    """Read `1_2x0_0_1`, and return (low, high, interior) per dimension."""
    lexer.advance()
    rows = _pad_rows(lexer, (2, 3), "expects padding config, e.g., '0_0_0x3_3_1'")
    return tuple(row if len(row) == 3 else (*row, 0) for row in rows)


def format_padding(value: AttributeValue) -> str:
    """Return `1_2x0_0` from (low, high, interior) per dimension; interiors are shown if one of them is not 0."""
    assert isinstance(value, tuple)
    rows = [item for item in value if isinstance(item, tuple)]
    interior = any(row[2] for row in rows)
    return "x".join("_".join(map(str, row if interior else row[:2])) for row in rows)


def parse_pairs(lexer: Lexer) -> AttributeValue:
    """Read `{{0,1},{1,2}}`, and return the pairs."""
    start = lexer.pos
    pairs = parse_int_lists(lexer)
    if any(len(pair) != 2 for pair in pairs):
        raise lexer.error("expects 'source_target_pairs=' to be a list of pairs", start)
    return pairs


def parse_window(lexer: Lexer) -> AttributeValue:
    """Read `{size=3x3 stride=2x2 pad=1_1x0_1 lhs_dilate=1x2 rhs_dilate=2x2 rhs_reversal=1x0}`, with fields in any order."""
    lexer.advance()
    start = lexer.start
    open_brace(lexer, "to start window attribute")
    fields: dict[str, list[tuple[int, ...]]] = {}
    while not (lexer.value == "}" and lexer.kind == "punct"):
        name = attribute_name(lexer)
        if name not in _WINDOW_FIELDS:
            raise lexer.error(f"unexpected attribute name: {name}", hint=f"allowed: {', '.join(_WINDOW_FIELDS)}")
        if name in fields:
            raise lexer.error(f"sub-attribute '{name}=' already exists")
        lexer.advance()
        fields[name] = _WINDOW_FIELDS[name](lexer)
    rank = len(fields.get("size", []))
    for name, rows in fields.items():
        if len(rows) != rank:
            raise lexer.error(f"expects '{name}=' has the same size as 'size='", start)
    lexer.advance()
    return _window(fields, rank)


def extents(lexer: Lexer) -> tuple[int, ...]:
    """Read `3` or `3x3`."""
    found = _EXTENTS.match(lexer.text, lexer.start)
    parts = found[0].split("x") if found else []
    values = [_in_range(part) if len(parts) > 1 else to_int64(part) for part in parts]
    if found is None or None in values:
        raise lexer.error(f"expects extents like 3 or 3x3, but sees {lexer.seen()}")
    lexer.jump(found.end())
    return tuple(value for value in values if value is not None)


def _column(lexer: Lexer) -> list[tuple[int, ...]]:
    return [(value,) for value in extents(lexer)]


def _window_pads(lexer: Lexer) -> list[tuple[int, ...]]:
    return _pad_rows(lexer, (2,), "expects window pad pattern, e.g., '0_0x3_3'")


_WINDOW_FIELDS: dict[str, Callable[[Lexer], list[tuple[int, ...]]]] = {
    "size": _column,
    "stride": _column,
    "pad": _window_pads,
    "lhs_dilate": _column,
    "rhs_dilate": _column,
    "rhs_reversal": _column,
}


def _window(fields: dict[str, list[tuple[int, ...]]], rank: int) -> Window:
    def column(name: str, default: int) -> list[int]:
        return [row[0] for row in fields.get(name, [(default,)] * rank)]

    rows = zip(
        column("size", 1),
        column("stride", 1),
        fields.get("pad", [(0, 0)] * rank),
        column("lhs_dilate", 1),
        column("rhs_dilate", 1),
        column("rhs_reversal", 0),
        strict=False,
    )
    return Window(tuple(WindowDim(s, t, p[0], p[1], b, w, r == 1) for s, t, p, b, w, r in rows))


def parse_dim_labels(lexer: Lexer) -> DimLabels:
    """Read `b01f_01io->b01f`; a missing letter means dimension 0, as in XLA."""
    lexer.advance()
    if lexer.kind != "labels":
        raise lexer.error(f"expects dim labels pattern, e.g., 'bf0_0io->0bf', but sees {lexer.seen()}")
    first, rest = lexer.value.split("_")
    kernel, output = rest.split("->")
    parts = (("lhs", first, "bf"), ("rhs", kernel, "io"), ("output", output, "bf"))
    labels = [_operand_labels(lexer, *part) for part in parts]
    counts = [len(part.spatial_dims) for part in labels]
    if len(set(counts)) > 1:
        shown = ", ".join(map(str, counts))
        raise lexer.error(
            f"input, kernel, and output must have same number of spatial dimensions, but got {shown}, respectively."
        )
    lexer.advance()
    return DimLabels(*labels)


def _operand_labels(lexer: Lexer, part: str, text: str, letters: str) -> OperandLabels:
    named = text.replace("?", "")
    if len(set(named)) != len(named):
        raise lexer.error(f"expects unique {part} dimension numbers, but sees {text}")
    count = sum(char.isdigit() for char in named)
    if any(int(char) >= count if char.isdigit() else char not in letters for char in named):
        raise lexer.error(f"expects [0-{len(text) - 1}{letters}?] in {part} dimension numbers, but sees {text}")
    major, minor = (max(text.find(letter), 0) for letter in letters)
    return OperandLabels(letters, major, minor, tuple(text.index(str(number)) for number in range(count)))
