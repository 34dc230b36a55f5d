"""Mutations of input files for the fuzzing of every format: of texts by tokens, of bytes, and of zip archives by members.

Each mutation is a function of a random generator, the input, and other inputs of the format, from which it may take pieces.
"""

from __future__ import annotations

import io
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence

_TOKEN = re.compile(r"\s+|[A-Za-z_$%@.][\w$.\-]*|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\"(?:[^\"\\\n]|\\.)*\"|.", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_$%@.][\w$.\-]*")
NUMBERS = tuple(
    """0 1 -1 2 3 7 -2 31 32 33 63 64 65 127 128 255 256 1023 1024 1025 65535 65536 2147483647 2147483648 -2147483648 4294967295
    4294967296 9223372036854775807 9223372036854775808 -9223372036854775808 18446744073709551615 18446744073709551616
    99999999999999999999999999 0.5 -0.0 1e39 1e400 -1e400 1e-400 nan inf -inf 0x10 0xffffffffffffffffff 00 1e 1.2.3""".split()
)
_ODD = (
    *(
        "\0",
        "\x7f",
        "\t",
        "\r",
        "\x0b",
        "\x1c",
        "\x85",
        "\xa0",
        "\u2028",
        "\u0663",
        "\xe9",
        "\U0001f600",
        "\ufeff",
        "\\",
        '"',
        "'",
        "`",
    ),
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "<",
        ">",
        ",",
        ";",
        ":",
        "=",
        "#",
        "%",
        "@",
        "!",
        "?",
        "*",
        "/",
        "//",
        "/*",
        "*/",
        "->",
        "...",
    ),
)
_OPENING = {"{": "}", "(": ")", "[": "]", "<": ">"}
# Mostly small. Large depths are beyond Python's limit on recursion.
_DEPTHS = (2, 3, 10, 40, 40, 200, 1500)
_LENGTHS = (10, 300, 5000, 70000)
_EXTREME_BYTES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF, 0x20, 0x0A, 0x08, 0x10)
_MOST_CHARACTERS = 200_000

