"""Atomic read-modify-write of many lanes at once, with the same result as in lane order one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Lanes
from hlo_run.backends.host.emulator.memory import Offsets
from hlo_run.backends.host.emulator.pointers import MixedPointer, Pointer
from hlo_run.backends.host.numerics import conversions, float_numerics
from hlo_run.backends.host.numerics.float_functions import maximum, minimum

Update = Callable[[Array, Array], Array]

# ufuncs whose `.at` gives the result of lane order.
_IN_ORDER: dict[str, np.ufunc] = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def atomic(
    lanes: Lanes,
    pointer: Pointer,
    displacement: int,
    operation: str,
    type_name: str,
    operands: tuple[Array, ...],
    line: int,
    wants_old: bool,
) -> Array:
    """Apply `operation` to every lane's item and return the old bits, per lane.

    `operands` are the bits of the value; for `cas`, of the comparison and then of the value. Without `wants_old` the result is
    meaningless.
    """
    item_bytes = operands[0].dtype.itemsize
    flat = tuple(lanes.flat(operand) for operand in operands)
    old = np.empty(lanes.count, operands[0].dtype)
    # The other bits of a word matter only to callers that want the old value.
    sets_bits = operation in ("and", "or") and not wants_old
    if isinstance(pointer, MixedPointer):
        for selection, part in pointer.atomic_parts():
            view, index = part.atomic_items(displacement, item_bytes, line, sets_bits)
            values = tuple(value[selection] for value in flat)
            old[selection] = _apply(view, index, operation, type_name, values, wants_old)
    else:
        view, index = pointer.atomic_items(displacement, item_bytes, line, sets_bits)
        old[:] = _apply(view, index, operation, type_name, flat, wants_old)
    return old.reshape(lanes.shape)


def _apply(view: Array, index: Offsets, operation: str, type_name: str, operands: tuple[Array, ...], wants_old: bool) -> Array:
    typed_dtype = _numpy_type(type_name)
    ufunc = _IN_ORDER.get(operation)
    if ufunc is not None and typed_dtype is not None and not wants_old:
        ufunc.at(view.view(typed_dtype), index, operands[0].view(typed_dtype))
        return operands[0]
    update = _update(operation, type_name, operands)
    old = np.empty_like(operands[0])
    for turn in _turns(index):
        places = index[turn]
        before = view[places]
        old[turn] = before
        view[places] = update(before, turn)
    return old


def _turns(index: Offsets) -> list[Offsets]:
    """Split the lanes into rounds without repeated items. The lanes of one item are in ascending order."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    if is_first.all():
        return [np.arange(index.size)]
    starts = np.flatnonzero(is_first)
    rank = np.arange(order.size) - np.repeat(starts, np.diff(np.append(starts, order.size)))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])


def _numpy_type(type_name: str) -> Any:
    """Return the numpy type with the arithmetic of the PTX type; None if numpy has none."""
    if type_name in ("f32", "f64"):
        return np.dtype(f"f{int(type_name[1:]) // 8}")
    if type_name[0] in "bus" and type_name[1:].isdigit():
        return np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{int(type_name[1:]) // 8}")
    return None


def _update(operation: str, type_name: str, operands: tuple[Array, ...]) -> Update:
    """Return the function (old bits, lanes) -> new bits."""
    value = operands[-1]
    match operation:
        case "exch":
            return lambda _, turn: value[turn]
        case "cas":
            return lambda before, turn: np.where(before == operands[0][turn], value[turn], before)
        case "inc":
            return lambda before, turn: np.where(before >= value[turn], 0, before + before.dtype.type(1))
        case "dec":
            return lambda before, turn: _decrement(before, value[turn])
        case _:
            pass
    typed = _numpy_type(type_name)
    if typed is None:
        return lambda before, turn: _combine_halves(operation, before, value[turn], type_name)
    combine = {"min": np.minimum, "max": np.maximum, **_IN_ORDER}[operation]
    return lambda before, turn: combine(before.view(typed), value[turn].view(typed)).view(before.dtype)


def _decrement(before: Array, limit: Array) -> Array:
    return np.where((before == 0) | (before > limit), limit, before - before.dtype.type(1))


def _combine_halves(operation: str, before: Array, value: Array, type_name: str) -> Array:
    """Add f16 or bf16, single or packed in pairs, or take their minimum or maximum."""
    half: object = ml_dtypes.bfloat16 if type_name.startswith("bf16") else np.float16
    a = before.view(np.uint16).view(half).astype(np.float32)
    b = value.view(np.uint16).view(half).astype(np.float32)
    result = a + b if operation == "add" else {"min": minimum, "max": maximum}[operation](a, b)
    rounded = conversions.narrow_to_bf16(result, "rn") if half is ml_dtypes.bfloat16 else float_numerics.to_f16(result)
    return float_numerics.bits16(rounded).view(before.dtype)
