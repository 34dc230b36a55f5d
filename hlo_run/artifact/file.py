"""Saves an Executable to a file and loads it: a header with a digest, the records as JSON, then the byte strings.

    HLOX | version | size of the JSON | size of the bytes | SHA-256 of JSON and bytes | JSON | bytes

Loading executes nothing from the file. The JSON holds a digest of the record types and their fields. `load` rejects a file of
another version, a file that is truncated or changed, and records that contradict their types or one another.
docs/security.md says what a run of such a file may do.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from hlo_run.artifact import schema
from hlo_run.artifact.executable import Executable
from hlo_run.artifact.structure import check_structure
from hlo_run.errors import Unsupported, UsageError

VERSION = 1
_MAGIC = b"HLOX"
_HEAD = struct.Struct("<4sIQQ32s")
_MOST_CHARACTERS = 300


def save(program: Executable) -> bytes:
    """Return the file's bytes. Equal executables give equal bytes. Raises Unsupported for very deep control flow."""
    blobs: list[bytes] = []
    text = json.dumps({"fields": schema.digest(), "executable": _encode(program, blobs)}, separators=(",", ":")).encode()
    data = b"".join(blobs)
    digest = hashlib.sha256(text + data).digest()
    return _HEAD.pack(_MAGIC, VERSION, len(text), len(data), digest) + text + data


def load(data: bytes, file: str) -> Executable:
    """Return the executable in `data`; `file` is the name for messages.

    Raises UsageError if the file is not an executable, is of another version, or is damaged.
    """
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise UsageError(f"'{file}' is not an executable of hlo-run", hint="hlo-run --output=FILE.hlox writes one")
    _, version, text_size, blob_size, digest = _HEAD.unpack_from(data)
    if version != VERSION:
        raise _other_version(file)
    rest = data[_HEAD.size :]
    if len(rest) != text_size + blob_size or hashlib.sha256(rest).digest() != digest:
        raise UsageError(f"'{file}' is damaged: its contents do not match the digest in its header")
    return _checked(file, lambda: _decoded(rest[:text_size], rest[text_size:], file))


def _other_version(file: str) -> UsageError:
    return UsageError(f"'{file}' was written by another version of hlo-run", hint="compile the module again")


def _encode(value: object, blobs: list[bytes], depth: int = 0) -> object:
    """Return JSON for a value: records as [name, field, ..], tuples as [0, ..], byte strings as [1, size]."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        blobs.append(value)
        return [schema.BYTES, len(value)]
    if depth >= schema.MOST_NESTED:
        raise Unsupported("the executable's control flow is nested too deeply to be saved")
    if isinstance(value, tuple):
        return [schema.TUPLE, *[_encode(part, blobs, depth + 1) for part in cast("tuple[object, ...]", value)]]
    assert isinstance(value, Struct), "other values are in records"
    name = type(value).__name__
    assert name in schema.RECORDS, f"{name} is a record of an executable"
    return [name, *[_encode(getattr(value, field), blobs, depth + 1) for field in value.__struct_fields__]]


def _decoded(text: bytes, data: bytes, file: str) -> Executable:
    found: object = json.loads(text)
    content = cast("dict[object, object]", found) if isinstance(found, dict) else {}
    if set(content) != {"fields", "executable"}:
        raise ValueError("its content is not an executable")
    if content["fields"] != schema.digest():
        raise _other_version(file)
    blobs = schema.Blobs(data)
    program = schema.decode(Executable, content["executable"], blobs)
    if not blobs.is_used_up:
        raise ValueError("it has bytes that no record names")
    check_structure(program)
    return program


def _checked(file: str, work: Callable[[], Executable]) -> Executable:
    """Run `work`; turn the errors of wrong records into UsageError."""
    try:
        return work()
    except RecursionError:
        raise UsageError(f"'{file}' is not a valid executable: its records are nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"'{file}' is not a valid executable: {str(error)[:_MOST_CHARACTERS]}") from error
