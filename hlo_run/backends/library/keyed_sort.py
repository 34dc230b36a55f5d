"""Sort by a `SortOrder` in numpy: map keys to unsigned integers, sort them, and permute the operands.

The result equals that of every correct sort. If elements with equal keys differ, their order is undefined and the result is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hlo_run.artifact import ArraySpec, CountingOperand, KeyOp, SortKey, SortOrder
from hlo_run.backends.library.arrays import Array, is_viewable
from hlo_run.hlo.values.dtype import DTYPES

_WORD_BITS = 64
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_BITWISE: Mapping[str, Callable[..., Any]] = {
    "xor": np.bitwise_xor,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
}


def is_known(order: SortOrder) -> bool:
    """True if numpy can view all arrays in their buffers."""
    arrays = (*order.operands, *order.results)
    return all(isinstance(spec, CountingOperand) or is_viewable(spec) for spec in arrays)


def sorted_arrays(order: SortOrder, arrays: Sequence[Array | None]) -> list[Array] | None:
    """Return the sorted operands; None if the order of some elements is undefined.

    `arrays` holds the operands; an iota operand may be None. The results are [all other dimensions, sorted dimension].
    """
    rows = [_rows(spec, array, order.dim) for spec, array in zip(order.operands, arrays, strict=True)]
    places = _places(order, rows)
    if places is None:
        return None
    count, length = places.shape
    starts = np.arange(count, dtype=np.int64).reshape(-1, 1) * np.int64(length)
    flat = np.ravel(np.add(places, starts))
    counters = [_counts_along(spec, order.dim) for spec in order.operands]
    return [
        places.astype(row.dtype) if counts else row.reshape(-1).take(flat).reshape(places.shape)
        for row, counts in zip(rows, counters, strict=True)
    ]


def store_rows(result: Array, rows: Array, dim: int) -> None:
    """Write rows as `sorted_arrays` returns them to an array of the operands' shape. `dim` is the sorted dimension."""
    last = np.moveaxis(result, dim, -1)
    last[...] = rows.reshape(last.shape)


def _rows(spec: ArraySpec | CountingOperand, array: Array | None, dim: int) -> Array:
    length = spec.dims[dim]
    if isinstance(spec, CountingOperand):
        shape = [1] * len(spec.dims)
        shape[spec.dim] = -1
        counted = np.arange(spec.dims[spec.dim]).astype(DTYPES[spec.dtype].numpy).reshape(shape)
        array = np.broadcast_to(counted, spec.dims)
    assert array is not None, "every operand but an iota has an array"
    return np.ascontiguousarray(np.moveaxis(array, dim, -1)).reshape(-1, length)


def _counts_along(spec: ArraySpec | CountingOperand, dim: int) -> bool:
    """True for an operand whose elements are their positions in the row."""
    if not isinstance(spec, CountingOperand) or spec.dim != dim:
        return False
    record = DTYPES[spec.dtype]
    return record.is_integer and spec.dims[dim] <= 1 << (record.bits - int(record.is_signed))


# ---- order ----------------------------------------------------------------------------------------------------------


def _places(order: SortOrder, rows: list[Array]) -> NDArray[np.int64] | None:
    """Return, per row, the index of the element at each sorted position; None if the order is undefined."""
    length = rows[0].shape[1]
    place_bits = max(1, (length - 1).bit_length())
    keys: list[tuple[Array, int]] = []
    for key in order.keys:
        operand = key.ops[-1].number if len(key.ops) == 1 else -1
        if operand >= 0 and _counts_along(order.operands[operand], order.dim):
            places = _by_places(keys, length, place_bits, key.descending)  # no two elements are equal
            return np.broadcast_to(places, rows[0].shape)
        values = _evaluated(key, rows)
        found = None if values is None else _unsigned(values, key.descending)
        if found is None:
            return None
        keys.append(found)
    places = _by_places(keys, length, place_bits, descending=False)
    return places if _is_certain(keys, rows, places) else None


