"""Evaluate transfers in and out of a device's program: infeed and outfeed, send and recv."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hlo_run.errors import Unsupported
from hlo_run.hlo.feeds import literal_of, take_literal, take_tiles
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.reference.evaluate.async_ops import zeros
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.evaluate.exchange import post, receive
from hlo_run.reference.values import TOKEN, Value, as_array, as_tuple, unsupported
from hlo_run.sharding.analysis.division import division_of
from hlo_run.sharding.values.make import as_tiles, elements_of

_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")


def _infeed(instruction: HloInstruction, _operands: list[Value], device: Device) -> Frame:
    yield from ()
    shape = instruction.shape.tuple_shapes[0]
    fed = instruction.fed
    if not fed:
        return take_literal(device.infeed, shape), TOKEN
    return literal_of(shape, take_tiles(device.infeed, fed, device.partition)), TOKEN


def _outfeed(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Give a value to the host; of a module that is not divided yet, the tiles that the device will have."""
    yield from ()
    sharding = instruction.sharding
    if not device.world.is_undivided or sharding is None:
        device.outfeed.append(operands[0])
        return TOKEN
    leaves = elements_of(as_tiles(sharding))
    if all(leaf.kind == "maximal" and leaf.device != device.partition for leaf in leaves):
        return TOKEN
    arrays = list(instruction.operands[0].shape.leaves())
    shardings = iter(leaves if len(leaves) > 1 else leaves * len(arrays))
    device.outfeed.append(_tiles(operands[0], shardings, device))
    return TOKEN


def _tiles(value: Value, shardings: Iterator[SingleSharding], device: Device) -> Value:
    if isinstance(value, tuple):
        return tuple(_tiles(part, shardings, device) for part in value)
    array, leaf = as_array(value), next(shardings)
    if leaf.kind != "tiled":
        return array
    division = division_of(Shape.array("u8", array.shape), leaf, device.world.partitions)
    return np.array(array[division.ranges(division.tile_of[device.partition])], order="C")


def _send(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Send a message without waiting; it is kept until the receiver takes it. A message to the host is dropped."""
    yield from ()
    if not instruction.is_host_transfer:
        channel = _channel(instruction)
        for source, target in _pairs(instruction, device):
            if source == device.id:
                post(device, ("send", channel), target, operands[0])
    return (operands[0], *(zeros(element) for element in instruction.shape.tuple_shapes[1:]))


def _send_done(_instruction: HloInstruction, _operands: list[Value], _device: Device) -> Frame:
    yield from ()
    return TOKEN


def _recv(instruction: HloInstruction, _operands: list[Value], device: Device) -> Frame:
    """Return the recv's value, whose context is the source device plus 1, or 0 without a source.

    The recv-done reads it there: it may be far away, in another iteration of a loop.
    """
    yield from ()
    if instruction.is_host_transfer:
        raise unsupported(instruction, "'recv' from the host: it has no host that sends")
    source = next((source for source, target in _pairs(instruction, device) if target == device.id), -1)
    data, _, token = as_tuple(zeros(instruction.shape))
    return data, np.asarray(source + 1, np.uint32), token


def _recv_done(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Wait for the message and return it; a device that is not a target gets zeros, as with collective-permute."""
    data, context, token = as_tuple(operands[0])
    source = int(as_array(context)) - 1
    if source < 0:
        return data, token
    return (yield receive(instruction, device, ("send", _channel(instruction)), source)), token


def _channel(instruction: HloInstruction) -> int:
    return instruction.channel_id or 0


def _pairs(instruction: HloInstruction, device: Device) -> list[tuple[int, int]]:
    """Return the (source, target) pairs of a transfer; on one device, the default is that it sends to itself."""
    text = str(instruction.frontend_attributes or "")
    _, found, rest = text.partition("_xla_send_recv_source_target_pairs=")
    if found:
        end = rest.find("}}")
        return [(int(source), int(target)) for source, target in _PAIR.findall(rest[: end + 2])]
    if device.world.size > 1:
        raise Unsupported(
            f"'{instruction.opcode}' has no source-target pairs",
            instruction.where,
            hint='add frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}',
            notes=(f"instruction %{instruction.name}",),
        )
    return [(0, 0)]


PROGRAM: dict[Opcode, ProgramEvaluator] = {
    "infeed": _infeed,
    "outfeed": _outfeed,
    "send": _send,
    "send-done": _send_done,
    "recv": _recv,
    "recv-done": _recv_done,
}
