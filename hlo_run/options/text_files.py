"""Reads the files of a command line, up to a bound: a device such as /dev/zero has no end."""

from __future__ import annotations

import io
import os
import stat
from typing import BinaryIO

from hlo_run.errors import UsageError

# Protobuf refuses larger messages, and no text of this size can be parsed in the memory of a usual machine.
_MOST_BYTES_OF_FILE = (1 << 31) - 1
# A pipe or device does not tell its size, so it is read until the bound.
_MOST_BYTES_OF_STREAM = 1 << 30
_CHUNK = 1 << 24


def read_text(path: str, what: str) -> str:
    """Return the text of a UTF-8 file; raises UsageError with a message that begins with `what`, the flag."""
    data = read_bytes(path, f"{what} '{path}'")
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UsageError(f"{what} '{path}' is not a text file") from None


def read_bytes(path: str, what: str) -> bytes:
    """Return the bytes of a file; raises UsageError with a message that begins with `what`, the flag and the path."""
    try:
        with open(path, "rb") as stream:
            return read_stream(stream, what)
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {os.strerror(error.errno or 0)}") from None


def read_stream(stream: BinaryIO, what: str) -> bytes:
    """Return all bytes of a file, pipe or device. Raises UsageError for a file of 2 GiB or more, or a pipe with more than 1 GiB.

    Raises OSError if reading fails.
    """
    size = _size_of_file(stream)
    if size is not None:
        if size > _MOST_BYTES_OF_FILE:
            raise UsageError(f"{what} is too large: {size} bytes, the most is {_MOST_BYTES_OF_FILE}")
        return stream.read()
    data = bytearray()
    while chunk := stream.read(_CHUNK):
        data += chunk
        if len(data) > _MOST_BYTES_OF_STREAM:
            hint = "write its contents to a file, if it has an end"
            raise UsageError(f"{what} is a pipe or device with more than {_MOST_BYTES_OF_STREAM} bytes", hint=hint)
    return bytes(data)


def _size_of_file(stream: BinaryIO) -> int | None:
    """Return the size of a regular file; None for a pipe, a device, and a stream that is none of the system's."""
    try:
        status = os.fstat(stream.fileno())
    except io.UnsupportedOperation:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
