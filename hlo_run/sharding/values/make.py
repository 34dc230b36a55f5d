"""Makes shardings of tiles, and tells which part of a value each device has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import NamedSharding, Sharding, SingleSharding, TupleSharding, tiled
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.records import replace

REPLICATED = SingleSharding("replicated")
MANUAL = SingleSharding("manual")

_Metadata = tuple[OpMetadata, ...]


def iota_tiles(dims: Sequence[int]) -> TileAssignment:
    """Return tiles with these extents, whose devices are 0, 1, 2, .. in row-major order."""
    count = math.prod(dims)
    return TileAssignment(tuple(dims), Iota((count,), (0,)))


def listed_tiles(devices: NDArray[np.int64]) -> TileAssignment:
    """Return tiles with the extents and devices of an array."""
    return TileAssignment(tuple(devices.shape), tuple(int(device) for device in devices.reshape(-1)))


def device_array(sharding: SingleSharding) -> NDArray[np.int64]:
    """Return the devices of a sharding with tiles, as an array with the extents of the tiles."""
    assert sharding.tiles is not None, "a sharding with tiles"
    return np.array(sharding.tiles.devices(), np.int64).reshape(sharding.dims)


def partial_tile(tiles: TileAssignment, metadata: _Metadata = ()) -> SingleSharding:
    """Return the sharding whose last tile dimension has devices with the same data."""
    return tiled(tiles, ("replicated",), metadata)


def with_tiles(like: SingleSharding, tiles: TileAssignment, subgroups: Sequence[str] | None = None) -> SingleSharding:
    """Return a sharding with other tiles and the subgroups and metadata of `like`, or other subgroups."""
    return tiled(tiles, like.subgroups if subgroups is None else subgroups, like.metadata)


def maximal(device: int, metadata: _Metadata = ()) -> SingleSharding:
    """Return the sharding that puts the whole array on one device."""
    return SingleSharding("maximal", device, metadata=metadata)


def as_tiles(sharding: Sharding) -> Sharding:
    """Return the sharding with tiles instead of the axes of a mesh."""
    if isinstance(sharding, TupleSharding):
        return TupleSharding(tuple(_leaf_as_tiles(element) for element in sharding.elements))
    return _leaf_as_tiles(sharding)


def _leaf_as_tiles(sharding: SingleSharding | NamedSharding) -> SingleSharding:
    if isinstance(sharding, SingleSharding):
        return sharding
    mesh = sharding.mesh
    if mesh.maximal_device is not None:
        return maximal(mesh.maximal_device, sharding.metadata)
    if not (sharding.manual or sharding.unreduced or any(dim.axes for dim in sharding.dims)):
        return SingleSharding("replicated", metadata=sharding.metadata)
    pieces = _mesh_pieces(sharding)
    sizes = [size for _, _, size in pieces]
    devices = np.array(mesh.devices(), np.int64).reshape(sizes)
    place = {(axis, pre_size): number for number, (axis, pre_size, _) in enumerate(pieces)}
    order: list[int] = []
    dims: list[int] = []
    subgroups: list[str] = []

    def take(axes: Sequence[AxisRef]) -> int:
        taken = [n for ref in axes for n in _pieces_of(ref, mesh, pieces, place)]
        order.extend(taken)
        return math.prod(sizes[n] for n in taken)

    for dim in sharding.dims:
        dims.append(take(dim.axes))
    for kind, axes in (("manual", sharding.manual), ("unreduced", sharding.unreduced)):
        if axes:
            dims.append(take(axes))
            subgroups.append(kind)
    rest = [n for n in range(len(pieces)) if n not in order]
    if rest:
        order += rest
        dims.append(math.prod(sizes[n] for n in rest))
        subgroups.append("replicated")
    if isinstance(mesh_order := _iota_of(mesh), Iota):
        tiles = TileAssignment(tuple(sizes), mesh_order).transpose(order).reshape(tuple(dims))
    else:
        tiles = listed_tiles(devices.transpose(order).reshape(dims))
    return tiled(tiles, subgroups, sharding.metadata)


def _iota_of(mesh: Mesh) -> Iota | None:
    count = len(mesh.devices())
    return Iota((count,), (0,)) if mesh.devices() == tuple(range(count)) else None


def _mesh_pieces(sharding: NamedSharding) -> list[tuple[int, int, int]]:
    """Return (axis, pre_size, size) of the pieces of all axes of the mesh, cut where the sharding names sub-axes."""
    mesh = sharding.mesh
    groups = (*(dim.axes for dim in sharding.dims), sharding.replicated, sharding.unreduced, sharding.manual)
    pieces: list[tuple[int, int, int]] = []
    for number, (_, full) in enumerate(mesh.axes):
        cuts = {1, full}
        for ref in (ref for axes in groups for ref in axes if ref.axis == number):
            cuts |= {ref.pre_size, ref.pre_size * ref.size(mesh)}
        ordered = sorted(cuts)
        pieces += [(number, low, high // low) for low, high in itertools.pairwise(ordered)]
        if full == 1:
            pieces.append((number, 1, 1))
    return pieces


def _pieces_of(ref: AxisRef, mesh: Mesh, pieces: Sequence[tuple[int, int, int]], place: dict[tuple[int, int], int]) -> list[int]:
    end = ref.pre_size * ref.size(mesh)
    return [place[axis, pre] for axis, pre, size in pieces if axis == ref.axis and ref.pre_size <= pre and pre * size <= end]


def elements_of(sharding: Sharding) -> tuple[SingleSharding, ...]:
    """Return the shardings of all leaves: one for an array."""
    elements = sharding.elements if isinstance(sharding, TupleSharding) else (sharding,)
    return tuple(_leaf_as_tiles(element) for element in elements)


def leaf_count(shape: Shape) -> int:
    """Return the number of shardings of a value of this shape: one per array or token, and one for an empty tuple."""
    if not shape.is_tuple:
        return 1
    return max(sum(leaf_count(part) for part in shape.tuple_shapes), 1 if not shape.tuple_shapes else 0)


def for_shape(shape: Shape, leaves: Sequence[SingleSharding]) -> Sharding:
    """Return the sharding of a value from the shardings of its leaves."""
    return TupleSharding(tuple(leaves)) if shape.is_tuple else leaves[0]


def same_for_all(shape: Shape, sharding: SingleSharding) -> Sharding:
    """Return the sharding of a value of which every leaf has `sharding`."""
    return for_shape(shape, (sharding,) * leaf_count(shape))


def part_of(sharding: Sharding, shape: Shape, index: int) -> Sharding:
    """Return the sharding of element `index` of a value of tuple shape."""
    begin = sum(leaf_count(part) for part in shape.tuple_shapes[:index])
    part = shape.tuple_shapes[index]
    leaves = elements_of(sharding)
    if not isinstance(sharding, TupleSharding):
        leaves *= leaf_count(shape)
    return for_shape(part, leaves[begin : begin + leaf_count(part)])


def same(one: Sharding | None, two: Sharding | None) -> bool:
    """True if both divide values in the same way, whatever their notation and metadata. None means no sharding."""
    if one is None or two is None:
        return one is two
    if isinstance(one, TupleSharding) != isinstance(two, TupleSharding):
        return False
    left, right = elements_of(one), elements_of(two)
    return len(left) == len(right) and all(a.is_same(b) for a, b in zip(left, right, strict=True))


def is_maximal(sharding: Sharding) -> bool:
    """True if the whole value is on one device: every leaf of it, for a tuple."""
    return all(leaf.kind == "maximal" for leaf in elements_of(sharding))


def is_manual(sharding: Sharding) -> bool:
    """True if every leaf is manual."""
    return all(leaf.kind == "manual" for leaf in elements_of(sharding))


def is_replicated(sharding: Sharding) -> bool:
    """True if every leaf is replicated."""
    return all(leaf.kind == "replicated" for leaf in elements_of(sharding))


def is_whole(sharding: Sharding) -> bool:
    """True if no leaf is divided: each is replicated or on one device."""
    return all(leaf.is_whole for leaf in elements_of(sharding))


def shard_shape(shape: Shape, sharding: Sharding) -> Shape:
    """Return the shape of one device's part: sizes divided by the number of tiles, rounded up. Tuples: of each leaf."""
    if shape.is_tuple:
        parts = (shard_shape(part, part_of(sharding, shape, n)) for n, part in enumerate(shape.tuple_shapes))
        return replace(shape, tuple_shapes=tuple(parts))
    (leaf,) = elements_of(sharding)
    if leaf.kind != "tiled" or not shape.is_array:
        return shape
    dims = tuple(-(-size // count) for size, count in zip(shape.dims, leaf.data_dims, strict=True))
    return replace(shape, dims=dims)


def divides_evenly(shape: Shape, sharding: Sharding) -> bool:
    """True if the tiles divide every dimension of every leaf without a rest."""
    if shape.is_tuple:
        return all(divides_evenly(part, part_of(sharding, shape, n)) for n, part in enumerate(shape.tuple_shapes))
    (leaf,) = elements_of(sharding)
    return leaf.kind != "tiled" or all(size % count == 0 for size, count in zip(shape.dims, leaf.data_dims, strict=False))


def offsets_of(shape: Shape, sharding: SingleSharding, device: int) -> tuple[int, ...]:
    """Return the start of the part of `device` in the array; an array that is not divided begins at 0."""
    if sharding.kind != "tiled":
        return (0,) * len(shape.dims)
    place = np.argwhere(device_array(sharding) == device)[0]
    part = shard_shape(shape, sharding)
    return tuple(
        min(int(at) * size, whole) for at, size, whole in zip(place[: sharding.data_rank], part.dims, shape.dims, strict=True)
    )
