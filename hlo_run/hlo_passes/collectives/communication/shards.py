"""Tells whether each device slices its own shard out of a collective's result.

    offset = reshape(dynamic-slice(s32[4] constant({0, 2, 4, 6}), partition-id))      the table of offsets by device
    own = f32[2,3] dynamic-slice(f32[8,3] all-reduce(x), offset, 0)

Offsets are computed for every device of every group: constants, tables, products with a constant, differences and clamps of the
number of the device. XLA's `MatchWithDynamicSlice`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.views.collectives import Collective
from hlo_run.hlo_passes.collectives.communication.reshapes import kept_dims
from hlo_run.ops.groups import device_counts

# The number of a device that an instruction has, from the number of the device in the groups; None if it has none.
DeviceNumber = Callable[[HloInstruction, int], "int | None"]
_SAME_VALUE: tuple[Opcode, ...] = ("reshape", "bitcast", "copy")
_TABLE_TYPES = ("s32", "u32")


class OwnShard(Struct, frozen=True):
    """The dynamic-slice of a device's own shard, the dimension of the collective's result that it divides, and into how many."""

    slice: HloInstruction
    dim: int
    count: int


def own_shard(collective: HloInstruction) -> OwnShard | None:
    """Return the shard if the only user of an all-reduce or all-gather is a dynamic-slice, or one after a reshape, of it."""
    if not collective.shape.is_array or collective.constrains_layout or len(collective.users) != 1:
        return None
    if all(size == 1 for size in collective.shape.dims):
        return None
    groups = collective.replica_groups.groups()
    if len({len(group) for group in groups}) > 1:
        return None
    (user,) = collective.users
    reshape = user if user.opcode == "reshape" else None
    if reshape is not None:
        if len(reshape.users) != 1:
            return None
        (user,) = reshape.users
    if user.opcode != "dynamic-slice" or user.operands[0] is not (reshape or collective):
        return None
    size = participants(collective)
    dim = _divided_dim(user)
    if size < 2 or dim is None or not user.shape.dims[dim] or user.operands[0].shape.dims[dim] // user.shape.dims[dim] != size:
        return None
    if not _is_own(collective, user.operands[dim + 1], user.shape.dims[dim], size):
        return None
    if reshape is not None:
        kept = {after: before for before, after in kept_dims(collective.shape.dims, reshape.shape.dims)}
        if dim not in kept:
            return None
        dim = kept[dim]
    return OwnShard(user, dim, size)


def participants(collective: HloInstruction) -> int:
    """Return the number of devices in a group, which numbers replicas, partitions of one replica, or all devices."""
    replicas, partitions = device_counts(collective)
    view = Collective.of(collective)
    groups = view.groups
    if not view.has_channel or view.has_global_ids:
        return len(groups[0]) if groups else replicas
    return partitions if len(groups) == replicas and all(len(group) == 1 for group in groups) else 0


def _divided_dim(user: HloInstruction) -> int | None:
    """Return the only dimension that a dynamic-slice divides."""
    before = user.operands[0].shape.dims
    divided = [dim for dim, size in enumerate(before) if size != user.shape.dims[dim]]
    if len(divided) != 1:
        offsets = user.operands[1:]
        divided = [dim for dim, size in enumerate(before) if size != 1 and scalar_constant(offsets[dim]) != 0]
    return divided[0] if len(divided) == 1 else None


def _is_own(collective: HloInstruction, offset: HloInstruction, shard_size: int, count: int) -> bool:
    """True if the offset of the n-th device of each group is n shards."""
    view = Collective.of(collective)
    groups: Sequence[Sequence[int]] = view.groups
    if not groups or (view.has_channel and not view.has_global_ids):
        groups = [range(count)]
    number = device_number(collective)
    places = ((place, device) for group in groups for place, device in enumerate(group[:count]))
    return all(offset_on(offset, device, number) == place * shard_size for place, device in places)


def device_number(collective: HloInstruction) -> DeviceNumber:
    """Return how the numbers in a collective's groups follow from `replica-id` and `partition-id`."""
    replicas, partitions = device_counts(collective)
    view = Collective.of(collective)
    if not view.has_channel:
        return lambda value, device: device if value.opcode == "replica-id" else None
    if not view.has_global_ids:
        return lambda value, device: device if value.opcode == "partition-id" else None
    is_orthogonal = _has_orthogonal_replicas(collective, partitions)

    def number(value: HloInstruction, device: int) -> int | None:
        if value.opcode == "replica-id":
            return device if partitions == 1 else None
        if value.opcode == "partition-id":
            return device if replicas == 1 else device % partitions if is_orthogonal else None
        return device if _is_global_number(value, partitions) else None

    return number


def _has_orthogonal_replicas(collective: HloInstruction, partitions: int) -> bool:
    """True if a partition has the same place in its group in every replica, and groups are within one replica."""
    places: dict[int, int] = {}
    for group in collective.replica_groups.groups():
        for place, device in enumerate(group):
            first = places.setdefault(device % partitions, place)
            if first != place or device // partitions != group[0] // partitions:
                return False
    return True


