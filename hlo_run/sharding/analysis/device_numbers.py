"""Computes scalars that depend only on the number of the device, for all devices at once.

subtract(multiply(convert(partition-id), 5), reshape(dynamic-slice(s32[4] constant({0, 4, 9, 14}), partition-id)))
    =>   [0, 1, 1, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.ops.groups import device_counts

Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"

_SAME_VALUE: tuple[Opcode, ...] = ("reshape", "bitcast", "copy", "convert")
_MOST_STEPS = 64
_MOST_DEVICES = 4096


def numbers_of_devices(value: HloInstruction) -> Numbers | None:
    """Return an integer with one element on every device, in the order of the devices; None if it is not known or too large."""
    replicas, partitions = device_counts(value)
    if replicas * partitions > _MOST_DEVICES:
        return None
    devices = np.arange(replicas * partitions, dtype=np.int64)
    return _Search({"partition-id": devices % partitions, "replica-id": devices // partitions}).numbers(value)


class _Search:
    def __init__(self, ids: Mapping[str, Numbers]) -> None:
        self._ids = ids
        self._known: dict[HloInstruction, Numbers | None] = {}

    def numbers(self, value: HloInstruction) -> Numbers | None:
        if value not in self._known:
            self._known[value] = None
            if len(self._known) <= _MOST_STEPS and value.shape.is_array and value.shape.element_count == 1:
                found = None if value.shape.dtype.kind not in ("signed", "unsigned") else self._compute(value)
                # What does not fit would wrap around.
                self._known[value] = found if found is not None and _fits(value, found) else None
        return self._known[value]

    def _compute(self, value: HloInstruction) -> Numbers | None:
        if value.opcode == "constant":
            return np.full_like(self._ids["partition-id"], int(value.constant_array.reshape(-1)[0]))
        if value.opcode in self._ids:
            return self._ids[value.opcode]
        if value.opcode == "dynamic-slice" and value.operands[0].opcode in ("constant", "iota") and len(value.operands) == 2:
            return self._entry(value)
        operands = [self.numbers(operand) for operand in value.operands if value.opcode in (*_SAME_VALUE, *_OPERATIONS)]
        known = [operand for operand in operands if operand is not None]
        if not known or len(known) < len(operands):
            return None
        return known[0] if value.opcode in _SAME_VALUE else _OPERATIONS[value.opcode](*known)

    def _entry(self, lookup: HloInstruction) -> Numbers | None:
        table, index = lookup.operands
        place = self.numbers(index)
        if place is None:
            return None
        (size,) = table.shape.dims
        entries = np.arange(size) if table.opcode == "iota" else table.constant_array.astype(np.int64)
        return entries[np.clip(place, 0, size - 1)]


def _clamp(low: Numbers, value: Numbers, high: Numbers) -> Numbers:
    return np.minimum(np.maximum(value, low), high)


_OPERATIONS: dict[Opcode, Callable[..., Numbers]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "clamp": _clamp,
}


def _fits(value: HloInstruction, found: Numbers) -> bool:
    dtype = value.shape.dtype
    lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return bool(np.all(found >= lowest) and np.all(found <= lowest + (1 << dtype.bits) - 1)) and dtype.bits <= 32
