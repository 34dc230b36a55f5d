"""Evaluate the custom calls of GSPMD and Shardy that lead from whole arrays to each partition's shard and back."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.mesh import AxisRef
from hlo_run.hlo.values.sharding import NamedSharding
from hlo_run.reference.evaluate.collectives import meet
from hlo_run.reference.evaluate.device import Device, Frame
from hlo_run.reference.values import Array, Value, as_array
from hlo_run.sharding.values import shardy

_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")
_SUBGROUPS = re.compile(r"last_tile_dims=\{([^}]*)\}")


class Tiles(Struct, frozen=True):
    """The number of tiles per dimension of an array, and the tile (row-major number) of each partition.

    Where a tile is the sum of what partitions have, `addend_of` numbers their addends. In a manual computation around this one
    only partitions with the same `group_of` have tiles of the same array.
    """

    counts: tuple[int, ...]
    tile_of: dict[int, int]
    addend_of: dict[int, int] = {}
    group_of: dict[int, int] = {}


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
    tile_of = {int(device): place // copies for place, device in enumerate(devices)}
    subgroups = _SUBGROUPS.search(str(sharding))
    kinds = subgroups[1].replace(" ", "").split(",") if subgroups is not None else []

    def places_along(kind: str) -> dict[int, int]:
        if kind not in kinds:
            return {}
        along = rank + kinds.index(kind)
        return {int(device): int(np.unravel_index(place, dims)[along]) for place, device in enumerate(devices)}

    return Tiles(tuple(counts), tile_of, places_along("unreduced"), places_along("manual"))


def _ints(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def to_shard(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate SPMDFullToShardShape: return this partition's tile of the operand, by the operand's sharding.

    Raises Unsupported if the sharding does not make the result's dimensions, or has more partitions than the run.
    """
    yield from ()
    whole = as_array(operands[0])
    dims = instruction.shape.dims
    sharding = instruction.operands[0].sharding
    if whole.shape == dims and "unreduced" not in str(sharding):
        return whole
    tiles = _tiles(instruction, sharding, whole.shape, dims, device)
    part = _fill(whole[_ranges(tiles, _tile(instruction, tiles, device), dims)], dims)
    return np.zeros_like(part) if tiles.addend_of.get(device.partition) else part