def _by_places(keys: list[tuple[Array, int]], length: int, place_bits: int, descending: bool) -> NDArray[np.int64]:
    """Return the order by the keys; elements with equal keys are ordered by their positions."""
    own = np.arange(length, dtype=np.uint64)
    own = own[::-1] if descending else own
    if sum(bits for _, bits in keys) + place_bits > _WORD_BITS or not keys:
        shape = keys[0][0].shape if keys else (1, length)
        columns = [np.broadcast_to(own, shape), *(key for key, _ in reversed(keys))]
        return np.lexsort(columns, axis=-1)
    packed = keys[0][0].astype(np.uint64)
    for key, bits in keys[1:]:
        packed = (packed << np.uint64(bits)) | key
    packed = (packed << np.uint64(place_bits)) | own
    packed.sort(axis=-1)
    packed &= np.uint64((1 << place_bits) - 1)
    places = packed.view(np.int64)
    return length - 1 - places if descending else places


def _is_certain(keys: list[tuple[Array, int]], rows: list[Array], places: Array) -> bool:
    """True if neighbours with equal keys are equal in all operands."""
    tied = np.ones((places.shape[0], places.shape[1] - 1), np.bool_)
    for key, _ in keys:
        ordered = np.take_along_axis(key, places, -1)
        tied &= ordered[:, 1:] == ordered[:, :-1]
    if not tied.any():
        return True
    for row in rows:
        ordered = np.take_along_axis(row.view(f"u{row.dtype.itemsize}"), places, -1)
        if (tied & (ordered[:, 1:] != ordered[:, :-1])).any():
            return False
    return True


def _unsigned(values: Array, descending: bool) -> tuple[Array, int] | None:
    """Return unsigned integers that order like the values, and their number of bits; None if a value is NaN."""
    bits = 8 * values.dtype.itemsize
    found: Array
    if values.dtype == np.bool_:
        found = values.astype(np.uint8)
    elif values.dtype.kind == "u":
        found = values
    elif values.dtype.kind == "i":
        found = (values ^ np.iinfo(values.dtype).min).view(f"u{values.dtype.itemsize}")
    else:
        if np.isnan(values).any():
            return None
        signed: Array = (values + values.dtype.type(0)).view(f"i{values.dtype.itemsize}")  # -0 is +0
        found = np.where(signed < 0, ~signed, signed ^ np.iinfo(signed.dtype).min).view(f"u{values.dtype.itemsize}")
    return (~found if descending else found), bits


# ---- keys -----------------------------------------------------------------------------------------------------------


def _evaluated(key: SortKey, rows: list[Array]) -> Array | None:
    """Return the key of every element; None if a NaN is converted, as its bits depend on the implementation."""
    values: list[Any] = []
    for op in key.ops:
        operands = [values[number] for number in op.operands]
        if op.opcode == "convert" and np.isnan(operands[0]).any():
            return None
        values.append(_value(op, operands, rows))
    return np.broadcast_to(values[-1], rows[0].shape)


def _value(op: KeyOp, operands: list[Any], rows: list[Array]) -> Any:
    kind = DTYPES[op.dtype].numpy
    match op.opcode:
        case "parameter":
            return rows[op.number]
        case "constant":
            constant: Array = np.frombuffer(op.number.to_bytes(kind.itemsize, "little"), kind)
            return constant
        case "compare":
            return _COMPARE[op.direction](*operands)
        case "select":
            return cast("Array", np.where(operands[0], operands[1], operands[2]))
        case "bitcast-convert":
            bits: Array = operands[0].view(kind)
            return bits
        case "convert":
            converted: Array = operands[0].astype(kind)
            return converted
        case _:
            result: Array = _BITWISE[op.opcode](*operands)
            return result


def can_evaluate(order: SortOrder) -> bool:
    """True if the keys of a sort can be computed. Keys from a file may contradict themselves."""
    rows = [np.zeros((1, 2), DTYPES[spec.dtype].numpy) for spec in order.operands]
    try:
        return all(_evaluated(key, rows) is not None for key in order.keys)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False
