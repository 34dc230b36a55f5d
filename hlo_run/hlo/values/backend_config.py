"""Converts the text of a backend_config to its record.

XLA reads configs as the JSON of protobuf messages, which also takes bare keys (`{kind:"x"}`), text in single quotes, a comma
before a closing bracket, and a field's name in camel case (`knownTripCount`). All these give the same record.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*")
    |'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<key>[A-Za-z_$][\w$]*)(?=\s*:)
    |(?P<comma>,)(?=\s*[}\]])""",
    re.VERBOSE | re.DOTALL,
)
_CAMEL_KEY = re.compile(r'"[a-z]\w*[A-Z]\w*"\s*:')
_HUMP = re.compile(r"[A-Z]")


def read_config(text: str) -> dict[str, Any]:
    """Return the record. It is empty unless the text begins with a brace. Raises ValueError if braces hold anything else."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        config: Any = json.loads(text)
    except ValueError as error:
        strict = _TOKEN.sub(_strict, text)
        if strict == text:
            raise
        try:
            config = json.loads(strict)
        except ValueError:
            raise error from None
        text = strict
    return cast("dict[str, Any]", _snake(config) if _CAMEL_KEY.search(text) else config)


def config_of(text: str) -> dict[str, Any]:
    """Return the record of a text; empty if it cannot be read."""
    try:
        return read_config(text)
    except ValueError:
        return {}


def _strict(token: re.Match[str]) -> str:
    """Return a token as strict JSON writes it."""
    if token["key"] is not None:
        return f'"{token["key"]}"'
    if token["single"] is not None:
        return '"' + re.sub(r'\\\'|"', lambda quote: "'" if len(quote[0]) > 1 else '\\"', token["single"]) + '"'
    return "" if token["comma"] else token["text"]


def _snake(value: Any) -> Any:
    match value:
        case {**fields}:
            return {_HUMP.sub(lambda hump: f"_{hump[0].lower()}", str(name)): _snake(inner) for name, inner in fields.items()}
        case [*elements]:
            return [_snake(element) for element in elements]
        case _:
            return value


class _Literal(str):
    """A number as it is written."""


def sorted_config(text: str) -> str:
    """Return the text with the keys of all its records in alphabetic order, or unchanged if it is not JSON."""
    try:
        value = json.loads(text, parse_float=_Literal, parse_int=_Literal)
    except ValueError:
        return text
    return _serialized(value)


def _serialized(value: Any) -> str:
    match value:
        case _Literal():
            return str(value)
        case {**entries}:
            return "{" + ",".join(sorted(f"{json.dumps(key)}:{_serialized(inner)}" for key, inner in entries.items())) + "}"
        case [*elements]:
            return "[" + ",".join(_serialized(element) for element in elements) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
