"""The types of an executable's fields, as a schema that decodes JSON: every value is compared with the type of its field.

The schema is derived from the annotations of the record types, so a new record or field needs no change here.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from msgspec import Struct

from hlo_run.artifact import buffers, collective_thunks, division, executable, library_thunks, sort_orders, thunks
from hlo_run.records import field_types

TUPLE, BYTES = 0, 1
"""The first elements of JSON lists that are tuples and byte strings. The lists of records begin with the record's name."""
MOST_NESTED = 300
"""The depth of lists in lists. A thunk inside a thunk takes two."""
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_MODULES = (buffers, division, library_thunks, collective_thunks, sort_orders, thunks, executable)
_NAMES: dict[str, object] = {name: value for module in _MODULES for name, value in vars(module).items()}
RECORDS: dict[str, type[object]] = {
    name: value for name, value in _NAMES.items() if isinstance(value, type) and issubclass(value, Struct)
}
_TYPES = frozenset(RECORDS.values())


class Blobs:
    """The byte strings of a file, which are taken in order, and the depth of the list that is decoded."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0
        self.depth = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes; raises ValueError if the file has fewer."""
        end = self._place + size
        if end > len(self._data):
            raise ValueError("its byte strings are cut off")
        self._place, start = end, self._place
        return self._data[start:end]

    @property
    def is_used_up(self) -> bool:
        """True if all bytes were taken."""
        return self._place == len(self._data)


_Reader: TypeAlias = Callable[[object, Blobs], object]
_Record = TypeVar("_Record", bound=Struct)
_readers: dict[object, _Reader] = {}


def digest() -> str:
    """Return a digest of all record types and their fields. It changes when the meaning of a file may change."""
    lines = [f"{name}({', '.join(f'{f}: {hint}' for f, hint in field_types(r).items())})" for name, r in sorted(RECORDS.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def decode(kind: type[_Record], value: object, blobs: Blobs) -> _Record:
    """Return the record of type `kind` that JSON describes. Raises ValueError where a value is not of its field's type."""
    record = _reader(kind)(value, blobs)
    assert isinstance(record, kind), "the reader of a type returns values of it"
    return record


def _reader(hint: object) -> _Reader:
    """Return the function that decodes values of an annotated type."""
    known = _readers.get(hint)
    if known is not None:
        return known
    # A type may contain itself. Its reader is then looked up when it is used.
    _readers[hint] = lambda value, blobs: _readers[hint](value, blobs)
    made = _readers[hint] = _make(hint)
    return made


def _make(hint: object) -> _Reader:
    if isinstance(hint, str):
        return _reader(eval(hint, _NAMES))  # an annotation of this package, not of a file
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _record(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _choice(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple(arguments)
    return _SCALARS[hint]


def _record(kind: type[object]) -> _Reader:
    hints = field_types(kind)
    readers: list[_Reader] = []  # filled at the first use, as records contain one another
    length = len(hints) + 1

    def read(value: object, blobs: Blobs) -> object:
        items = _items(value)
        if not items or items[0] != kind.__name__:
            raise _wrong(value, f"a {kind.__name__}")
        if len(items) != length:
            raise ValueError(f"a {kind.__name__} has {length - 1} fields, not {len(items) - 1}")
        if not readers:
            readers.extend(_reader(hint) for hint in hints.values())
        _enter(blobs)
        decoded: list[object] = []
        for name, reader, part in zip(hints, readers, items[1:], strict=True):
            try:
                decoded.append(reader(part, blobs))
            except _WrongValue as error:
                raise ValueError(f"{kind.__name__}.{name} is {error}") from None
        blobs.depth -= 1
        return kind(*decoded)

    return read


def _tuple(arguments: tuple[object, ...]) -> _Reader:
    is_open = len(arguments) == 2 and arguments[1] is ...
    readers = [_reader(argument) for argument in (arguments[:1] if is_open else arguments)]

    def read(value: object, blobs: Blobs) -> object:
        items = _items(value)
        if not items or type(items[0]) is not int or items[0] != TUPLE:
            raise _wrong(value, "a list")
        if not is_open and len(items) != len(readers) + 1:
            raise _WrongValue(f"a list of {len(items) - 1} values, not {len(readers)}")
        _enter(blobs)
        used = readers * (len(items) - 1) if is_open else readers
        decoded = tuple([reader(part, blobs) for reader, part in zip(used, items[1:], strict=True)])
        blobs.depth -= 1
        return decoded

    return read


def _union(arguments: tuple[object, ...]) -> _Reader:
    may_be_none = type(None) in arguments
    records = {kind.__name__: _reader(kind) for kind in arguments if isinstance(kind, type) and kind in _TYPES}
    others = [_reader(kind) for kind in arguments if kind is not type(None) and not (isinstance(kind, type) and kind in _TYPES)]
    assert len(others) <= 1, "the types of a union can be told apart"

    def read(value: object, blobs: Blobs) -> object:
        if value is None and may_be_none:
            return None
        items = _items(value)
        name = items[0] if items else None
        if isinstance(name, str) and name in records:
            return records[name](value, blobs)
        if others:
            return others[0](value, blobs)
        raise _wrong(value, " or ".join(records) if len(records) < 4 else "a record that is allowed here")

    return read


def _choice(choices: tuple[object, ...]) -> _Reader:
    def read(value: object, _: Blobs) -> object:
        if type(value) is not str or value not in choices:
            raise _wrong(value, " or ".join(map(str, choices)))
        return value

    return read


def _items(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def _enter(blobs: Blobs) -> None:
    blobs.depth += 1
    if blobs.depth > MOST_NESTED:
        raise ValueError("its records are nested too deeply")


def _read_bool(value: object, _: Blobs) -> object:
    if type(value) is not bool:
        raise _wrong(value, "true or false")
    return value


def _read_int(value: object, _: Blobs) -> object:
    if type(value) is not int or not _LEAST <= value <= _MOST:
        raise _wrong(value, "an integer of 64 bits")
    return value


def _read_float(value: object, _: Blobs) -> object:
    if type(value) is not float and (type(value) is not int or not _LEAST <= value <= _MOST):
        raise _wrong(value, "a number")
    return value


def _read_str(value: object, _: Blobs) -> object:
    if type(value) is not str:
        raise _wrong(value, "a text")
    if not value.isascii():
        value.encode()  # raises a ValueError for half of a surrogate pair
    return value


def _read_bytes(value: object, blobs: Blobs) -> object:
    items = _items(value)
    if not items or len(items) != 2 or items[0] != BYTES or type(items[1]) is not int or not 0 <= items[1] <= _MOST:
        raise _wrong(value, "a byte string")
    return blobs.take(items[1])


_SCALARS: dict[object, _Reader] = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str, bytes: _read_bytes}


class _WrongValue(ValueError):
    """A value that is not of its field's type. The message follows the name of the field."""


def _wrong(value: object, wanted: str) -> _WrongValue:
    items = _items(value)
    if items is not None:
        shown = f"a record '{items[0][:40]}'" if items and isinstance(items[0], str) else "a list"
    else:
        shown = f"{value:.6g}" if isinstance(value, float) else _short(value)
    return _WrongValue(f"{shown}, not {wanted}")


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a huge integer"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
