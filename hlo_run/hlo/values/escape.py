"""Strings in HLO text: C escapes, and unquoted JSON dictionaries."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]+)|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.)|$)", re.DOTALL)
_NAMED = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "?": 63, "'": 39, '"': 34}
_SHOWN = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*")
# One step inside a JSON dictionary: a string, a brace, or a run of anything else.
_JSON = re.compile(r"""("(?:[^"\\]|\\.)*+")|([{}])|[^"{}]++""", re.DOTALL)


def unescape(text: str) -> str | None:
    """Return `text` without C escapes, or None if one is invalid; bytes that are not UTF-8 become surrogate escapes."""
    if "\\" not in text:
        return text
    result = bytearray()
    end = 0
    for found in _ESCAPE.finditer(text):
        result += _to_bytes(text[end : found.start()])
        piece = _escaped_bytes(found)
        if piece is None:
            return None
        result += piece
        end = found.end()
    result += _to_bytes(text[end:])
    return result.decode("utf-8", "surrogateescape")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _escaped_bytes(found: re.Match[str]) -> bytes | None:
    octal, hexadecimal, short, long, named = found.groups()
    if named is not None:
        return bytes([_NAMED[named]]) if named in _NAMED else None
    if octal or hexadecimal:
        value = int(octal, 8) if octal else int(hexadecimal, 16)
        return bytes([value]) if value < 256 else None
    if not (short or long):
        return None
    code = int(short or long, 16)
    return chr(code).encode() if code < 0x110000 and not 0xD800 <= code < 0xE000 else None


def escape(text: str) -> str:
    """Return `text` with C escapes for quotes, backslashes, and (in octal) every byte outside printable ASCII."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        _SHOWN[byte] if byte in _SHOWN else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in _to_bytes(text)
    )


def json_dict_end(text: str, begin: int) -> int | None:
    """Return the position after the dictionary that begins at `begin`, or None if it has no end; skips quoted braces."""
    depth, pos = 0, begin
    while found := _JSON.match(text, pos):
        pos = found.end()
        if found[2]:
            depth += 1 if found[2] == "{" else -1
            if not depth:
                return pos
    return None
