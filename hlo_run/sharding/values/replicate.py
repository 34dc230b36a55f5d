"""Transpose shardings, and stop dividing some of their dimensions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.values.make import REPLICATED, with_tiles


def transpose(sharding: SingleSharding, perm: Sequence[int]) -> SingleSharding:
    """Return the sharding of the transposed array: its dimension i is dimension `perm[i]`. Subgroups stay, or are in `perm`."""
    if sharding.tiles is None:
        return sharding
    order = [*perm, *range(len(perm), len(sharding.dims))]
    subgroups = [sharding.subgroups[dim - sharding.data_rank] for dim in order[sharding.data_rank :]]
    return with_tiles(sharding, sharding.tiles.transpose(order), subgroups)


def replicate_dims(sharding: SingleSharding, dims: Collection[int]) -> SingleSharding:
    """Return the sharding that does not divide `dims`: the devices along them have the same data."""
    if sharding.tiles is None:
        return sharding
    copies = math.prod(sharding.dims[dim] for dim in set(dims))
    if copies == 1:
        return sharding
    if copies == sharding.tile_count and not sharding.subgroups:
        return replace(REPLICATED, metadata=sharding.metadata)
    rank = sharding.data_rank
    perm = sorted(range(rank), key=lambda dim: dim in dims)
    tiles = sharding.tiles.transpose([*perm, *range(rank, len(sharding.dims))])
    kept = tuple(1 if dim in dims else sharding.dims[dim] for dim in range(rank))
    groups = sharding.dims[rank:]
    if sharding.subgroups == ("replicated",):
        return with_tiles(sharding, tiles.reshape((*kept, groups[0] * copies)))
    return with_tiles(sharding, tiles.reshape((*kept, copies, *groups)), ("replicated", *sharding.subgroups))


def keep_dims(sharding: SingleSharding, dims: Collection[int]) -> SingleSharding:
    """Return the sharding that divides no other dimension than `dims`."""
    return replicate_dims(sharding, [dim for dim in range(sharding.data_rank) if dim not in dims])