def to_whole(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate SPMDShardToFullShape: return the array made of the tiles of this replica's partitions.

    Raises Unsupported if the sharding does not make the operand's dimensions, or has more partitions than the run.
    """
    shard = as_array(operands[0])
    dims = instruction.shape.dims
    if shard.shape == dims and "unreduced" not in str(instruction.sharding):
        return shard
    tiles = _tiles(instruction, instruction.sharding, dims, shard.shape, device)
    _tile(instruction, tiles, device)
    first = device.replica * device.world.partitions
    members = tuple(range(first, first + device.world.partitions))

    def joined(everyones: list[list[Value]], group: int) -> Value:
        whole = np.zeros([count * size for count, size in zip(tiles.counts, shard.shape, strict=True)], shard.dtype)
        own = {partition: tile for partition, tile in tiles.tile_of.items() if tiles.group_of.get(partition, 0) == group}
        addends = {(tile, tiles.addend_of.get(partition, 0)): partition for partition, tile in own.items()}
        filled: set[int] = set()
        for (tile, _), partition in addends.items():
            ranges, addend = _ranges(tiles, tile, shard.shape), as_array(everyones[partition][0])
            whole[ranges] = whole[ranges] + addend if tile in filled else addend
            filled.add(tile)
        return np.asarray(whole[tuple(slice(0, size) for size in dims)])

    def combine(everyones: list[list[Value]]) -> list[Value]:
        groups = [tiles.group_of.get(partition, 0) for partition in range(len(members))]
        wholes = {group: joined(everyones, group) for group in dict.fromkeys(groups)}
        return [wholes[group] for group in groups]

    return (yield meet(instruction, operands, device, members, combine))


def _tiles(
    instruction: HloInstruction, sharding: object, whole: tuple[int, ...], shard: tuple[int, ...], device: Device
) -> Tiles:
    """Return the tiles of a sharding; raises Unsupported if they do not divide `whole` into `shard`."""
    tiles = read_tiles(sharding, len(whole))
    if tiles is None and str(sharding) == "{unreduced}":
        every = range(device.world.partitions)
        tiles = Tiles((1,) * len(whole), dict.fromkeys(every, 0), dict(zip(every, every, strict=True)))
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


def to_local(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate xla.sdy.GlobalToLocalShape: return this partition's tiles of the operands along the manual axes.

    Raises Unsupported if the annotations do not make the result's dimensions, or name more partitions than the run has.
    """
    yield from ()
    manual, shardings = _regions(instruction, shardy.IN_SHARDINGS, len(operands))
    parts: list[Value] = []
    for operand, sharding, shape in zip(operands, shardings, _dims(instruction), strict=True):
        if shape is None:
            parts.append(operand)
            continue
        place, counts = _place(instruction, sharding, manual, device.partition)
        whole = as_array(operand)
        if tuple(-(-size // count) for size, count in zip(whole.shape, counts, strict=True)) != shape:
            text = f"expected parts {list(shape)} of {list(whole.shape)}, found {list(counts)} parts along the dimensions"
            raise Unsupported(text, instruction.where, notes=(f"instruction %{instruction.name}",))
        ranges = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, shape, strict=True))
        part = _fill(np.asarray(whole[ranges]), shape)
        # The first device along unreduced axes has the part, and all others have zeros: their sum is the part.
        is_first = not any(_place_along(instruction, sharding, manual, device.partition))
        parts.append(part if is_first else np.zeros_like(part))
    return tuple(parts) if instruction.shape.is_tuple else parts[0]


def to_global(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Evaluate xla.sdy.LocalToGlobalShape: return the arrays made of the parts of the partitions along the manual axes."""
    manual, shardings = _regions(instruction, shardy.OUT_SHARDINGS, len(operands))
    count = device.world.partitions
    first = device.replica * count
    members = tuple(range(first, first + count))
    others = [_others(instruction, shardings[0], manual, partition) for partition in range(count)] if shardings else []
    shapes = _dims(instruction)

    def combine(everyones: list[list[Value]]) -> list[Value]:
        made: dict[tuple[int, ...], Value] = {}
        for partition in range(count):
            if others[partition] not in made:
                rest = [p for p in range(count) if others[p] == others[partition]]
                made[others[partition]] = joined(everyones, rest)
        return [made[others[partition]] for partition in range(count)]

    def joined(everyones: list[list[Value]], partitions: list[int]) -> Value:
        wholes: list[Value] = []
        for number, (sharding, shape) in enumerate(zip(shardings, shapes, strict=True)):
            if shape is None:
                wholes.append(operands[number])
                continue
            part = as_array(operands[number])
            _, counts = _place(instruction, sharding, manual, device.partition)
            whole = np.zeros([n * size for n, size in zip(counts, part.shape, strict=True)], part.dtype)
            addends: dict[tuple[tuple[int, ...], tuple[int, ...]], Array] = {}
            for partition in partitions:
                place, _ = _place(instruction, sharding, manual, partition)
                addends[place, _place_along(instruction, sharding, manual, partition)] = as_array(everyones[partition][number])
            filled: set[tuple[int, ...]] = set()
            for (place, _), addend in addends.items():
                ranges = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, part.shape, strict=True))
                whole[ranges] = whole[ranges] + addend if place in filled else addend
                filled.add(place)
            # Indexing an array without dimensions gives a scalar.
            wholes.append(np.asarray(whole[tuple(slice(0, size) for size in shape)]))
        return tuple(wholes) if instruction.shape.is_tuple else wholes[0]

    return (yield meet(instruction, operands, device, members, combine))


def _dims(instruction: HloInstruction) -> list[tuple[int, ...] | None]:
    """Return the dimensions of each array of the result; None for a token, which has no parts."""
    shape = instruction.shape
    return [part.dims if part.is_array else None for part in (shape.tuple_shapes if shape.is_tuple else (shape,))]


def _regions(instruction: HloInstruction, name: str, count: int) -> tuple[tuple[str, ...], tuple[NamedSharding, ...]]:
    """Return the manual axes of a call and the shardings of its arrays; raises Unsupported if it does not name them."""
    module = instruction.parent.module if instruction.parent else None
    meshes = frontend_attribute(module, shardy.MESHES) if module else None
    try:
        manual = shardy.read_manual_axes(frontend_attribute(instruction, shardy.MANUAL_AXES) or "")
        shardings = shardy.read_shardings(frontend_attribute(instruction, name) or "", shardy.read_meshes(meshes or "{}"))
    except ValueError as error:
        raise Unsupported(str(error), instruction.where, notes=(f"instruction %{instruction.name}",)) from error
    if len(shardings) != count:
        raise Unsupported(f"{name} has {len(shardings)} shardings for {count} arrays", instruction.where)
    return manual, shardings


def _coordinates(instruction: HloInstruction, sharding: NamedSharding, partition: int) -> tuple[int, ...]:
    """Return the place of a partition on the mesh."""
    devices = sharding.mesh.devices()
    if partition not in devices:
        count = len(devices)
        raise Unsupported(f"the sharding has {count} partitions", instruction.where, hint=f"--num_partitions={count}")
    return tuple(int(at) for at in np.unravel_index(devices.index(partition), [size for _, size in sharding.mesh.axes]))


def _others(instruction: HloInstruction, sharding: NamedSharding, manual: tuple[str, ...], partition: int) -> tuple[int, ...]:
    """Return the place of a partition along the axes that are not manual."""
    place = _coordinates(instruction, sharding, partition)
    return tuple(at for at, (name, _) in zip(place, sharding.mesh.axes, strict=True) if name not in manual)


def _place_along(
    instruction: HloInstruction, sharding: NamedSharding, manual: tuple[str, ...], partition: int
) -> tuple[int, ...]:
    """Return the place of a partition along the unreduced axes that are manual."""
    at = _coordinates(instruction, sharding, partition)
    own = [ref for ref in sharding.unreduced if sharding.mesh.axes[ref.axis][0] in manual]
    return tuple(_along(ref, sharding, at) for ref in own)


def _along(ref: AxisRef, sharding: NamedSharding, at: tuple[int, ...]) -> int:
    size = ref.size(sharding.mesh)
    return at[ref.axis] // (sharding.mesh.axes[ref.axis][1] // (ref.pre_size * size)) % size


def _place(
    instruction: HloInstruction, sharding: NamedSharding, manual: tuple[str, ...], partition: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the part that a partition has, by its place along each dimension, and the number of parts along each."""
    at = _coordinates(instruction, sharding, partition)
    axes = sharding.mesh.axes
    place: list[int] = []
    counts: list[int] = []
    for dim in sharding.dims:
        own = [ref for ref in dim.axes if axes[ref.axis][0] in manual]
        number, count = 0, 1
        for ref in own:
            size = ref.size(sharding.mesh)
            number, count = number * size + _along(ref, sharding, at), count * size
        place.append(number)
        counts.append(count)
    return tuple(place), tuple(counts)
