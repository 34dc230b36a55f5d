"""Reads numpy's `.npy` and `.npz` files: first the header of an array, and its elements only on request.

`np.load` takes the memory that a header or a zip member asks for. Here the caller compares type and dimensions with what it
needs before it reads, so a small file cannot take much memory. Files with Python objects, which numpy pickles, are refused.
"""

from __future__ import annotations

import ast
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, Any, cast

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array, NumpyType
from hlo_run.errors import UsageError

_NPY, _ZIPS = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")
_ENDING = ".npy"
# Bytes of the field that holds a header's size, by the format's version. Version 3 has only records with names.
_SIZE_FIELDS: dict[tuple[int, ...], str] = {(1, 0): "<H", (2, 0): "<I"}
_MOST_DIMS = 64
_MOST_ELEMENTS = 1 << 48
# A header has one type and its dimensions.
_MOST_HEADER_BYTES = 4096
_PIECE_BYTES = 1 << 20
# numpy writes no other kinds of members.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
# What the parsers of damaged files raise.
_DAMAGE = (
    *(OSError, EOFError, LookupError, ValueError, ArithmeticError, NotImplementedError, RuntimeError, TypeError, SyntaxError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)


class StoredArray(Struct, frozen=True):
    """An array in a file, of which only the header is read. `size` is the number of bytes that follow the header.

    `what` names the array in errors.
    """

    what: str
    dtype: NumpyType
    dims: tuple[int, ...]
    is_fortran: bool
    size: int
    open: Callable[[], IO[bytes]]

    def read(self) -> Array:
        """Return the elements; raises UsageError if the file does not hold exactly these."""
        count = math.prod(self.dims)
        wanted = count * self.dtype.itemsize
        if wanted != self.size:
            raise UsageError(f"{self.what} is damaged: it has {self.size} bytes of elements, its header asks for {wanted}")
        data = bytearray(wanted)
        try:
            with self.open() as stream:
                place = 0
                while place < wanted:
                    piece = stream.read(min(_PIECE_BYTES, wanted - place))
                    if not piece:
                        raise EOFError("the file is cut off")
                    data[place : place + len(piece)] = piece
                    place += len(piece)
                stream.read(1)  # at its end, a zip member compares its checksum
        except _DAMAGE as error:
            raise _damaged(self.what, error) from None
        flat: Array = np.ndarray((count,), self.dtype, data)
        return flat.reshape(self.dims[::-1]).T if self.is_fortran else flat.reshape(self.dims)


class NpzFile:
    """The arrays of an open `.npz` file by their names."""

    def __init__(self, path: str, file: zipfile.ZipFile) -> None:
        self._path, self._file = path, file
        infos = file.infolist()
        self._infos = {info.filename.removesuffix(_ENDING): info for info in infos}
        if len(self._infos) != len(infos):
            raise UsageError(f"'{path}' has two members with the same name")

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the members, without `.npy`."""
        return tuple(self._infos)

    def array(self, key: str) -> StoredArray:
        """Return the array called `key`, which must be in `keys`; raises UsageError if the member is something else."""
        info, what = self._infos[key], f"{key} of '{self._path}'"
        if info.compress_type not in _COMPRESSIONS or info.flag_bits & _ENCRYPTED:
            raise UsageError(f"{what} is packed in a way that numpy does not use")
        try:
            return _stored(what, lambda: self._file.open(info), info.file_size)
        except _DAMAGE as error:
            raise _damaged(what, error) from None


@contextmanager
def open_npz(path: str, hint: str) -> Generator[NpzFile]:
    """Return a context with the arrays of an `.npz` file.

    Raises UsageError if it cannot be read; with `hint`, if it is an `.npy` file.
    """
    try:
        with open(path, "rb") as stream:
            if stream.read(len(_NPY)) == _NPY:
                raise UsageError(f"'{path}' holds one array, not named ones", hint=hint)
            file = NpzFile(path, zipfile.ZipFile(stream))
            yield file
    except _DAMAGE as error:
        raise _damaged(f"'{path}'", error) from None


def open_npy(path: str) -> StoredArray:
    """Return the array of an `.npy` file; raises UsageError if it cannot be read or is something else."""
    what = f"'{path}'"
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if stream.read(4) in _ZIPS:
                raise UsageError(f"{what} holds named arrays, not one", hint="give one .npz file, without other files")
        return _stored(what, lambda: open(path, "rb"), size)
    except _DAMAGE as error:
        raise _damaged(what, error) from None


def _stored(what: str, open_file: Callable[[], IO[bytes]], size: int) -> StoredArray:
    """Read the header of an array in a stream of `size` bytes; raises UsageError, or an error of `_DAMAGE`."""
    with open_file() as stream:
        if stream.read(len(_NPY)) != _NPY:
            raise UsageError(f"{what} is not an array")
        field = _SIZE_FIELDS.get((*stream.read(2),))
        if field is None:
            raise UsageError(f"{what} has a version of the format that holds no array of numbers")
        (length,) = struct.unpack(field, stream.read(struct.calcsize(field)))
        if length > _MOST_HEADER_BYTES:
            raise UsageError(f"{what} is damaged: its header has {length} bytes")
        dtype, dims, is_fortran = _header(stream.read(length))
        start = len(_NPY) + 2 + struct.calcsize(field) + length
    if dtype.hasobject:
        raise UsageError(f"{what} holds Python objects, not numbers", hint="convert it to an array of numbers")
    if dtype.names is not None or dtype.subdtype is not None or not dtype.itemsize:
        raise UsageError(f"{what} holds records, not numbers")

    def open_elements() -> IO[bytes]:
        elements = open_file()
        elements.read(start)
        return elements

    return StoredArray(what, dtype, dims, is_fortran, size - start, open_elements)


def _header(data: bytes) -> tuple[NumpyType, tuple[int, ...], bool]:
    """Return type, dimensions, and whether the first dimension varies fastest. Raises an error of `_DAMAGE`."""
    try:
        fields: object = ast.literal_eval(data.decode("latin1").strip())
    except (MemoryError, RecursionError):
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("its header does not describe an array")
    header = cast("dict[Any, Any]", fields)
    if set(header) != {"descr", "fortran_order", "shape"} or not isinstance(header["shape"], tuple):
        raise ValueError("its header does not describe an array")
    dims = cast("tuple[Any, ...]", header["shape"])
    if len(dims) > _MOST_DIMS or not all(type(size) is int and 0 <= size < _MOST_ELEMENTS for size in dims):
        raise ValueError("its header has no valid dimensions")
    return np.lib.format.descr_to_dtype(header["descr"]), dims, header["fortran_order"] is True


def _damaged(what: str, error: Exception) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{what} does not exist")
    if isinstance(error, OSError) and error.strerror:
        return UsageError(f"{what} cannot be read: {error.strerror}")
    return UsageError(f"{what} is not a file of numpy arrays, or is damaged", notes=(str(error).split("\n", 1)[0],))
