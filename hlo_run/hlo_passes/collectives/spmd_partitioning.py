"""Convert between whole arrays and each partition's shard; every partition runs the instructions between as written.

    f32[4] custom-call(f32[8] x), custom_call_target="SPMDFullToShardShape"   =>   dynamic-slice(x, start of the partition)
    f32[8] custom-call(f32[4] y), custom_call_target="SPMDShardToFullShape"   =>   the tiles of an all-gather(y), joined

The sharding of the operand, or of the result, maps partitions to tiles. XLA's `SpmdPartitioner` also partitions the
instructions outside of such manual regions; here every partition computes them whole, with the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.expansion import expand

_TO_SHARD, _TO_WHOLE = "SPMDFullToShardShape", "SPMDShardToFullShape"


@dataclass(frozen=True)
class SpmdPartitioning:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "spmd-partitioning"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        replicas, partitions = (int(module.attrs.get(name, 1)) for name in ("replica_count", "num_partitions"))

        def to_shard(b: HloBuilder, old: HloInstruction, whole: HloValue) -> HloValue:
            sharding = old.operands[0].sharding
            return whole if whole.shape.dims == old.shape.dims else _to_shard(b, old, whole, _Tiles(old, sharding, partitions))

        def to_whole(b: HloBuilder, old: HloInstruction, shard: HloValue) -> HloValue:
            if shard.shape.dims == old.shape.dims:
                return shard
            groups = [range(first, first + partitions) for first in range(0, replicas * partitions, partitions)]
            everyones = b.all_gather(
                b.reshape(shard, (1, *shard.shape.dims)),
                0,
                [list(group) for group in groups],
                channel_id=_free_channel(module),
                use_global_device_ids=True,
            )
            return _to_whole(b, old, everyones, _Tiles(old, old.sharding, partitions))

        expand(module, ("custom-call",), to_shard, lambda i: i.custom_call_target == _TO_SHARD)
        expand(module, ("custom-call",), to_whole, lambda i: i.custom_call_target == _TO_WHOLE)


def _free_channel(module: HloModule) -> int:
    return 1 + max((i.channel_id for i in module.instructions if i.channel_id is not None), default=0)


class _Tiles:
    """The number of tiles of an array per dimension, and the tile of each partition."""

    def __init__(self, old: HloInstruction, sharding: object, partitions: int) -> None:
        to_shard = old.custom_call_target == _TO_SHARD
        whole, shard = (old.operands[0].shape.dims, old.shape.dims)[:: 1 if to_shard else -1]
        tiles = sharding.tiles if isinstance(sharding, SingleSharding) else None
        self.counts = tiles.dims[: len(whole)] if tiles is not None else ()
        expected = tuple(-(-size // count) for size, count in zip(whole, self.counts, strict=False))
        if tiles is None or expected != shard or tiles.count != partitions:
            raise Unsupported(
                f"a sharding over {partitions} partitions that makes {list(shard)} of {list(whole)} is needed, found {sharding}",
                old.where,
                notes=(f"instruction %{old.name}",),
            )
        # Tile dimensions beyond the array's rank hold replicas of a tile.
        copies = tiles.count // math.prod(self.counts)
        self.holders = tiles.devices()[::copies]
        self.tile_of = {device: place // copies for place, device in enumerate(tiles.devices())}


def _to_shard(b: HloBuilder, old: HloInstruction, whole: HloValue, tiles: _Tiles) -> HloValue:
    dims = old.shape.dims
    missing = [count * size - own for count, size, own in zip(tiles.counts, dims, whole.shape.dims, strict=True)]
    if any(missing):  # the last tile of a dimension may be smaller than the others
        whole = b.pad(whole, b.constant(0, whole.shape.element_type), [(0, more) for more in missing])
    places = np.array(np.unravel_index([tiles.tile_of[device] for device in sorted(tiles.tile_of)], tiles.counts))
    partition = b.convert(b.partition_id(), "s32")
    starts: list[HloValue] = []
    for dim, size in enumerate(dims):
        table = b.constant((places[dim] * size).astype(np.int32))
        starts.append(b.reshape(b.dynamic_slice(table, [partition], (1,)), ()))
    return b.dynamic_slice(whole, starts, dims)


def _to_whole(b: HloBuilder, old: HloInstruction, everyones: HloValue, tiles: _Tiles) -> HloValue:
    """Join the shards of all partitions (dimension 0 of `everyones`), one tile from one holder each, into the whole array."""
    dims = old.operands[0].shape.dims
    if tiles.holders != tuple(range(everyones.shape.dims[0])):
        rest = [(0, size) for size in dims]
        everyones = b.concatenate([b.slice(everyones, [(device, device + 1), *rest]) for device in tiles.holders], 0)
    rank = len(dims)
    grid = b.reshape(everyones, (*tiles.counts, *dims))
    order = [dim for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for dim in pair]
    joined = b.reshape(b.transpose(grid, order), [count * size for count, size in zip(tiles.counts, dims, strict=True)])
    if joined.shape.dims == old.shape.dims:
        return joined
    return b.slice(joined, [(0, size) for size in old.shape.dims])
