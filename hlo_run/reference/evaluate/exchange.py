"""Move data between devices: messages, in-place slices of collective-permute, pieces of ragged-all-to-all."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.device import Device, Frame, Wait
from hlo_run.reference.values import Array, Value, as_array, as_tuple

# The kind of message, and its channel; without a channel, the instruction that sends it.
Lane: TypeAlias = "tuple[str, int | HloInstruction]"


def post(device: Device, lane: Lane, target: int, value: Value) -> None:
    """Send a message without waiting. Messages of one lane between two devices keep their order."""
    device.world.messages.setdefault((lane, device.id, target), deque()).append(value)


def receive(instruction: HloInstruction, device: Device, lane: Lane, source: int) -> Frame:
    """Wait for the next message of a lane from device `source` and return it."""
    key = (lane, source, device.id)
    messages = device.world.messages
    where = f" on channel {lane[1]}" if isinstance(lane[1], int) else ""
    while not messages.get(key):
        yield Wait(instruction, lambda: bool(messages.get(key)), lambda: f"device {source} sends nothing{where}")
    return messages[key].popleft()


def ragged_all_to_all(instruction: HloInstruction, everyones: Sequence[Sequence[Array]]) -> list[Array]:
    """Return each member's output, with the rows `input[offset : offset + size]` that every member sends to it.

    Operands: input, output, input offsets, send sizes, output offsets (places in the receiver's output), receive sizes.
    Offsets and sizes have one entry per member, or one row of entries per member if they have two dimensions. Rows
    that no member writes keep the output operand's values. Raises Unsupported for a piece out of bounds.
    """
    outputs: list[Array] = [np.array(operands[1]) for operands in everyones]
    for data, _, starts, sizes, places, _ in everyones:
        if starts.shape[0] % len(everyones) or not starts.ndim:
            raise Unsupported("'ragged-all-to-all' whose number of offsets is not a multiple of its members", instruction.where)
        for number, (start, size, place) in enumerate(_triples(starts, sizes, places)):
            member = number // (starts.size // len(everyones))
            output = outputs[member]
            rows: Array = data[max(start, 0) : start + size]
            target: Array = output[max(place, 0) : place + size]
            if size < 0 or len(rows) != size or len(target) != size:
                piece = f"rows {start} to {start + size} of {len(data)} to {place} of {len(output)}"
                raise Unsupported(f"'ragged-all-to-all' out of bounds: {piece}", instruction.where)
            target[...] = rows
    return outputs


def _triples(*arrays: Array) -> list[tuple[int, ...]]:
    return [tuple(int(number) for number in numbers) for numbers in zip(*(array.reshape(-1) for array in arrays), strict=True)]


def in_place_slices(instruction: HloInstruction, operands: Sequence[Value]) -> tuple[Value, ...]:
    """Return the slices that the in-place form of collective-permute sends.

    Operands: input, output, input starts, output starts. Raises Unsupported for slice_sizes of another rank.
    """
    inputs, starts = _buffers(operands[0]), _starts(operands[2])
    sizes = _slice_sizes(instruction, inputs)
    return tuple(
        np.array(array[tuple(slice(at, at + size) for at, size in zip(start, extents, strict=True))])
        for array, start, extents in zip(inputs, starts, sizes, strict=True)
    )


def in_place_update(instruction: HloInstruction, operands: Sequence[Value], slices: Sequence[Value]) -> Value:
    """Return the outputs of the in-place collective-permute, with the received slices written at the output starts."""
    outputs, starts = [np.array(array) for array in _buffers(operands[1])], _starts(operands[3])
    for output, start, received in zip(outputs, starts, slices, strict=True):
        piece = as_array(received)
        output[tuple(slice(at, at + size) for at, size in zip(start, piece.shape, strict=True))] = piece
    return tuple(outputs) if instruction.shape.is_tuple and isinstance(operands[1], tuple) else outputs[0]


def _buffers(value: Value) -> list[Array]:
    return [as_array(part) for part in value] if isinstance(value, tuple) else [value]


def _starts(value: Value) -> list[list[int]]:
    """Return the start of each slice; the start of a single slice may be a flat tuple of scalars."""
    rows = as_tuple(value)
    tuples = rows if all(isinstance(row, tuple) for row in rows) else (rows,)
    return [[int(as_array(index)) for index in as_tuple(row)] for row in tuples]


def _slice_sizes(instruction: HloInstruction, inputs: Sequence[Array]) -> tuple[tuple[int, ...], ...]:
    sizes = instruction.in_place_slice_sizes
    ranks = [array.ndim for array in inputs]
    if [len(extents) for extents in sizes] != ranks:
        raise Unsupported(f"slice_sizes of {[len(e) for e in sizes]} dimensions for operands of {ranks}", instruction.where)
    return sizes
