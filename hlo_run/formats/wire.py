"""Encodes fields of protobuf messages, for files that need no schema."""

from __future__ import annotations

import struct


def varint(number: int, value: int) -> bytes:
    """Return the field `number` of a message with a non-negative integer."""
    return base128(number << 3) + base128(value)


def double(number: int, value: float) -> bytes:
    """Return the field `number` of a message with a double."""
    return base128(number << 3 | 1) + struct.pack("<d", value)


def delimited(number: int, data: bytes | str) -> bytes:
    """Return the field `number` of a message with a string, bytes or another message."""
    content = data.encode() if isinstance(data, str) else data
    return base128(number << 3 | 2) + base128(len(content)) + content


def base128(value: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))
