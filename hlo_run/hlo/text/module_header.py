"""Parse the first line of a module: its name and attributes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from hlo_run.hlo.attributes.lexer import FOREIGN, Lexer
from hlo_run.hlo.attributes.records import parse_frontend_attributes
from hlo_run.hlo.attributes.table import AttributeValue, RawText
from hlo_run.hlo.attributes.text import parse_bool, parse_entry_layout, parse_int, parse_raw, parse_string_or_json
from hlo_run.hlo.values.braces import braces

_Index: TypeAlias = "tuple[int, ...]"

_BLANK = r"\s*"
_INDEX = r"\{\s*((?:\d{1,18}\s*(?:,\s*\d{1,18}\s*)*)?)\}"
_ALIAS = re.compile(
    rf"\s*{_INDEX}\s*:\s*(?:\(\s*(\d{{1,18}})\s*,\s*{_INDEX}\s*(?:,\s*(may-alias|must-alias)\s*)?\)|(\d{{1,18}}))\s*(,?)"
)
_RECORD = r"\{[^{}]*\}"
_RECORDS = rf"\(\s*{_RECORD}\s*(?:,\s*{_RECORD}\s*)*\)"
_DEBUGGED = re.compile(rf'\s*\{{\s*"([^"\n]*)"\s*(?:{_INDEX})?\s*\}}\s*:\s*({_RECORD}|{_RECORDS})\s*(,?)')
_DEBUG_FIELDS = ("log_mode", "callback_id", "op_id", "partitioned")
_DONOR = re.compile(rf"\s*\(\s*(\d{{1,18}})\s*,\s*{_INDEX}\s*\)\s*(,?)")


def parse_flags(lexer: Lexer) -> tuple[bool, ...]:
    """Read `true` or `{true,false}`."""
    start = lexer.pos
    raw = lexer.raw_value()
    inner = raw[1:-1] if raw.startswith("{") else raw
    words = inner.split(",")
    words = [word.strip() for word in words if len(words) > 1 or word.strip()]
    if FOREIGN.search(raw) or any(word not in ("true", "false") for word in words):
        raise lexer.error("expects true or false, or a list of them like {true,false}", start)
    return tuple(word == "true" for word in words)


def parse_alias(lexer: Lexer) -> RawText:
    """Read `{ {0}: (1, {}, may-alias), .. }`; return it with entries sorted by output, each with its kind."""
    found: dict[_Index, str] = {}
    for output, parameter, index, kind, whole in _entries(lexer, _ALIAS, "{1}: (0, {}, may-alias)"):
        if whole:
            raise lexer.error("expects an alias like {1}: (0, {}, may-alias)")
        entry = f"({int(parameter)}, {_index_text(index)}, {kind or 'may-alias'})"
        found.setdefault(_index(output), entry)
    return RawText("{ " + ", ".join(f"{braces(output)}: {found[output]}" for output in sorted(found)) + " }" if found else "{}")


def parse_donors(lexer: Lexer) -> RawText:
    """Read `{ (0, {1}), .. }`; return it with donors sorted, each once."""
    donors = sorted({(int(parameter), _index(index)) for parameter, index in _entries(lexer, _DONOR, "(0, {1})")})
    return RawText("{ " + ", ".join(f"({parameter}, {braces(index)})" for parameter, index in donors) + " }" if donors else "{}")


def _entries(lexer: Lexer, entry: re.Pattern[str], example: str) -> list[tuple[str, ...]]:
    """Return the regex groups of each entry in the braces, without the comma."""
    begin = lexer.pos
    raw = re.sub(r"/\*.*?\*/", " ", lexer.raw_value(), flags=re.DOTALL)
    if FOREIGN.search(raw):
        raise lexer.error(f"expects entries like {example} in braces", begin)
    rows: list[tuple[str, ...]] = []
    pos = 1
    while found := entry.match(raw, pos):
        *groups, comma = found.groups()
        rows.append(tuple(group or "" for group in groups))
        pos = found.end()
        if not comma:
            break
    if raw[:1] != "{" or raw[pos:].strip() != "}":
        raise lexer.error(f"expects entries like {example} in braces", begin)
    return rows


def _index(text: str) -> _Index:
    return tuple(int(part) for part in text.split(",")) if text.strip() else ()


def _index_text(text: str) -> str:
    return braces(_index(text))


def parse_debug_attributes(lexer: Lexer) -> RawText:
    """Read `{ {"a"} : {op_id=1}, .. }`, or several records in parentheses; return it as XLA prints it, an entry per line."""
    start = lexer.pos
    raw = lexer.raw_value()
    text, pos, lines = raw.strip(), 1, list[str]()
    while found := _DEBUGGED.match(text, pos):
        name, index, records, comma = found.groups()
        shown = ",".join(_debug_record(lexer, record, start) for record in re.findall(r"\{([^{}]*)\}", records))
        lines.append(f'  {{"{name}"{f" {_index_text(index)}" if (index or "").strip() else ""}}}:({shown})')
        pos = found.end()
        if not comma:
            break
    if text[:1] != "{" or text[pos:].strip() != "}":
        raise lexer.error('expects entries like {"a"} : {op_id=1} in braces', start)
    return RawText("{\n" + ",\n".join(lines) + "\n}" if lines else "{}")


def _debug_record(lexer: Lexer, record: str, start: int) -> str:
    fields = [tuple(part.strip() for part in field.partition("=")[::2]) for field in record.split(",") if field.strip()]
    unknown = next((name for name, _ in fields if name not in _DEBUG_FIELDS), None)
    if unknown is not None:
        raise lexer.error(f"Unknown debug attribute: {unknown}", start, hint=f"known: {', '.join(_DEBUG_FIELDS)}")
    return "{" + ",".join(f"{name}={value}" for name, value in sorted(fields, key=lambda f: _DEBUG_FIELDS.index(f[0]))) + "}"


HEADER_ATTRIBUTES: dict[str, Callable[[Lexer], AttributeValue]] = {
    "is_scheduled": parse_bool,
    "alias_passthrough_params": parse_bool,
    "replica_count": parse_int,
    "num_partitions": parse_int,
    "entry_computation_layout": parse_entry_layout,
    "frontend_attributes": parse_frontend_attributes,
    "input_output_alias": parse_alias,
    "buffer_donor": parse_donors,
    "allow_spmd_sharding_propagation_to_parameters": parse_flags,
    "allow_spmd_sharding_propagation_to_output": parse_flags,
    "origin_recovery_table": parse_raw,
    "debug_attributes": parse_debug_attributes,
    "backend_config": parse_string_or_json,
}


def parse_header(lexer: Lexer) -> tuple[str, dict[str, AttributeValue]]:
    """Read the header, whose `HloModule` is the current token; return the name and the attributes."""
    lexer.advance()
    if not lexer.at_name:
        raise lexer.error(f"expects a module name, but sees {lexer.seen()}")
    name = lexer.value
    lexer.advance()
    attributes: dict[str, AttributeValue] = {}
    while lexer.take(","):
        attribute = lexer.value
        if lexer.kind != "attr":
            raise lexer.error(f"expects a module attribute, but sees {lexer.seen()}")
        if attribute in attributes:
            raise lexer.error(f"attribute {attribute} already exists")
        if attribute not in HEADER_ATTRIBUTES:
            raise lexer.error(f'unexpected attribute "{attribute}". Allowed attributes: {", ".join(sorted(HEADER_ATTRIBUTES))}')
        attributes[attribute] = HEADER_ATTRIBUTES[attribute](lexer)
    return name, attributes
