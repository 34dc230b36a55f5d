"""Let groups of devices work by themselves: their states, their shardings aligned, and their shares of a whole value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.records import replace
from hlo_run.sharding.partitioning.offsets import in_group_id, look_up, partition_offsets
from hlo_run.sharding.partitioning.state import Builder, State
from hlo_run.sharding.values.groups import GroupedSharding
from hlo_run.sharding.values.make import device_array, divides_evenly, listed_tiles, shard_shape


def group_state(state: State, devices: TileAssignment) -> State:
    """Return the state inside of groups of devices, one row of `devices` each."""
    size = devices.dims[1]
    listed = devices.devices()
    groups = [listed[first : first + size] for first in range(0, len(listed), size)]
    cache = state.group_caches.setdefault(tuple(groups), {})
    partition_id = in_group_id(state.builder, groups, state.partition_id)
    return replace(state, partition_id=partition_id, cache=cache, group_caches={}, devices=devices, parent=state)


def state_in(builder: Builder, state: State) -> State:
    """Return the state for instructions of another computation, with its own number of the device."""
    if state.devices is not None and state.parent is not None:
        return group_state(state_in(builder, state.parent), state.devices)
    partition_id = builder.add("partition-id", Shape.array("u32", ()))
    return replace(state, builder=builder, partition_id=partition_id, cache={}, group_caches={}, windows={})


def align(
    grouped: GroupedSharding, reference: GroupedSharding, ignores_order: bool = False, is_strict: bool = False
) -> GroupedSharding | None:
    """Return the sharding inside of the groups of `reference`, whose devices may be in another order.

    With `is_strict`, returns None unless each group has the same devices and the same order of them relative to `reference`.
    """
    if isinstance(grouped.devices.order, Iota) and grouped.devices == reference.devices:
        return grouped
    own, others = grouped.groups(), reference.groups()
    group_of = {device: number for number, row in enumerate(others) for device in row}
    permutation: list[int] = []
    for number, row in enumerate(own):
        targets = {group_of[device] for device in row}
        if len(targets) != 1 or (not ignores_order and targets != {number}):
            if is_strict:
                return None
            return replace(grouped, devices=reference.devices)
        (target,) = targets
        moved = [others[target].index(device) for device in row]
        if number == 0:
            permutation = moved
        elif is_strict and moved != permutation:
            return None
    sharding = grouped.sharding
    if sharding.tiles is not None:
        places = np.array(permutation)[device_array(sharding)]
        sharding = tiled(listed_tiles(places), sharding.subgroups)
    return replace(grouped, sharding=sharding, devices=reference.devices)


def aligned(grouped: GroupedSharding, reference: GroupedSharding, ignores_order: bool = False) -> GroupedSharding:
    """Return `align` when it need not be strict."""
    found = align(grouped, reference, ignores_order)
    assert found is not None, "only a strict alignment fails"
    return found


def base_in_group(grouped: GroupedSharding, base: Shape) -> Shape:
    """Return the shape of a group's share of a value."""
    dims = list(base.dims)
    for dim, size in zip(grouped.dims, grouped.dim_sizes, strict=True):
        if dim < len(dims):
            dims[dim] = -(-dims[dim] // size)
    return replace(base, dims=tuple(dims))


def pad_to_tiles(b: Builder, value: HloInstruction, sharding: SingleSharding, fill: int = 0) -> HloInstruction:
    """Pad a whole value with `fill` such that the tiles divide it evenly."""
    if divides_evenly(value.shape, sharding):
        return value
    part = shard_shape(value.shape, sharding)
    pairs = zip(value.shape.dims, part.dims, sharding.data_dims, strict=True)
    edges = [(0, own * count - size, 0) for size, own, count in pairs]
    return b.pad(value, b.constant(fill, value.shape.element_type), edges)


def slice_of_group(
    b: Builder,
    whole: HloInstruction,
    partition_id: HloInstruction,
    devices: TileAssignment,
    dims: Sequence[int],
    sizes: Sequence[int],
) -> HloInstruction:
    """Return the share of a whole value that the device's group has; the groups divide `dims` into `sizes`."""
    size = devices.dims[1]
    table = [0] * devices.count
    for place, device in enumerate(devices.devices()):
        table[device] = place // size
    group_id = look_up(b, table, "u32", partition_id)
    tile_dims = [1] * whole.shape.rank
    for dim, count in zip(dims, sizes, strict=True):
        tile_dims[dim] = count
    places = np.arange(int(np.prod(sizes))).reshape(list(sizes))
    order = sorted(range(len(dims)), key=lambda n: dims[n])
    sharding = SingleSharding("tiled", tiles=listed_tiles(places.transpose(order).reshape(tile_dims)))
    padded = pad_to_tiles(b, whole, sharding)
    part = shard_shape(whole.shape, sharding)
    return b.dynamic_slice(padded, partition_offsets(b, whole.shape, sharding, group_id), part.dims)
