"""Read XLA's protobuf messages, binary and text: find the message type of a file, its module and its arguments.

Message types come from the schemas inside jaxlib's shared library, so they fit the jaxlib that converts the module.
The protobuf package parses binary and text.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from hlo_run.errors import ParseError, UsageError, Where
from hlo_run.formats.proto_literals import literal_of_proto
from hlo_run.formats.snapshot_stream import read_stream
from hlo_run.formats.xla import INSTALL_HINT, require
from hlo_run.hlo.values.literal import Literal

# Message types are created at run time.
Message: TypeAlias = Any

_ROOT = "xla/service/hlo.proto"
# In the order in which XLA's loader tries them, each with the path to its module.
_KINDS = (
    ("xla.HloSnapshot", ("hlo", "hlo_module")),
    ("xla.HloUnoptimizedSnapshot", ("hlo_module",)),  # reads an HloProto as well
    ("xla.HloModuleProto", ()),
)


class ProtoContents(Struct, frozen=True):
    """A file's module as a serialized HloModuleProto, and the arguments of a snapshot; None for other messages."""

    module: bytes
    arguments: tuple[Literal, ...] | None


def read_binary(data: bytes, file: str) -> ProtoContents:
    """Read an HloSnapshot, HloUnoptimizedSnapshot (also XLA's stream of one), HloProto or HloModuleProto.

    Raises ParseError for other data.
    """
    _require_protobuf(file)
    from google.protobuf.message import DecodeError

    types = message_types(file)
    for name, path in _KINDS:
        try:
            message = types(name).FromString(data)
        except DecodeError:
            continue
        if (contents := _contents(message, path)) is not None:
            return contents
    stream = read_stream(data, types("xla.HloUnoptimizedSnapshot"))
    if stream is not None and (contents := _contents(stream, ("hlo_module",))) is not None:
        return contents
    hint = "the file may be cut off, or of another format"
    raise ParseError(f"'{file}' is not an HloSnapshot, HloProto or HloModuleProto", hint=hint)


def read_text(text: str, file: str) -> ProtoContents:
    """Read the same messages in protobuf's text format; raises ParseError if the text is none of them."""
    _require_protobuf(file)
    from google.protobuf import text_format

    types = message_types(file)
    refusals: list[text_format.ParseError] = []
    for name, path in _KINDS:
        try:
            message = text_format.Parse(text, types(name)())
        except text_format.ParseError as refusal:
            refusals.append(refusal)
            continue
        except ValueError as problem:  # the number of an enum that 32 bits cannot hold
            raise ParseError(f"'{file}' cannot be read: {problem}") from None
        except RecursionError:
            raise ParseError(f"'{file}' cannot be read: messages are nested too deeply") from None
        if (contents := _contents(message, path)) is not None:
            return contents
    if len(refusals) < len(_KINDS):
        raise ParseError(f"'{file}' does not contain a module")
    # Report the error of the message type that was parsed furthest.
    raise _text_error(max(refusals, key=lambda refusal: (refusal.GetLine() or 0, refusal.GetColumn() or 0)), text, file)


def proto_to_text(module: bytes, file: str) -> str:
    """Return a serialized HloModuleProto as the text format of an HloProto."""
    _require_protobuf(file)
    from google.protobuf import text_format

    message = message_types(file)("xla.HloProto")()
    message.hlo_module.ParseFromString(module)
    return text_format.MessageToString(message)


def module_ids(module: bytes) -> dict[str, tuple[int, dict[str, int]]]:
    """Return the id of each computation of a serialized HloModuleProto and the ids of its instructions, all by name.

    Raises UsageError if jaxlib or protobuf is missing.
    """
    message = message_types("the module")("xla.HloModuleProto").FromString(module)
    return {c.name: (c.id, {i.name: i.id for i in c.instructions}) for c in message.computations}


def _contents(message: Message, path: tuple[str, ...]) -> ProtoContents | None:
    """Return the contents of a message, or None if it has no instructions: protobuf accepts other data as any type."""
    module = functools.reduce(getattr, path, message)
    if not any(computation.instructions for computation in module.computations):
        return None
    literals = tuple(
        literal_of_proto(literal, f"argument {number} of the snapshot") for number, literal in enumerate(_arguments(message))
    )
    return ProtoContents(module.SerializeToString(deterministic=True), literals or None)


def _arguments(message: Message) -> Sequence[Message]:
    """Return the argument literals of a snapshot; with several partitions the literals of the first."""
    if message.DESCRIPTOR.name == "HloUnoptimizedSnapshot":
        return message.partitions[0].arguments if message.partitions else ()
    return message.arguments if message.DESCRIPTOR.name == "HloSnapshot" else ()


def _text_error(refusal: Any, text: str, file: str) -> ParseError:
    line, column = refusal.GetLine() or 1, refusal.GetColumn() or 1
    lines = text.splitlines()
    message = re.sub(r"^\d+:\d+ : ", "", str(refusal)).partition("\n")[0]
    return ParseError(message, Where(file, line, column, lines[line - 1] if line <= len(lines) else ""))


@functools.cache
def schema_pool() -> Any:
    """Return a pool of the message types of jaxlib's HLO schema; raises UsageError if this jaxlib does not carry it."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    known: set[str] = set()

    def add(name: str, library: mmap.mmap) -> None:
        if name in known:
            return
        known.add(name)
        found = max(_schemas(library, name), key=len, default=b"")
        schema = descriptor_pb2.FileDescriptorProto.FromString(found)
        for dependency in schema.dependency:
            add(dependency, library)
        pool.Add(schema)

    for path in _libraries():
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            if next(_schemas(library, _ROOT), None):
                add(_ROOT, library)
                return pool
    raise UsageError("this jaxlib does not carry the schema of HloProto", hint=INSTALL_HINT)


def message_types(file: str) -> Callable[[str], Message]:
    """Return the function from message name to message type; raises UsageError if a package is missing."""
    require("jaxlib", f"'{file}'")
    _require_protobuf(file)
    from google.protobuf import message_factory

    pool = schema_pool()

    def message_type(name: str) -> Message:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

    return message_type


def _require_protobuf(file: str) -> None:
    # Looking up a module in a package that is missing raises an error.
    for package in ("google", "google.protobuf"):
        require(package, f"'{file}'")


def _libraries() -> list[Path]:
    """Return jaxlib's shared libraries, the largest first, as it has the schemas."""
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None, "`require` has checked it"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = [path for folder in folders for path in folder.iterdir() if path.suffix in (".so", ".dylib", ".dll", ".pyd")]
    return sorted(found, key=lambda path: -path.stat().st_size)


def _schemas(library: mmap.mmap, name: str) -> Iterator[bytes]:
    """Yield every serialized FileDescriptorProto of the file `name` in a library's data."""
    # A schema begins with its first field, the name. Its fields are in ascending order; zeros or another schema follow.
    key = b"\n" + bytes([len(name)]) + name.encode()
    start = library.find(key)
    while start >= 0:
        yield library[start : _schema_end(library, start)]
        start = library.find(key, start + 1)


_NAME, _SYNTAX, _LENGTH_DELIMITED = 1, 12, 2


def _schema_end(library: mmap.mmap, start: int) -> int:
    position, last = start, 0
    while position < len(library):
        field, kind = library[position] >> 3, library[position] & 7
        if kind != _LENGTH_DELIMITED or not max(last, _NAME) <= field <= _SYNTAX or (field == _NAME and last):
            break
        size, after = _varint(library, position + 1)
        position, last = after + size, field
    return min(position, len(library))


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position after it."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    return value, position
