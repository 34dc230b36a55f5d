"""Groups of devices: divide the devices of a sharding along some dimensions, with one sharding inside of all groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.records import replace
from hlo_run.sharding.values.make import REPLICATED, device_array, iota_tiles, listed_tiles, partial_tile


class GroupedSharding(Struct, frozen=True):
    """Groups of devices and the sharding of a group's array over the group's members 0, 1, 2, ...

    `devices` has one row per group. `dims` are the tile dimensions that divide the devices into groups, `dim_sizes` how many
    groups there are along each. `data_rank` is the rank of the array. `subgroup_manual` marks groups of a manual subgroup.
    """

    devices: TileAssignment
    dims: tuple[int, ...]
    dim_sizes: tuple[int, ...]
    data_rank: int
    sharding: SingleSharding
    subgroup_manual: bool = False

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the devices of each group."""
        size = self.devices.dims[1]
        listed = self.devices.devices()
        return tuple(listed[first : first + size] for first in range(0, len(listed), size))


def group_on_dims(
    sharding: SingleSharding, dims: Sequence[int], shards: Sequence[int] = (), subgroup_manual: bool = False
) -> GroupedSharding:
    """Group the devices along tile dimensions `dims`.

    `shards` has the number of tiles that each keeps inside of a group (default 1).
    """
    assert sharding.tiles is not None, "a sharding with tiles"
    inner = list(sharding.dims)
    sizes: list[int] = []
    for dim, shard in zip(dims, shards or (1,) * len(dims), strict=True):
        sizes.append(sharding.dims[dim] // shard)
        inner[dim] = shard
    split: list[int] = []
    outer_place: dict[int, int] = {}
    for dim, size in enumerate(inner):
        if dim in dims:
            outer_place[dim] = len(split)
            split.append(sharding.dims[dim] // size)
        split.append(size)
    perm = [outer_place[dim] for dim in dims]
    perm += [place for place in range(len(split)) if place not in perm]
    count = math.prod(sizes)
    per_group = sharding.device_count // count
    devices = sharding.tiles.reshape(tuple(split)).transpose(perm).reshape((count, per_group))
    rank = sharding.data_rank
    grouped = GroupedSharding(devices, tuple(dims), tuple(sizes), rank, REPLICATED, subgroup_manual)
    if math.prod(inner) == 1 or (sharding.subgroups == ("replicated",) and math.prod(inner) == inner[-1]):
        return grouped
    kept = [(n, kind) for n, kind in zip(inner[rank:], sharding.subgroups, strict=True) if kind != "manual"]
    subgroups = [kind for n, kind in kept if n > 1]
    tiles = iota_tiles([*inner[:rank], *(n for n, _ in kept if n > 1)])
    return replace(grouped, sharding=tiled(tiles, subgroups, sharding.metadata))


def group_all_but(sharding: SingleSharding, kept: Sequence[int]) -> GroupedSharding:
    """Group the devices along all tile dimensions, subgroups too, except `kept`."""
    return group_on_dims(sharding, [dim for dim in range(len(sharding.dims)) if dim not in kept])


def manual_groups(sharding: SingleSharding) -> GroupedSharding:
    """Group the devices that a manual subgroup distinguishes: inside of a group, the compiler divides the work."""
    return group_on_dims(sharding, [sharding.subgroup_dim("manual")], subgroup_manual=True)


def replicated_groups(group_count: int, device_count: int, data_rank: int) -> GroupedSharding:
    """Return groups of successive devices in which the array is replicated."""
    devices = iota_tiles((group_count, device_count // group_count))
    return GroupedSharding(devices, (data_rank,), (group_count,), data_rank, REPLICATED)


def group_on_replicated(
    sharding: SingleSharding, group_count: int, device_count: int, data_rank: int, replicable: Sequence[int] = ()
) -> GroupedSharding:
    """Return `group_count` groups of devices such that each group has the whole array, and divides it as far as possible.

    Takes the devices with the same data first, then devices along the dimensions `replicable`, else replicates.
    """
    last = sharding.dims[-1] if sharding.subgroups == ("replicated",) else 1
    if sharding.subgroups == ("replicated",) and last % group_count == 0:
        return group_on_dims(sharding, [len(sharding.dims) - 1], [last // group_count])
    if sharding.kind == "tiled" and sharding.subgroups in ((), ("replicated",)):
        most = last * math.prod(sharding.dims[dim] for dim in replicable)
        if most % group_count == 0 and group_count % last == 0:
            tiles = _borrowed(sharding, group_count // last, replicable)
            borrowed = partial_tile(tiles, sharding.metadata) if tiles is not None else REPLICATED
            if not borrowed.is_replicated:
                return group_on_dims(borrowed, [len(borrowed.dims) - 1])
    return replicated_groups(group_count, device_count, data_rank)


def _borrowed(sharding: SingleSharding, missing: int, replicable: Sequence[int]) -> TileAssignment | None:
    dims = [*sharding.dims] if sharding.subgroups else [*sharding.dims, 1]
    for dim in replicable:
        for factor in _prime_factors(sharding.dims[dim]):
            if missing % factor == 0:
                dims[dim] //= factor
                dims[-1] *= factor
                missing //= factor
                if missing == 1:
                    return iota_tiles(dims)
    return None


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors that XLA tries: of an odd number, all up to its square root."""
    found: list[int] = []
    while number % 2 == 0:
        found.append(2)
        number //= 2
    factor = 3
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 2
    return found


def ungroup(grouped: GroupedSharding) -> SingleSharding:
    """Return the sharding over all devices."""
    inside = grouped.sharding
    per_group = grouped.devices.dims[1]
    subgroups: list[str] = list(inside.subgroups)
    if inside.tiles is None:
        dims = [1] * grouped.data_rank
        if per_group != 1 or grouped.data_rank in grouped.dims:
            dims.append(per_group)
            subgroups = ["replicated"]
        tiles = iota_tiles(dims)
    else:
        dims, tiles = list(inside.dims), inside.tiles
    if grouped.subgroup_manual:
        for dim in grouped.dims:
            dims.insert(dim, 1)
            subgroups.insert(dim - grouped.data_rank, "manual")
        if inside.tiles is None and per_group == 1 and "replicated" not in subgroups:
            dims.append(1)
            subgroups.append("replicated")
    elif len(dims) in grouped.dims:
        dims.append(1)
        subgroups = ["replicated"]
    # Rows are groups; the members of a row are put in the order of the tiles inside.
    count = grouped.devices.dims[0]
    if isinstance(tiles.order, Iota):
        order = tiles.order
        split = grouped.devices.reshape((count, *order.reshape_dims))
        flat = split.transpose([0, *(dim + 1 for dim in order.transpose_perm)])
    else:
        rows = grouped.groups()
        flat = TileAssignment((count, per_group), tuple(row[place] for row in rows for place in tiles.order))
    flat = flat.reshape((*grouped.dim_sizes, *dims))
    perm: list[int] = []
    for dim in range(len(dims)):
        if dim in grouped.dims:
            perm.append(grouped.dims.index(dim))
        perm.append(len(grouped.dims) + dim)
    whole = list(dims)
    for dim, size in zip(grouped.dims, grouped.dim_sizes, strict=True):
        whole[dim] *= size
    result = flat.transpose(perm).reshape(tuple(whole))
    return tiled(result, subgroups, inside.metadata if grouped.subgroup_manual else ())


def same_groups(one: GroupedSharding, two: GroupedSharding, ignores_order: bool = False) -> bool:
    """True if both have the same sets of devices as groups, in the same order unless `ignores_order`."""
    if one.devices.dims[0] != two.devices.dims[0]:
        return False
    left, right = [set(g) for g in one.groups()], [set(g) for g in two.groups()]
    return all(g in left for g in right) if ignores_order else left == right


def with_groups_of(sharding: SingleSharding, like: GroupedSharding) -> GroupedSharding | None:
    """Group the devices that have the same data into the groups of `like`; None if its groups do not fit."""
    count = like.devices.dims[0]
    if sharding.subgroups != ("replicated",) or sharding.dims[-1] % count:
        return None
    places = device_array(sharding)
    dims = (*sharding.dims[:-1], sharding.dims[-1] // count)
    index = {int(device): place for place, device in np.ndenumerate(places)}
    final: SingleSharding | None = None
    for row in like.groups():
        grid = np.full(dims, -1, np.int64)
        used: dict[tuple[int, ...], int] = {}
        for number, device in enumerate(row):
            at = index[device][:-1]
            position = used.get(at, 0)
            if position == dims[-1]:
                return None
            grid[(*at, position)] = number
            used[at] = position + 1
        one = partial_tile(listed_tiles(grid), sharding.metadata)
        if final is not None and not final.is_same(one):
            return None
        final = one
    assert final is not None
    last = len(sharding.dims) - 1
    return GroupedSharding(like.devices, (last,), (count,), last, final)
