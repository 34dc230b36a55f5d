"""Numbers that depend on the device: look them up in a table, or compute them from the place of its tile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.sharding.partitioning.state import Builder
from hlo_run.sharding.values.make import device_array, shard_shape


def look_up(b: Builder, table: Sequence[int], element_type: str, place: HloInstruction) -> HloInstruction:
    """Return the scalar at `place` of a constant table."""
    values = b.constant(np.array(table), element_type)
    found = b.add("dynamic-slice", Shape.array(element_type, (1,)), [values, place], dynamic_slice_sizes=(1,))
    return b.add("reshape", Shape.array(element_type, ()), [found])


def partition_offsets(
    b: Builder, shape: Shape, sharding: SingleSharding, partition_id: HloInstruction, dims: Collection[int] = ()
) -> list[HloInstruction]:
    """Return per dimension (of all, or of `dims` only) the start of the device's tile, as an s32 scalar."""
    part = shard_shape(shape, sharding)
    places = device_array(sharding)
    found: list[HloInstruction] = []
    for dim in range(shape.rank):
        if sharding.dims[dim] == 1 or (dims and dim not in dims):
            found.append(b.constant(0, "s32"))
            continue
        table = [0] * sharding.device_count
        for place, device in np.ndenumerate(places):
            table[int(device)] = place[dim] * part.dims[dim]
        found.append(look_up(b, table, "s32", partition_id))
    return found


def tile_ordinals(b: Builder, sharding: SingleSharding, partition_id: HloInstruction) -> list[HloInstruction]:
    """Return per dimension the number of the device's tile, as an s32 scalar."""
    return partition_offsets(b, Shape.array("s32", sharding.data_dims), sharding, partition_id)


def in_group_id(b: Builder, groups: Sequence[Sequence[int]], partition_id: HloInstruction) -> HloInstruction:
    """Return the device's place in its group, as a u32 scalar."""
    table = [0] * sum(map(len, groups))
    for group in groups:
        for place, device in enumerate(group):
            table[device] = place
    return look_up(b, table, "u32", partition_id)


def _divide(number: int, divisor: int) -> int:
    """Divide as HLO does, towards zero."""
    return abs(number) // divisor * (1 if number >= 0 else -1)


class Linear(Struct, frozen=True):
    """A number per tile: (tile * `multiplier` + `offset`) / `divisor`, rounded towards zero."""

    multiplier: int
    offset: int = 0
    divisor: int = 1

    @staticmethod
    def of(multiplier: int, offset: int, divisor: int = 1) -> Linear:
        """Return the number in its simplest form."""
        if divisor != 1 and multiplier % divisor == 0 and (offset % divisor == 0 or offset * multiplier > 0):
            return Linear(multiplier // divisor, _divide(offset, divisor))
        return Linear(multiplier, offset, divisor)

    def at(self, tile: int) -> int:
        """Return the number for a tile."""
        return _divide(tile * self.multiplier + self.offset, self.divisor)

    @property
    def is_constant(self) -> bool:
        """True if all tiles have the same number."""
        return self.multiplier == 0

    def emit(self, b: Builder, tile: HloInstruction) -> HloInstruction:
        """Add instructions that compute the number of a tile."""
        if self.multiplier == 0:
            return b.constant(_divide(self.offset, self.divisor), "s32")
        result = tile
        if self.multiplier != 1:
            result = b.binary("multiply", tile, b.constant(self.multiplier, "s32"))
        if self.offset != 0:
            result = b.binary("add", result, b.constant(self.offset, "s32"))
        if self.divisor != 1:
            result = b.binary("divide", result, b.constant(self.divisor, "s32"))
        return result

    def most(self, begin: int, end: int) -> int:
        """Return the greatest number of the tiles from `begin` up to `end`; the number of `begin` if the range is empty."""
        if self.is_constant:
            return self.at(begin)
        return max(self.at(begin), self.at(end - 1))


class Combined(Struct, frozen=True):
    """Two numbers per tile, combined by an opcode."""

    opcode: Opcode
    left: Offset
    right: Offset

    def at(self, tile: int) -> int:
        """Return the number for a tile."""
        return _COMBINE[self.opcode](self.left.at(tile), self.right.at(tile))

    @property
    def is_constant(self) -> bool:
        """True if all tiles are known to have the same number."""
        if self.opcode == "subtract" and self.left == self.right:
            return True
        return self.left.is_constant and self.right.is_constant

    def emit(self, b: Builder, tile: HloInstruction) -> HloInstruction:
        """Add instructions that compute the number of a tile."""
        return b.binary(self.opcode, self.left.emit(b, tile), self.right.emit(b, tile))

    def most(self, begin: int, end: int) -> int:
        """Return the greatest number of the tiles from `begin` up to `end`; the number of `begin` if the range is empty."""
        if self.is_constant:
            return self.at(begin)
        return max(self.at(tile) for tile in range(begin, max(end, begin + 1)))


Offset = Linear | Combined

_COMBINE: dict[Opcode, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


def minus(left: Offset, right: Offset) -> Offset:
    """Return the difference of two numbers per tile."""
    if isinstance(left, Linear) and isinstance(right, Linear) and left.divisor == right.divisor == 1:
        return Linear.of(left.multiplier - right.multiplier, left.offset - right.offset)
    return Combined("subtract", left, right)


def plus(left: Offset, right: Offset) -> Offset:
    """Return the sum of two numbers per tile."""
    if isinstance(left, Linear) and isinstance(right, Linear) and left.divisor == right.divisor == 1:
        return Linear.of(left.multiplier + right.multiplier, left.offset + right.offset)
    return Combined("add", left, right)
