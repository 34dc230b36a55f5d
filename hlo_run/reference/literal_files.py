"""Read and write arguments and results in numpy's files: `.npz` with a key per array, `.npy` with one array.

Arrays are numbered: tuples become their leaves, depth first, without tokens. A key is a prefix (`arg`, `out`) and the
number. Types that numpy lacks are stored as bytes: u8 or u16 of the same dimensions (types below a byte: one byte
per element). KEY.dtype is then the type's name in ml_dtypes.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.bits import element_bits, from_element_bits
from hlo_run.reference.values import TOKEN, Array, Value
from hlo_run.whole_files import whole_file, write_problem

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def read_values(path: str, prefix: str, shapes: Sequence[Shape], names: Sequence[str]) -> list[Value]:
    """Return one value per shape from an `.npz` file, or from comma-separated `.npy` files, one per array.

    `names` are the values' names in errors. Raises UsageError for a file that cannot be read, a missing or
    superfluous key, and an array of another type or other dimensions.
    """
    leaves = [(name, index, leaf) for name, shape in zip(names, shapes, strict=True) for index, leaf in _array_leaves(shape)]
    single = path.endswith(".npy")
    arrays = _read_npys(path.split(","), len(leaves)) if single else _read_npz(path, prefix, len(leaves))
    checked: list[Array] = []
    for (key, array), (name, index, shape) in zip(arrays, leaves, strict=True):
        what = f"{name}{{{','.join(map(str, index))}}}" if index else name
        # An .npy file cannot name a type that numpy lacks, so unsigned ints of its size are its bits.
        raw = _are_bits(array, shape.dtype, unsigned=single)
        checked.append(_checked(_from_bytes(array, shape.dtype) if raw else array, shape, f"{key} is", what))
    remaining = iter(checked)
    return [_assemble(shape, remaining) for shape in shapes]


def read_arrays(path: str, prefix: str) -> list[Array]:
    """Return all arrays `PREFIX0`, `PREFIX1`, .. of an `.npz` file; raises UsageError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            loaded: Any = np.load(file, allow_pickle=False)
            if not _is_npz(loaded):
                raise UsageError(f"'{path}' holds one array, not named ones", hint=f"an .npz file with {prefix}0, {prefix}1, ..")
            with loaded as data:
                count = sum(key.startswith(prefix) and key[len(prefix) :].isdigit() for key in data.files)
            file.seek(0)
            return [np.asarray(array) for _, array in _npz_arrays(file, path, prefix, count)]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from None


def check_readable(paths: Iterable[str]) -> None:
    """Raise UsageError if a file that `read_values` would open for these paths cannot be opened."""
    files = dict.fromkeys(file for path in paths for file in (path.split(",") if path.endswith(".npy") else [path]))
    for file in files:
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise _unreadable(file, error) from None


def write_values(path: str, groups: Mapping[str, Sequence[tuple[Value, Shape]]]) -> None:
    """Write an `.npz` file with values and their shapes by prefix; raises UsageError if it cannot be written.

    The same values give the same bytes.
    """
    entries: dict[str, Array] = {}
    for prefix, values in groups.items():
        arrays = [leaf for value, shape in values for leaf in _arrays(value, shape)]
        for number, (array, dtype) in enumerate(arrays):
            stored = array if dtype.numpy.isbuiltin == 1 else array.view(np.dtype(f"u{array.dtype.itemsize}"))
            if stored is not array:
                entries[f"{prefix}{number}.dtype"] = np.array(dtype.numpy.name)
            entries[f"{prefix}{number}"] = stored
    try:
        with whole_file(path) as file:
            np.savez(file, allow_pickle=False, **entries)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {write_problem(error)}") from None


def _array_leaves(shape: Shape) -> Iterator[tuple[tuple[int, ...], Shape]]:
    return ((index, leaf) for index, leaf in shape.leaves() if leaf.is_array)


def _arrays(value: Value, shape: Shape) -> Iterator[tuple[Array, DType]]:
    """Yield every array of a value, contiguous, with its type."""
    if shape.is_tuple:
        assert isinstance(value, tuple)
        for part, element in zip(value, shape.tuple_shapes, strict=True):
            yield from _arrays(part, element)
    elif shape.is_array:
        array = np.asarray(value)
        yield np.ascontiguousarray(array).reshape(array.shape), shape.dtype


def _assemble(shape: Shape, arrays: Iterator[Array]) -> Value:
    """Return a value of `shape` from its arrays in order."""
    if shape.is_tuple:
        return tuple(_assemble(element, arrays) for element in shape.tuple_shapes)
    return next(arrays) if shape.is_array else TOKEN


def _read_npz(path: str, prefix: str, count: int) -> Iterator[tuple[str, Array]]:
    """Yield every array in the order of the keys, with its name in errors."""
    try:
        # np.load leaves an unreadable file open if it opens it itself.
        with open(path, "rb") as file:
            yield from _npz_arrays(file, path, prefix, count)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, error) from None


def _npz_arrays(file: BinaryIO, path: str, prefix: str, count: int) -> Iterator[tuple[str, Array]]:
    loaded: Any = np.load(file, allow_pickle=False)
    if not _is_npz(loaded):
        raise UsageError(f"'{path}' holds one array, not named ones", hint="rename it to .npy to give one argument")
    with loaded as data:
        _check_keys(path, prefix, count, data.files)
        for number in range(count):
            key = f"{prefix}{number}"
            name = str(data[f"{key}.dtype"]) if f"{key}.dtype" in data.files else ""
            what = f"{key} of '{path}'"
            yield what, _as_named_type(_an_array(data[key], what), name, what)


