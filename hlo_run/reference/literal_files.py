"""Read and write arguments and results in numpy's files: `.npz` with a key per array, `.npy` with one array.

Arrays are numbered: tuples become their leaves, depth first, without tokens. A key is a prefix (`arg`, `out`) and the number.
numpy's own keys `arr_0`, `arr_1`, .. are read too. Types that numpy lacks are stored as bytes: u8 or u16 of the same dimensions
(types below a byte: one byte per element). KEY.dtype is then the type's name in ml_dtypes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.errors import UsageError
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.bits import element_bits, from_element_bits
from hlo_run.reference.numpy_files import NpzFile, StoredArray, open_npy, open_npz
from hlo_run.reference.values import TOKEN, Array, Value
from hlo_run.whole_files import whole_file, write_problem

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}
_MOST_NAMED = 20
# The prefix of the keys that numpy gives to arrays without names.
_PLAIN_PREFIX = "arr_"
# The longest names of ml_dtypes have 15 characters of 4 bytes.
_MOST_NAME_BYTES = 256


def read_values(path: str, prefix: str, shapes: Sequence[Shape], names: Sequence[str]) -> list[Value]:
    """Return one value per shape from an `.npz` file, or from comma-separated `.npy` files, one per array.

    `names` are the values' names in errors. Raises UsageError for a file that cannot be read, a missing or
    superfluous key, and an array of another type or other dimensions.
    """
    leaves = [(name, index, leaf) for name, shape in zip(names, shapes, strict=True) for index, leaf in _array_leaves(shape)]
    single = path.endswith(".npy")
    arrays = _stored_in_npys(path.split(","), len(leaves)) if single else _stored_in_npz(path, prefix, len(leaves))
    checked: list[Array] = []
    # One array of the file at a time is in memory besides those that are kept.
    for (stored, type_name), (name, index, shape) in zip(arrays, leaves, strict=True):
        what = f"{name}{{{','.join(map(str, index))}}}" if index else name
        checked.append(_read(stored, type_name, shape, single, what))
    remaining = iter(checked)
    return [_assemble(shape, remaining) for shape in shapes]


def stored_dims(path: str, prefix: str) -> list[tuple[int, ...]]:
    """Return the dimensions of all arrays that `read_values` would read, in order. Raises UsageError if a file cannot be read."""
    if path.endswith(".npy"):
        return [open_npy(name).dims for name in path.split(",")]
    with open_npz(path, hint="rename it to .npy to give one argument") as file:
        numbered = _numbers(_prefix_in(file.keys, prefix), file.keys)
        return [file.array(key).dims for _, key in sorted(numbered.items())]


def read_arrays(path: str, prefix: str, shapes: Collection[Shape]) -> list[Array]:
    """Return all arrays `PREFIX0`, `PREFIX1`, .. of an `.npz` file.

    Raises UsageError if it cannot be read, or if an array has none of the shapes.
    """
    with open_npz(path, hint=f"an .npz file with {prefix}0, {prefix}1, ..") as file:
        count = len(_numbers(_prefix_in(file.keys, prefix), file.keys))
        found: list[Array] = []
        for stored, type_name in _numbered(file, path, prefix, count):
            row = _named_type(stored, type_name)
            dtype = row.numpy if row is not None else stored.dtype.newbyteorder("=")
            fits = (shape for shape in shapes if shape.dtype.numpy == dtype and shape.dims == stored.dims)
            shape = next(fits, None)
            if shape is None:
                known = " or ".join(dict.fromkeys(shape.to_string(layout=False) for shape in shapes)) or "nothing"
                raise UsageError(f"{stored.what} is {_given(dtype, stored.dims)}, {prefix}s of the module take {known}")
            found.append(_read(stored, type_name, shape, False, "the array"))
        return found


def check_readable(paths: Iterable[str]) -> None:
    """Raise UsageError if a file that `read_values` would open for these paths cannot be opened."""
    files = dict.fromkeys(file for path in paths for file in (path.split(",") if path.endswith(".npy") else [path]))
    for file in files:
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise UsageError(f"'{file}' {_problem(error)}") from None


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


def _stored_in_npz(path: str, prefix: str, count: int) -> Iterator[tuple[StoredArray, str]]:
    """Yield the numbered arrays in order, each with the name of its type, or ""."""
    with open_npz(path, hint="rename it to .npy to give one argument") as file:
        yield from _numbered(file, path, prefix, count)


def _numbered(file: NpzFile, path: str, prefix: str, count: int) -> Iterator[tuple[StoredArray, str]]:
    keys = file.keys
    prefix = _prefix_in(keys, prefix)
    _check_keys(path, prefix, count, keys)
    for number in range(count):
        key = f"{prefix}{number}"
        yield file.array(key), _type_name(file.array(f"{key}.dtype")) if f"{key}.dtype" in keys else ""


def _type_name(stored: StoredArray) -> str:
    """Return the text in an array without dimensions; raises UsageError for other arrays and for long texts."""
    if stored.dims or stored.dtype.kind != "U" or stored.dtype.itemsize > _MOST_NAME_BYTES:
        raise UsageError(f"{stored.what} does not name a type")
    return str(stored.read())


def _numbers(prefix: str, keys: Iterable[str]) -> dict[int, str]:
    """Return the keys that are a prefix and a number, by the number."""
    pattern = re.compile(re.escape(prefix) + r"(0|[1-9][0-9]{0,8})", re.ASCII)
    return {int(found[1]): key for key in keys if (found := pattern.fullmatch(key)) is not None}


def _prefix_in(keys: Sequence[str], prefix: str) -> str:
    """Return the prefix of a file's keys: the given one, or numpy's own if no key has it."""
    return _PLAIN_PREFIX if not _numbers(prefix, keys) and _numbers(_PLAIN_PREFIX, keys) else prefix


def _check_keys(path: str, prefix: str, count: int, keys: Sequence[str]) -> None:
    numbered = _numbers(prefix, keys)
    missing = next((number for number in range(count) if number not in numbered), None)
    if missing is not None:
        known = [numbered[number] for number in sorted(numbered)] or sorted(keys)
        has = f"it has {', '.join(known[:_MOST_NAMED])}" if known else "it has none"
        raise UsageError(f"'{path}' has no {prefix}{missing}: {count} arrays are needed", notes=(has,))
    if len(numbered) > count:
        extra = next(key for number, key in sorted(numbered.items()) if number >= count)
        raise UsageError(f"'{path}' has {extra}, but only {count} arrays are needed", hint="give a tuple as its leaves")


def _stored_in_npys(paths: Sequence[str], count: int) -> Iterator[tuple[StoredArray, str]]:
    if len(paths) != count:
        raise UsageError(f"{count} arrays are needed, {len(paths)} .npy files are given", hint="give a tuple as its leaves")
    for path in paths:
        yield open_npy(path), ""


def _read(stored: StoredArray, type_name: str, shape: Shape, single: bool, what: str) -> Array:
    """Return the elements in native byte order, contiguous; raises UsageError if they are not a value of `shape`.

    Compares the header before it reads the elements. `single`: the array is alone in an .npy file.
    """
    dtype, row = shape.dtype, _named_type(stored, type_name)
    # An .npy file cannot name a type that numpy lacks, so unsigned ints of its size are its bits.
    if row is None and _are_bits(stored.dtype, dtype, unsigned=single):
        row = dtype
    found = row.numpy if row is not None else stored.dtype.newbyteorder("=")
    if found != dtype.numpy or not _dims_fit(stored.dims, shape):
        given = _given(found, stored.dims)
        hint = _type_hint(found, dtype)
        raise UsageError(f"{stored.what} is {given}, {what} is {shape.to_string(layout=False)}", hint=hint)
    array = stored.read()
    if row is not None:
        array = _from_bytes(array, row)
    line = np.ascontiguousarray(array, dtype.numpy).reshape(-1)
    if dtype.is_integer and dtype.bits < 8:
        # A file may hold any high bits of a narrow ml_dtypes int.
        line = from_element_bits(element_bits(line, dtype), dtype)
    return line.reshape(array.shape)


def _named_type(stored: StoredArray, name: str) -> DType | None:
    """Return the type whose bits the file says that an array holds; None if it names none."""
    if not name:
        return None
    kind: object = getattr(ml_dtypes, name, None)
    row = DTYPES.get(name) or (_BY_NUMPY.get(np.dtype(kind)) if isinstance(kind, type) else None)
    if row is None or row.numpy.itemsize != stored.dtype.itemsize:
        raise UsageError(f"{stored.what} is {stored.dtype.name}, which cannot be '{name}'")
    return row


def _given(dtype: NumpyType, dims: tuple[int, ...]) -> str:
    row = _BY_NUMPY.get(dtype)
    return f"{row.name if row else dtype.name}[{','.join(map(str, dims))}]"


def _problem(error: OSError) -> str:
    return "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror or error}"


def _are_bits(found: NumpyType, dtype: DType, unsigned: bool) -> bool:
    """True if elements of type `found` are the bytes of elements of a type that numpy lacks."""
    if dtype.numpy.isbuiltin == 1 or found.itemsize != dtype.numpy.itemsize:
        return False
    # Without ml_dtypes' name numpy writes void.
    return found.type is np.void or (unsigned and found.kind == "u")


def _from_bytes(array: Array, dtype: DType) -> Array:
    """Return the elements whose bytes an array holds; the unused high bits of types below a byte are ignored."""
    stored = np.ascontiguousarray(array).reshape(-1).view(np.dtype(f"u{array.dtype.itemsize}"))
    if dtype.bits < 8:
        stored = stored & np.uint8((1 << dtype.bits) - 1)
    return from_element_bits(stored, dtype).reshape(array.shape)


def _dims_fit(dims: tuple[int, ...], shape: Shape) -> bool:
    dynamic = shape.dynamic_dims or (False,) * shape.rank
    return len(dims) == shape.rank and all(
        size == bound or (is_dynamic and size < bound) for size, bound, is_dynamic in zip(dims, shape.dims, dynamic, strict=True)
    )


def _type_hint(found: NumpyType, dtype: DType) -> str:
    if dtype.numpy.isbuiltin == 1 or found.kind not in "ui" or found.itemsize != dtype.numpy.itemsize:
        return ""
    return f"if these are the bits of the elements, add an entry KEY.dtype with '{dtype.numpy.name}' to the file"
