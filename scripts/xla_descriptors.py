"""Read the protobuf descriptors that a shared object of XLA holds.

A program with protobuf messages has each of its `.proto` files as a serialised FileDescriptorProto. `read_files` finds them by
their first field, the file's name, and the fields after it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

_NAME = re.compile(rb"\x0a[\x08-\x7f](?=(?:xla|tsl|stream_executor)/[\w/.\-]+?\.proto)")
_LAST_FIELD = 14


def read_files(library: Path) -> dict[str, Any]:
    """Return the FileDescriptorProto of each file of XLA, by its name."""
    data = library.read_bytes()
    found: dict[str, Any] = {}
    for match in _NAME.finditer(data):
        start = match.start()
        if not data[start + 2 : start + 2 + data[start + 1]].endswith(b".proto"):
            continue
        file = descriptor_pb2.FileDescriptorProto()
        try:
            file.ParseFromString(data[start : _end(data, start)])
        except DecodeError:  # the bytes only look like the beginning of a file
            continue
        if file.message_type or file.enum_type:
            found[file.name] = file
    return found


def _end(data: bytes, start: int) -> int:
    """Return the end of the fields of one file; the next file begins with a name again."""
    position = start
    while position < len(data):
        tag, place = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if not 1 <= field <= _LAST_FIELD or (field == 1 and position != start) or wire not in (0, 2):
            break
        length, place = _varint(data, place)
        position = place + length if wire == 2 else place
    return position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
