"""Move the dimensions of shardings: transpose, reshape, reverse, replicate, add and remove them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.records import replace
from hlo_run.sharding.values.groups import group_on_dims, ungroup
from hlo_run.sharding.values.make import REPLICATED, device_array, iota_tiles, listed_tiles, partial_tile, with_tiles
from hlo_run.sharding.values.merge import merged
from hlo_run.sharding.values.replicate import keep_dims, replicate_dims


def reverse(sharding: SingleSharding, dims: Collection[int]) -> SingleSharding:
    """Return the sharding of an array reversed along `dims`: tiles go to the devices of their mirror images."""
    if sharding.tiles is None or not dims:
        return sharding
    return with_tiles(sharding, listed_tiles(np.flip(device_array(sharding), tuple(dims))))


def remove_dims(sharding: SingleSharding, dims: Collection[int]) -> SingleSharding:
    """Return the sharding without dimensions of the array, which must not be divided."""
    if sharding.tiles is None or not dims:
        return sharding
    return with_tiles(sharding, sharding.tiles.reshape(tuple(n for d, n in enumerate(sharding.dims) if d not in dims)))


def all_data_replicated(sharding: SingleSharding, rank: int = -1) -> SingleSharding:
    """Return the sharding that divides no dimension of an array of `rank` (default: as now), with the manual subgroups."""
    if sharding.is_manual:
        return sharding
    if not sharding.subgroups:
        return replace(REPLICATED, metadata=sharding.metadata)
    result = keep_dims(sharding, ())
    if rank >= 0 and result.tiles is not None and rank != result.data_rank:
        result = tiled(result.tiles.reshape((1,) * rank + result.dims[result.data_rank :]), result.subgroups)
    return result


def transpose_collapsing(sharding: SingleSharding, to_target: Sequence[int], to_source: Sequence[int]) -> SingleSharding | None:
    """Return the sharding of an array whose dimension i comes from dimension `to_source[i]`, or is new where that is -1.

    `to_target` is the inverse; -1 is a dimension that vanishes. Returns None if such a dimension is divided.
    """
    if sharding.tiles is None:
        return sharding
    if any(target < 0 and count > 1 for target, count in zip(to_target, sharding.data_dims, strict=True)):
        return None
    gone = [dim for dim, target in enumerate(to_target) if target < 0]
    kept = [source for source in to_source if source >= 0]
    groups = range(sharding.data_rank, len(sharding.dims))
    tiles = sharding.tiles.transpose([*kept, *gone, *groups])
    dims = [1 if source < 0 else sharding.dims[source] for source in to_source]
    return with_tiles(sharding, tiles.reshape((*dims, *(sharding.dims[d] for d in groups))))


def along_dims(
    sharding: SingleSharding, source_dims: Sequence[int], target_dims: Sequence[int], target_rank: int
) -> SingleSharding:
    """Return the sharding of another array whose `target_dims` are divided as `source_dims`, the others not at all."""
    if sharding.tiles is None:
        return sharding
    kept = keep_dims(sharding, source_dims)
    if kept.tiles is None:
        return kept
    pairs = sorted(zip(target_dims, source_dims, strict=True))
    perm = [source for _, source in pairs]
    perm += [dim for dim in range(len(kept.dims)) if dim not in perm]
    dims = [1] * target_rank
    for target, source in pairs:
        dims[target] = sharding.dims[source]
    return with_tiles(kept, kept.tiles.transpose(perm).reshape((*dims, *kept.dims[kept.data_rank :])))


def move_tiles(sharding: SingleSharding, source: int, target: int) -> SingleSharding:
    """Divide dimension `target` as `source` was too, below the tiles that it has, and do not divide `source`."""
    assert sharding.tiles is not None, "a sharding with tiles"
    dims = list(sharding.dims)
    dims.insert(target + 1, 1)
    tiles = sharding.tiles.reshape(tuple(dims))
    perm = list(range(len(dims)))
    place = source + (0 if source < target else 1)
    perm[target + 1], perm[place] = perm[place], perm[target + 1]
    tiles = tiles.transpose(perm)
    dims = list(tiles.dims)
    dims[target] *= dims.pop(target + 1)
    return with_tiles(sharding, tiles.reshape(tuple(dims)))


def target_for_tiles(shape_dims: Sequence[int], sharding: SingleSharding, source: int, allowed: Collection[int]) -> int | None:
    """Return the first of the `allowed` dimensions that can also take the tiles of dimension `source` evenly, or None."""
    if len(shape_dims) < 2 or shape_dims[source] == 1 or sharding.kind != "tiled" or sharding.dims[source] == 1:
        return None
    for dim, size in enumerate(shape_dims):
        if dim != source and dim in allowed and size % (sharding.dims[source] * sharding.dims[dim]) == 0:
            return dim
    return None


def split_dim(sharding: SingleSharding, dim: int, major: int) -> SingleSharding:
    """Return the sharding with dimension `dim` split into one of `major` tiles and one of the others."""
    assert sharding.tiles is not None, "a sharding with tiles"
    dims = sharding.dims
    return with_tiles(sharding, sharding.tiles.reshape((*dims[:dim], major, dims[dim] // major, *dims[dim + 1 :])))


def reshape(source: Sequence[int], target: Sequence[int], sharding: SingleSharding) -> SingleSharding | None:
    """Return the sharding after a reshape from dimensions `source` to `target`, or None if no tile stays in one piece.

    A dimension may be split, and dimensions joined of which only the major one is divided.
    """
    if sharding.tiles is None:
        return sharding
    if 0 in source or 0 in target:
        return None
    found = _reshaped_tiles(source, target, sharding)
    if found is None or math.prod(found[0]) == 1:
        return None
    tile_dims, to_replicate = found
    kept = replicate_dims(sharding, to_replicate)
    if kept.tiles is None:
        return kept
    subgroups = list(kept.subgroups)
    dims = [
        *tile_dims,
        *(1 if kind == "replicated" else n for kind, n in zip(subgroups, kept.dims[kept.data_rank :], strict=True)),
    ]
    copies = kept.device_count // math.prod(dims)
    if "replicated" in subgroups:
        dims[len(tile_dims) + subgroups.index("replicated")] = copies
    elif copies > 1:
        dims.append(copies)
        subgroups.append("replicated")
    return with_tiles(kept, kept.tiles.reshape(tuple(dims)), subgroups)


def _reshaped_tiles(source: Sequence[int], target: Sequence[int], sharding: SingleSharding) -> tuple[list[int], list[int]] | None:
    """Return the tiles of each dimension of `target`, and the dimensions of size 1 whose tiles find no place."""
    tiles = [1] * len(target)
    to_replicate: list[int] = []
    # The rests of the current dimensions and of the tiles of the current source dimension.
    s, t = 0, 0
    left, left_tiles = (source[0], sharding.dims[0]) if source else (1, 1)
    wanted = target[0] if target else 1
    while s < len(source) and t < len(target):
        undivided = 1
        while s < len(source) and left_tiles == 1:
            undivided *= left
            s += 1
            if s < len(source):
                left, left_tiles = source[s], sharding.dims[s]
        while t < len(target) and undivided != 1 and undivided % wanted == 0:
            undivided //= wanted
            t += 1
            if t < len(target):
                wanted = target[t]
        if s == len(source) or t == len(target) or undivided != 1:
            break
        advance_source = advance_target = False
        if left == wanted:
            if wanted != target[t] and left % left_tiles:
                tiles[t] *= math.gcd(left, left_tiles)
                break
            tiles[t] *= left_tiles
            advance_source = advance_target = True
        elif wanted == 1:
            advance_target = True
        elif left == 1:
            if left_tiles > 1:
                to_replicate.append(s)
            advance_source = True
        elif left % left_tiles:
            return None
        else:
            common = math.gcd(left_tiles, wanted)
            if common == 1:
                break
            left, left_tiles, wanted = left // common, left_tiles // common, wanted // common
            tiles[t] *= common
        if advance_source:
            s += 1
            if s < len(source):
                left, left_tiles = source[s], sharding.dims[s]
        if advance_target:
            t += 1
            if t < len(target):
                wanted = target[t]
    return tiles, to_replicate


def through_reshape(source: Sequence[int], target: Sequence[int], sharding: SingleSharding) -> SingleSharding:
    """Return the sharding that a reshape gives to its result: the tiles that survive; replicated if none does.

    Unlike `reshape`, it takes the longest runs of dimensions that survive by themselves.
    """
    if sharding.tiles is None:
        return sharding
    if "manual" in sharding.subgroups:
        group = group_on_dims(sharding, [sharding.subgroup_dim("manual")], subgroup_manual=True)
        inner = through_reshape(source, target, group.sharding)
        more = len(target) - len(source)
        dims = (group.dims[0] + more, *group.dims[1:])
        return ungroup(replace(group, sharding=inner, data_rank=len(target), dims=dims))
    result = REPLICATED
    start = 0
    while start < len(source):
        for end in range(len(source), start, -1):
            one = _through_one_run(source, target, sharding, start, end)
            joined = merged(one, result, result.tile_count + 1) if one is not None else None
            if joined is not None:
                result, start = joined, end
                break
        else:
            start += 1
    return replace(result, metadata=sharding.metadata)


def _through_one_run(
    source: Sequence[int], target: Sequence[int], sharding: SingleSharding, start: int, end: int
) -> SingleSharding | None:
    assert sharding.tiles is not None
    run = [sharding.dims[dim] if start <= dim < end else 1 for dim in range(len(source))]
    found = reshape(source, target, SingleSharding("tiled", tiles=iota_tiles(run)))
    if found is None:
        return None
    rank = len(source)
    perm = [*range(start, end), *range(start), *range(end, rank), *range(rank, len(sharding.dims))]
    dims = list(found.dims)
    copies = sharding.device_count // math.prod(dims)
    if len(dims) == len(target):
        dims.append(copies)
    else:
        dims[-1] *= copies
    return partial_tile(sharding.tiles.transpose(perm).reshape(tuple(dims)))
