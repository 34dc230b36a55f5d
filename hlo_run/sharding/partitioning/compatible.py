"""Find tiles that have another sharding's extents, and refine or coarsen a sharding without moves between devices."""

from __future__ import annotations

from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.sharding.values.make import with_tiles
from hlo_run.sharding.values.merge import is_subtiling


def compatible_with(partial: SingleSharding, target: SingleSharding) -> SingleSharding | None:
    """Return a sharding with the tile extents of `target` that divides `partial`, whose devices share data; None if none does.

    It is `target` itself if that divides `partial`.
    """
    if "replicated" not in partial.subgroups or partial.tiles is None or target.tiles is None:
        return None
    rank = partial.data_rank
    if partial.device_count != target.device_count or rank != target.data_rank:
        return None
    factors: list[int] = []
    for own, wanted in zip(partial.data_dims, target.data_dims, strict=True):
        if wanted % own:
            return None
        factors.append(wanted // own)
    if is_subtiling(target.data_dims, target, partial):
        return target
    expanded = [dim for dim in range(rank) if factors[dim] > 1]
    split = [*partial.data_dims, *(factors[dim] for dim in expanded)]
    perm: list[int] = []
    for dim in range(rank):
        perm.append(dim)
        if dim in expanded:
            perm.append(rank + expanded.index(dim))
    if target.subgroups == ("replicated",):
        split.append(target.dims[-1])
        perm.append(len(split) - 1)
    tiles = partial.tiles.reshape(tuple(split)).transpose(perm).reshape(target.dims)
    return tiled(tiles, target.subgroups) if target.subgroups else with_tiles(target, tiles)