TextMutation = Callable[[random.Random, str, Sequence[str]], str]
BytesMutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def _edit_token(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Delete, repeat, swap or replace tokens; a replacement comes from the same text or from another one."""
    tokens = _TOKEN.findall(text)
    places = [place for place, token in enumerate(tokens) if not token.isspace()]
    if not places:
        return text
    place, other = rng.choice(places), rng.choice(places)
    way = rng.randrange(5)
    if way == 0:
        del tokens[place]
    elif way == 1:
        tokens.insert(place, tokens[place])
    elif way == 2:
        tokens[place], tokens[other] = tokens[other], tokens[place]
    elif way == 3:
        tokens[place] = tokens[other]
    else:
        tokens[place] = rng.choice([token for token in _TOKEN.findall(rng.choice(others)) if not token.isspace()] or [""])
    return "".join(tokens)


def _edit_place(rng: random.Random, text: str, pattern: re.Pattern[str], new: Callable[[str], str]) -> str:
    places = list(pattern.finditer(text))
    if not places:
        return text
    place = rng.choice(places)
    return text[: place.start()] + new(place[0]) + text[place.end() :]


def _set_number(rng: random.Random, text: str, others: Sequence[str]) -> str:
    del others
    return _edit_place(rng, text, _NUMBER, lambda _: rng.choice(NUMBERS))


def _nudge_number(rng: random.Random, text: str, others: Sequence[str]) -> str:
    del others

    def nudged(found: str) -> str:
        return str(int(found) + rng.choice((-1, 1, 2, 16))) if found.lstrip("-").isdecimal() else rng.choice(NUMBERS)

    return _edit_place(rng, text, _NUMBER, nudged)


def _replace_word(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Replace a word by one of another text: of types, opcodes and keywords most are valid in other places."""
    words = _WORD.findall(rng.choice(others))
    return _edit_place(rng, text, _WORD, lambda found: rng.choice(words or [found]))


def _long_word(rng: random.Random, text: str, others: Sequence[str]) -> str:
    del others
    return _edit_place(rng, text, _WORD, lambda found: found * (rng.choice(_LENGTHS) // max(1, len(found)) + 1))


def _insert_odd(rng: random.Random, text: str, others: Sequence[str]) -> str:
    del others
    place = rng.randint(0, len(text))
    return text[:place] + rng.choice(_ODD) * rng.choice((1, 1, 1, 2, 9)) + text[place + rng.choice((0, 0, 1)) :]


def _nest(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Repeat an opening bracket, and mostly its closing one as well."""
    del others
    depth, closes = rng.choice(_DEPTHS), rng.random() < 0.8
    places = [place for place, character in enumerate(text) if character in _OPENING]
    if not places:
        return text
    place = rng.choice(places)
    closing = text.find(_OPENING[text[place]], place)
    opened = text[:place] + text[place] * depth
    if closing < 0 or not closes:
        return opened + text[place:]
    return opened + text[place:closing] + text[closing] * depth + text[closing:]


def _edit_line(rng: random.Random, text: str, others: Sequence[str]) -> str:
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    way = rng.randrange(5)
    if way == 0:
        del lines[place]
    elif way == 1:
        lines.insert(rng.randint(0, len(lines)), lines[place])
    elif way == 2:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif way == 3:
        lines[place:place] = [lines[place]] * rng.choice((2, 50, 1000))
    else:
        lines.insert(place, rng.choice(rng.choice(others).split("\n")))
    return "\n".join(lines)


def _splice(rng: random.Random, text: str, others: Sequence[str]) -> str:
    other = rng.choice(others)
    return text[: rng.randint(0, len(text))] + other[rng.randint(0, len(other)) :]


def _truncate(rng: random.Random, text: str, others: Sequence[str]) -> str:
    del others
    return text[: rng.randint(0, len(text))] if rng.random() < 0.7 else text[rng.randint(0, len(text)) :]


_TEXT_MUTATIONS: tuple[TextMutation, ...] = (
    *(_edit_token,) * 6,
    *(_set_number,) * 3,
    _nudge_number,
    *(_replace_word,) * 3,
    _long_word,
    *(_insert_odd,) * 2,
    _nest,
    *(_edit_line,) * 3,
    _splice,
    _truncate,
)


def mutate_text(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Return the text after one to three mutations, with pieces of `others`."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = rng.choice(_TEXT_MUTATIONS)(rng, text, others)
        text = changed if len(changed) < _MOST_CHARACTERS else text
    return text


def encode(rng: random.Random, text: str) -> bytes:
    """Return a text as UTF-8, once in a while with a mutation of its bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, data, [data]) if rng.random() < 0.03 else data


def _flip(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    del others
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_byte(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    del others
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.choice((*_EXTREME_BYTES, rng.randrange(256)))]) + data[place + 1 :]


def _set_integer(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace 2, 4 or 8 bytes by an extreme integer, as sizes and offsets are."""
    del others
    code = rng.choice("HIQ")
    size = struct.calcsize(code)
    value = rng.choice((0, 1, (1 << 8 * size) - 1, 1 << (8 * size - 1), (1 << (8 * size - 1)) - 1, 256, len(data), len(data) + 1))
    place = rng.randrange(len(data))
    return data[:place] + struct.pack("<" + code, value % (1 << 8 * size)) + data[place + size :]


def _move_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Delete, repeat or replace a span; a replacement comes from another input."""
    length, place = rng.choice((1, 2, 3, 4, 8, 16, 64)), rng.randrange(len(data))
    way = rng.randrange(3)
    if way == 0:
        return data[:place] + data[place + length :]
    if way == 1:
        return data[: place + length] + data[place:]
    other = rng.choice(others)
    start = rng.randint(0, len(other))
    return data[:place] + other[start : start + length] + data[place + length :]


def _splice_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _truncate_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    del others
    return data[: rng.randint(0, len(data))]


_BYTES_MUTATIONS: tuple[BytesMutation, ...] = (
    *(_flip,) * 3,
    *(_set_byte,) * 3,
    *(_set_integer,) * 2,
    *(_move_bytes,) * 2,
    _splice_bytes,
    _truncate_bytes,
)


def mutate_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return the bytes after one to three mutations, with pieces of `others`."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if data:
            data = rng.choice(_BYTES_MUTATIONS)(rng, data, others)
    return data


_NPY_MAGIC_BYTES = 10
_NPY_HEADER = re.compile(rb"\{.*\}")


def mutate_npy(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mutate an `.npy` file: mostly the text of its header, with a right size of it, else any bytes."""
    header = _NPY_HEADER.search(data)
    if header is None or rng.random() < 0.4:
        return mutate_bytes(rng, data, others)
    texts = [found[0].decode("latin-1") for other in others if (found := _NPY_HEADER.search(other))]
    changed = mutate_text(rng, header[0].decode("latin-1"), texts).encode("utf-8", "replace") + b"\n"
    if len(changed) > 0xFFFF:
        return data
    return data[: _NPY_MAGIC_BYTES - 2] + struct.pack("<H", len(changed)) + changed + data[header.end() + 1 :]


def mutate_npz(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mutate an `.npz` file: mostly one of its members or their names, in an archive with right checksums, else any bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, others)
    entries = members(data)
    foreign = [content for other in others for _, content in members(other)]
    way, place = rng.random(), rng.randrange(len(entries))
    name, content = entries[place]
    if way < 0.6:
        entries[place] = (name, mutate_npy(rng, content, foreign))
    elif way < 0.7:
        del entries[place]
    elif way < 0.8:
        entries.append((name, rng.choice(foreign)))
    elif way < 0.9:
        entries[place] = (mutate_text(rng, name, [name])[:60000], content)
    else:
        entries[place] = (name, rng.choice(foreign))
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(packed, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of equal names
        for name, content in entries:
            try:
                archive.writestr(zipfile.ZipInfo(name or "x"), content)
            except UnicodeEncodeError:
                continue
    return packed.getvalue()


def members(data: bytes) -> list[tuple[str, bytes]]:
    """Return (name, content) of every member of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]
