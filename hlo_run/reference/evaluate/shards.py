"""Evaluate SPMDFullToShardShape and SPMDShardToFullShape: from whole arrays to each partition's shard and back."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.collectives import meet
from hlo_run.reference.evaluate.device import Device, Frame
from hlo_run.reference.values import Array, Value, as_array

_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")


@dataclass(frozen=True, slots=True)
class Tiles:
    """The number of tiles per dimension of an array, and the tile (row-major number) of each partition."""

    counts: tuple[int, ...]
    tile_of: dict[int, int]


def read_tiles(sharding: object, rank: int) -> Tiles | None:
    """Return the tiles of a sharding like `{devices=[2,1,2]<=[4] last_tile_dim_replicate}`; None if it has no `devices=`."""
    found = _TILES.search(str(sharding))
    if found is None:
        return None
    dims = _ints(found[1])
    if found[4]:
        devices = np.array(_ints(found[4]))
    else:
        reshaped = _ints(found[2])
        devices = np.arange(np.prod(reshaped)).reshape(reshaped)
        devices = (devices.transpose(_ints(found[3])) if found[3] else devices).reshape(-1)
    counts = dims[:rank]
    # Tile dimensions after the array's rank are copies of a tile.
    copies = devices.size // int(np.prod(counts, dtype=np.int64))
    return Tiles(tuple(counts), {int(device): place // copies for place, device in enumerate(devices)})


def _ints(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def to_shard(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate SPMDFullToShardShape: return this partition's tile of the operand, by the operand's sharding.

    Raises Unsupported if the sharding does not make the result's dimensions, or has more partitions than the run.
    """
    yield from ()
    whole = as_array(operands[0])
    dims = instruction.shape.dims
    if whole.shape == dims:
        return whole
    tiles = _tiles(instruction, instruction.operands[0].sharding, whole.shape, dims)
    return _fill(whole[_ranges(tiles, _tile(instruction, tiles, device), dims)], dims)


def to_whole(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate SPMDShardToFullShape: return the array made of the tiles of this replica's partitions.

    Raises Unsupported if the sharding does not make the operand's dimensions, or has more partitions than the run.
    """
    shard = as_array(operands[0])
    dims = instruction.shape.dims
    if shard.shape == dims:
        return shard
    tiles = _tiles(instruction, instruction.sharding, dims, shard.shape)
    _tile(instruction, tiles, device)
    first = device.replica * device.world.partitions
    members = tuple(range(first, first + device.world.partitions))

    def combine(everyones: list[list[Value]]) -> list[Value]:
        whole = np.zeros([count * size for count, size in zip(tiles.counts, shard.shape, strict=True)], shard.dtype)
        for partition, tile in tiles.tile_of.items():
            whole[_ranges(tiles, tile, shard.shape)] = as_array(everyones[partition][0])
        result: Value = whole[tuple(slice(0, size) for size in dims)]
        return [result] * len(members)

    return (yield meet(instruction, operands, device, members, combine))


def _tiles(instruction: HloInstruction, sharding: object, whole: tuple[int, ...], shard: tuple[int, ...]) -> Tiles:
    """Return the tiles of a sharding; raises Unsupported if they do not divide `whole` into `shard`."""
    tiles = read_tiles(sharding, len(whole))
    if tiles is None or tuple(-(-size // count) for size, count in zip(whole, tiles.counts, strict=True)) != shard:
        text = f"expected a sharding with shards {list(shard)} of {list(whole)}, found {sharding or 'none'}"
        raise Unsupported(text, instruction.where, notes=(f"instruction %{instruction.name}",))
    return tiles


def _ranges(tiles: Tiles, tile: int, dims: tuple[int, ...]) -> tuple[slice, ...]:
    place = np.unravel_index(tile, tiles.counts)
    return tuple(slice(int(at) * size, (int(at) + 1) * size) for at, size in zip(place, dims, strict=True))


def _tile(instruction: HloInstruction, tiles: Tiles, device: Device) -> int:
    tile = tiles.tile_of.get(device.partition)
    if tile is None or len(tiles.tile_of) > device.world.partitions:
        count = len(tiles.tile_of)
        raise Unsupported(f"the sharding has {count} partitions", instruction.where, hint=f"--num_partitions={count}")
    return tile


def _fill(array: Array, dims: tuple[int, ...]) -> Array:
    """Pad the array with zeros to `dims`: the last tile of a dimension may be smaller than the others."""
    if array.shape == dims:
        return array
    return np.pad(array, [(0, size - own) for size, own in zip(dims, array.shape, strict=True)])