def _is_global_number(value: HloInstruction, partitions: int) -> bool:
    """True for partition-id + replica-id * partitions, in any order."""
    if value.opcode != "add":
        return False
    for own, other in (value.operands, reversed(value.operands)):
        if own.opcode == "partition-id" and other.opcode == "multiply":
            for one, two in (other.operands, reversed(other.operands)):
                if one.opcode == "replica-id" and scalar_constant(two) == partitions:
                    return True
    return False


def offset_on(value: HloInstruction, device: int, number: DeviceNumber) -> int | None:
    """Return the value of a scalar on a device, or None if it is not known."""
    value = _source(value)
    if value.opcode == "multiply":
        for one, two in (value.operands, reversed(value.operands)):
            factor = scalar_constant(one)
            if factor is not None:
                inner = offset_on(two, device, number) if factor else None
                return None if inner is None else inner * factor
        return None
    if value.opcode == "clamp":
        low, high = scalar_constant(value.operands[0]), scalar_constant(value.operands[2])
        inner = offset_on(value.operands[1], device, number)
        return None if inner is None or low is None or high is None else max(low, min(inner, high))
    if value.opcode == "subtract":
        one, two = (offset_on(operand, device, number) for operand in value.operands)
        return None if one is None or two is None or not _have_one_source(value) else one - two
    if is_table_lookup(value):
        return table_entry(value, device, number)
    return number(value, device)


def _have_one_source(difference: HloInstruction) -> bool:
    """False if a multiple of one number and a table's entry for another one are subtracted."""
    one, two = (_source(operand) for operand in difference.operands)
    if one.opcode != "multiply" or not is_table_lookup(two):
        return True
    own = next((o for o, other in (one.operands, reversed(one.operands)) if other.opcode == "constant"), None)
    return own is None or _source(own) is _source(_source(two).operands[1])


def _source(value: HloInstruction) -> HloInstruction:
    """Look through instructions that do not change a number: reshapes, wider integers, clamps of numbers within their limits."""
    while True:
        if value.opcode in _SAME_VALUE or (value.opcode == "convert" and _widens(value)):
            value = value.operands[0]
        elif value.opcode == "clamp":
            low, high = scalar_constant(value.operands[0]), scalar_constant(value.operands[2])
            limits = _limits(value.operands[1])
            if low is None or high is None or limits is None or limits[0] < low or limits[1] > high:
                return value
            value = value.operands[1]
        else:
            return value


def _widens(convert: HloInstruction) -> bool:
    before, after = convert.operands[0].shape.dtype, convert.shape.dtype
    is_integer = all(t.name[0] in "su" and not t.is_float for t in (before, after))
    return is_integer and before.bits <= after.bits


def _limits(value: HloInstruction) -> tuple[int, int] | None:
    """Return the least and the largest value of a table's entries or of a constant."""
    while value.opcode in (*_SAME_VALUE, "convert"):
        value = value.operands[0]
    if is_table_lookup(value) and value.operands[0].opcode == "constant":
        entries = [int(entry) for entry in value.operands[0].constant_array]
        return min(entries), max(entries)
    number = scalar_constant(value)
    return None if number is None else (number, number)


def is_table_lookup(value: HloInstruction) -> bool:
    """True for a dynamic-slice, perhaps reshaped, of one integer out of a constant or an iota of one dimension."""
    while value.opcode in _SAME_VALUE:
        value = value.operands[0]
    table = value.operands[0] if value.opcode == "dynamic-slice" else None
    if table is None or table.opcode not in ("constant", "iota"):
        return False
    return table.shape.rank == 1 and table.shape.element_type in _TABLE_TYPES


def table_entry(value: HloInstruction, device: int, number: DeviceNumber) -> int | None:
    """Return the entry that a table lookup reads on a device, or None if its index is not known."""
    while value.opcode in _SAME_VALUE:
        value = value.operands[0]
    table, index = value.operands
    place = number(index, device)
    if place is None:
        place = table_entry(index, device, number) if is_table_lookup(index) else None
    if place is None or table.opcode == "iota":
        return place
    entries = table.constant_array
    return int(entries[place]) if 0 <= place < len(entries) else None


def table_offset(offset: HloInstruction, partition: int, size: int) -> int | None:
    """Return an offset on a partition: an entry of a table by partition, or its multiple by a divisor of the slice's size."""

    def number(value: HloInstruction, device: int) -> int | None:
        return device if value.opcode == "partition-id" else None

    while offset.opcode in ("reshape", "bitcast", "copy"):
        offset = offset.operands[0]
    factor = 1
    if offset.opcode == "multiply":
        factors = [(f, other) for f, other in zip(map(scalar_constant, offset.operands), reversed(offset.operands), strict=True)]
        known = [(f, other) for f, other in factors if f is not None]
        if not known or not known[0][0] or size % known[0][0]:
            return None
        factor, offset = known[0]
    entry = table_entry(offset, partition, number) if is_table_lookup(offset) else None
    return None if entry is None else entry * factor


def scalar_constant(value: HloInstruction) -> int | None:
    """Return the number of an integer constant with one element, or None."""
    if value.opcode != "constant" or not value.shape.is_array or math.prod(value.shape.dims) != 1:
        return None
    return None if value.shape.dtype.is_float or value.shape.dtype.is_complex else int(value.constant_array.reshape(())[()])
