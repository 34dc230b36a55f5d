"""An Executable as a file: its records as JSON, its byte strings behind them, a digest of both in front.

    HLOX | version | size of the JSON | size of the bytes | SHA-256 of JSON and bytes | JSON | bytes

Nothing in it is executed when it is read. A run launches its PTX, and on Host its machine code, if it has some for this
processor: such a file is a program, to be trusted as one. The JSON names the fields that the records of this program have; a
file of another version is refused, as is one that was cut off or changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, cast

from hlo_run.artifact import buffers, collective_thunks, executable, library_thunks, thunks
from hlo_run.artifact.access import accesses, tree_slices
from hlo_run.artifact.buffers import BufferSlice
from hlo_run.artifact.executable import Executable, MachineCode, ObjectCode
from hlo_run.artifact.thunks import KernelThunk, every_thunk
from hlo_run.errors import UsageError

ENDING = ".hlox"
VERSION = 1
_MAGIC = b"HLOX"
_HEAD = struct.Struct("<4sIQQ32s")
_RECORDS: dict[str, type[Any]] = {
    name: value
    for module in (buffers, library_thunks, collective_thunks, thunks, executable)
    for name, value in vars(module).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}


def save(program: Executable) -> bytes:
    """Return the file's bytes, the same for the same executable."""
    blobs: list[bytes] = []
    text = json.dumps({"fields": _schema(), "executable": _encode(program, blobs)}, separators=(",", ":")).encode()
    data = b"".join(blobs)
    digest = hashlib.sha256(text + data).digest()
    return _HEAD.pack(_MAGIC, VERSION, len(text), len(data), digest) + text + data


def load(data: bytes, file: str) -> Executable:
    """Return the executable of a file's bytes; raises UsageError for a foreign file, another version, or a damaged one."""
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise UsageError(f"'{file}' is no executable of hlo-run", hint=f"hlo-run --output=FILE{ENDING} writes one")
    _, version, text_size, blob_size, digest = _HEAD.unpack_from(data)
    if version != VERSION:
        raise _other_version(file)
    rest = data[_HEAD.size :]
    if len(rest) != text_size + blob_size or hashlib.sha256(rest).digest() != digest:
        raise UsageError(f"'{file}' is damaged: its contents are not what its head says")
    return _checked(file, lambda: _decoded(rest[:text_size], rest[text_size:], file))


def _other_version(file: str) -> UsageError:
    return UsageError(f"'{file}' was written by another version of hlo-run", hint="compile the module again")


def _schema() -> str:
    """Return a digest of all records and their fields: it changes when what a file means may change."""
    lines = [f"{name}({', '.join(f'{f.name}: {f.type}' for f in dataclasses.fields(r))})" for name, r in sorted(_RECORDS.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _encode(value: Any, blobs: list[bytes]) -> Any:
    """Return JSON for a value: records as [name, field, ..], tuples as [0, ..], byte strings as [1, size]."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        blobs.append(value)
        return [1, len(value)]
    if isinstance(value, tuple):
        return [0, *(_encode(part, blobs) for part in cast("tuple[Any, ...]", value))]
    name = type(value).__name__
    assert name in _RECORDS, f"{name} is a record of an executable"
    return [name, *(_encode(getattr(value, field.name), blobs) for field in dataclasses.fields(value))]


class _Decoder:
    """Takes byte strings in the order in which they were put."""

    def __init__(self, blobs: bytes) -> None:
        self._blobs = blobs
        self._place = 0

    def decode(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, *parts = cast("list[Any]", value)
        if kind == 1:
            (size,) = parts
            self._place += size
            return self._blobs[self._place - size : self._place]
        decoded = [self.decode(part) for part in parts]
        return tuple(decoded) if kind == 0 else _RECORDS[kind](*decoded)


def _decoded(text: bytes, blobs: bytes, file: str) -> Executable:
    content = json.loads(text)
    if content["fields"] != _schema():
        raise _other_version(file)
    program = _Decoder(blobs).decode(content["executable"])
    if not isinstance(program, Executable):
        raise TypeError("it holds no executable")
    _check_references(program)
    _check_machine_code(program.machine_code)
    return program


def _checked(file: str, work: Callable[[], Executable]) -> Executable:
    """Turn what a record does that was made by hand, with wrong fields or types, into a refusal."""
    try:
        return work()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"'{file}' is no valid executable: {error}") from error


def _check_references(program: Executable) -> None:
    """Raise ValueError unless every slice lies in its allocation and every kernel that is launched is there."""
    sizes = [allocation.size_bytes for allocation in program.allocations]
    if [allocation.index for allocation in program.allocations] != list(range(len(sizes))):
        raise ValueError("its allocations are not numbered in order")
    kernels = {kernel.name for kernel in program.kernels}
    for name in (thunk.kernel for thunk in every_thunk(program.thunks) if isinstance(thunk, KernelThunk)):
        if name not in kernels:
            raise ValueError(f"kernel {name} is missing")
    for piece in _slices(program):
        inside = 0 <= piece.allocation < len(sizes) and piece.offset_bytes >= 0 and piece.size_bytes >= 0
        if not inside or piece.offset_bytes + piece.size_bytes > sizes[piece.allocation]:
            raise ValueError(f"{piece} is not inside its allocation")


def _check_machine_code(code: Any) -> None:
    """Raise TypeError unless the records of machine code hold what they should."""
    if code is None:
        return
    if not isinstance(code, MachineCode) or not _are(str, code.processor, code.features):
        raise TypeError("its machine code is for no processor")
    for item in code.objects:
        if not isinstance(cast("Any", item), ObjectCode) or not _are(str, item.key) or not _are(bytes, item.data):
            raise TypeError("its machine code is no object code")


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def _slices(program: Executable) -> Iterator[BufferSlice]:
    for tree in (*program.parameters, program.result):
        yield from tree_slices(tree)
    for thunk in program.thunks:
        touched = accesses(thunk)
        yield from touched.reads
        yield from touched.writes
