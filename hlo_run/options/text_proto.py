"""Reads the fields of a text proto: scalars and lists of scalars. Messages inside it are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hlo_run.errors import UsageError, Where

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>-?[\w.+-]+)|(?P<mark>[:{}<>\[\],;])"""
)
_ENDS = {"{": "}", "<": ">"}
# A word that is longer is cut in messages.
_MOST_SHOWN = 80


def text_proto_fields(text: str, what: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, values) of the fields in order; a message has the value of none.

    Raises UsageError for malformed text, with its line. `what` names the file in errors.
    """
    tokens = list(_tokens(text, what))
    place = 0

    def fail(position: int, wanted: str) -> UsageError:
        found = tokens[position][1] if position < len(tokens) else "the end"
        return _error(
            text, what, tokens[position][2] if position < len(tokens) else len(text), f"expected {wanted}, found {_short(found)}"
        )

    while place < len(tokens):
        kind, name, _ = tokens[place]
        if kind != "word" or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise fail(place, "the name of a flag")
        place += 1
        has_colon = place < len(tokens) and tokens[place][1] == ":"
        place += has_colon
        if place < len(tokens) and tokens[place][1] in _ENDS:
            place = _after_message(tokens, place)
            if place > len(tokens):
                raise fail(place, "the end of a message")
            yield name, []
        elif not has_colon:
            raise fail(place, f"':' after {_short(name)}")
        elif place < len(tokens) and tokens[place][1] == "[":
            values: list[str] = []
            place += 1
            while place < len(tokens) and tokens[place][0] != "mark":
                values.append(_value(tokens[place]))
                place += 1
                place += place < len(tokens) and tokens[place][1] == ","
            if place >= len(tokens) or tokens[place][1] != "]":
                raise fail(place, "']'")
            place += 1
            yield name, values
        elif place < len(tokens) and tokens[place][0] != "mark":
            value = _value(tokens[place])
            place += 1
            while place < len(tokens) and tokens[place][0] == tokens[place - 1][0] == "string":  # adjacent strings are one
                value += _value(tokens[place])
                place += 1
            yield name, [value]
        else:
            raise fail(place, f"the value of {_short(name)}")
        place += place < len(tokens) and tokens[place][1] in (",", ";")


def _short(word: str) -> str:
    return word if len(word) <= _MOST_SHOWN else word[:_MOST_SHOWN] + "..."


def _tokens(text: str, what: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, text, position) of every token."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _error(text, what, position, f"unexpected {text[position]}")
        kind = match.lastgroup or ""
        if kind != "skip":
            yield kind, match[0], position
        position = match.end()


def _value(token: tuple[str, str, int]) -> str:
    kind, text, _ = token
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if kind == "string" else text


def _after_message(tokens: list[tuple[str, str, int]], place: int) -> int:
    """Return the place after the message that begins at `place`; beyond the last token + 1 if it has no end."""
    ends: list[str] = []
    while place < len(tokens):
        text = tokens[place][1] if tokens[place][0] == "mark" else ""
        place += 1
        if text in _ENDS:
            ends.append(_ENDS[text])
        elif ends and text == ends[-1]:
            ends.pop()
            if not ends:
                return place
    return len(tokens) + 1


def _error(text: str, what: str, position: int, message: str) -> UsageError:
    line = text.count("\n", 0, position) + 1
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    source = text[begin : end if end >= 0 else len(text)]
    path = what.partition("'")[2].rstrip("'")
    return UsageError(
        f"{what}, line {line}: {message}", Where(path, line, position - begin + 1, source), hint="write NAME: VALUE"
    )