def _check_keys(path: str, prefix: str, count: int, keys: Sequence[str]) -> None:
    numbered = [key for key in keys if key.startswith(prefix) and key[len(prefix) :].isdigit()]
    missing = [key for number in range(count) if (key := f"{prefix}{number}") not in keys]
    if missing:
        has = f"it has {', '.join(sorted(numbered, key=lambda key: int(key[len(prefix) :])))}" if numbered else "it has none"
        raise UsageError(f"'{path}' has no {missing[0]}: {count} arrays are needed", notes=(has,))
    if len(numbered) > count:
        extra = next(key for key in numbered if int(key[len(prefix) :]) >= count or key != f"{prefix}{int(key[len(prefix) :])}")
        raise UsageError(f"'{path}' has {extra}, but only {count} arrays are needed", hint="give a tuple as its leaves")


def _read_npys(paths: Sequence[str], count: int) -> Iterator[tuple[str, Array]]:
    if len(paths) != count:
        raise UsageError(f"{count} arrays are needed, {len(paths)} .npy files are given", hint="give a tuple as its leaves")
    for path in paths:
        try:
            with open(path, "rb") as file:
                array: Any = np.load(file, allow_pickle=False)  # an array, or an NpzFile
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise _unreadable(path, error) from None
        if _is_npz(array):
            raise UsageError(f"'{path}' holds named arrays, not one", hint="give one .npz file, without other files")
        yield f"'{path}'", _an_array(array, f"'{path}'")


def _is_npz(loaded: object) -> bool:
    return isinstance(loaded, np.lib.npyio.NpzFile)


def _an_array(value: Any, what: str) -> Array:
    """Return a loaded value if it is an array; raises UsageError, as an entry of a zip file may be anything."""
    if hasattr(value, "dtype"):
        return np.asarray(value)
    raise UsageError(f"{what} is not an array")


def _unreadable(path: str, error: Exception) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"'{path}' does not exist")
    if isinstance(error, OSError) and error.strerror:
        return UsageError(f"'{path}' cannot be read: {error.strerror}")
    return UsageError(f"'{path}' is not a file of numpy arrays, or is damaged", notes=(str(error).split("\n", 1)[0],))


def _as_named_type(array: Array, name: str, what: str) -> Array:
    """Return the array with its bytes as elements of the type that the file names, or unchanged if it names none."""
    if not name:
        return array
    kind: Any = getattr(ml_dtypes, name, None)
    row = DTYPES.get(name) or (_BY_NUMPY.get(np.dtype(kind)) if isinstance(kind, type) else None)
    if row is None or row.numpy.itemsize != array.dtype.itemsize:
        raise UsageError(f"{what} is {array.dtype.name}, which cannot be '{name}'")
    return _from_bytes(array, row)


def _are_bits(array: Array, dtype: DType, unsigned: bool) -> bool:
    """True if the array holds the bytes of elements of a type that numpy lacks."""
    if dtype.numpy.isbuiltin == 1 or array.dtype.itemsize != dtype.numpy.itemsize:
        return False
    # Without ml_dtypes' name numpy writes void.
    is_void = array.dtype.type is np.void and array.dtype.names is None
    return is_void or (unsigned and array.dtype.kind == "u")


def _from_bytes(array: Array, dtype: DType) -> Array:
    """Return the elements whose bytes an array holds; the unused high bits of types below a byte are ignored."""
    stored = np.ascontiguousarray(array).reshape(-1).view(np.dtype(f"u{array.dtype.itemsize}"))
    if dtype.bits < 8:
        stored = stored & np.uint8((1 << dtype.bits) - 1)
    return from_element_bits(stored, dtype).reshape(array.shape)


def _checked(array: Array, shape: Shape, found: str, what: str) -> Array:
    """Return the array in native byte order, contiguous; raises UsageError if it is not a value of `shape`."""
    dtype = shape.dtype
    if array.dtype.newbyteorder("=") != dtype.numpy or not _dims_fit(array.shape, shape):
        row = _BY_NUMPY.get(array.dtype.newbyteorder("="))
        given = f"{row.name if row else array.dtype.name}[{','.join(map(str, array.shape))}]"
        raise UsageError(f"{found} {given}, {what} is {shape.to_string(layout=False)}", hint=_type_hint(array, dtype))
    line = np.ascontiguousarray(array, dtype.numpy).reshape(-1)
    if dtype.is_integer and dtype.bits < 8:
        # A file may hold any high bits of a narrow ml_dtypes int.
        line = from_element_bits(element_bits(line, dtype), dtype)
    return line.reshape(array.shape)


def _dims_fit(dims: tuple[int, ...], shape: Shape) -> bool:
    dynamic = shape.dynamic_dims or (False,) * shape.rank
    return len(dims) == shape.rank and all(
        size == bound or (is_dynamic and size < bound) for size, bound, is_dynamic in zip(dims, shape.dims, dynamic, strict=True)
    )


def _type_hint(array: Array, dtype: DType) -> str:
    if dtype.numpy.isbuiltin == 1 or array.dtype.kind not in "ui" or array.dtype.itemsize != dtype.numpy.itemsize:
        return ""
    return f"if these are the bits of the elements, add an entry KEY.dtype with '{dtype.numpy.name}' to the file"
