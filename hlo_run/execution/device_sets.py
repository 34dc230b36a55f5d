"""Sets of arguments for several devices: one for all of them, one per replica, or one per device, in whole arrays or in tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.analysis.sharding.parameters import parameter_divisions
from hlo_run.artifact.division import Division
from hlo_run.backends.tiles import leaves_of, rebuilt, tile_ranges
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.devices import DeviceGrid, is_unpartitioned
from hlo_run.reference.literal_files import read_values, stored_dims
from hlo_run.reference.values import Array

_Divisions: TypeAlias = "list[tuple[Division | None, ...]]"
# Makes the whole array of the partitions' arrays, for a parameter of this name; the replica's first device has the number.
_Join: TypeAlias = "Callable[[Division, Sequence[Array], str, int], Array]"


def read_sets(path: str, module: HloModule, grid: DeviceGrid) -> list[Literal]:
    """Return the arguments of all devices from a file of arguments, device by device.

    A single set serves all devices. A module whose arrays are still whole also takes a set per replica, and in a set per
    device the tiles of arrays that a sharding divides. Raises UsageError for other numbers of arrays, for arrays that do not
    fit, and for devices with different data where they hold the same piece.
    """
    parameters = module.entry.parameters
    shapes = [parameter.shape for parameter in parameters]
    names = [f"parameter {number} (%{parameter.name})" for number, parameter in enumerate(parameters)]
    if grid.size == 1:
        return read_values(path, "arg", shapes, names)
    dims = stored_dims(path, "arg")
    each = sum(leaf.is_array for shape in shapes for _, leaf in shape.leaves())
    is_whole = is_unpartitioned(module)
    if len(dims) == each:
        return read_values(path, "arg", shapes, names) * grid.size
    if is_whole and len(dims) == each * grid.replicas:
        values = read_values(path, "arg", shapes * grid.replicas, names * grid.replicas)
        sets = [values[first : first + len(shapes)] for first in range(0, len(values), len(shapes))]
        return [value for values_of_one in sets for value in values_of_one * grid.partitions]
    if len(dims) != each * grid.size:
        counts = f"{each} (one set for all devices) or {each * grid.size} (one set for each device of {grid})"
        message = f"'{path}' has {len(dims)} arrays, but '{module.name}' takes {counts}"
        raise UsageError(message, hint="give a tuple as its leaves")
    of_devices = [f"device {device}'s {name}" for device in range(grid.size) for name in names]
    if not is_whole:
        return read_values(path, "arg", shapes * grid.size, of_devices)
    divisions = parameter_divisions(module, grid.partitions)
    tiled = _tiled_shapes(shapes, divisions, [dims[first : first + each] for first in range(0, len(dims), each)])
    values = read_values(path, "arg", tiled * grid.size, of_devices)
    return _in_whole_arrays(grid.split(values), divisions, grid, names, _join_equal)


def with_tiles_of_devices(module: HloModule, grid: DeviceGrid, sets: Sequence[Sequence[Literal]]) -> list[Literal]:
    """Return the arguments of all devices from whole arrays for each, of which a device gives the tile that it holds.

    Where several devices hold the same piece, it is the first one's. The arguments of a module that is one partition's program
    stay as they are.
    """
    if grid.partitions == 1 or not is_unpartitioned(module):
        return [value for values in sets for value in values]
    divisions = parameter_divisions(module, grid.partitions)
    return _in_whole_arrays(sets, divisions, grid, [""] * len(divisions), _join_own_tiles)


def _tiled_shapes(shapes: Sequence[Shape], divisions: _Divisions, dims: list[list[tuple[int, ...]]]) -> list[Shape]:
    """Return the shapes of a device's arguments: those of tiles where every device's array has a tile's dimensions."""
    stored = iter(zip(*dims, strict=True))

    def changed(shape: Shape, of_leaves: Iterator[Division | None]) -> Shape:
        def leaf_shape(leaf: Shape) -> Shape:
            division = next(of_leaves)
            found = set(next(stored)) if leaf.is_array else set[tuple[int, ...]]()
            if division is None or leaf.dynamic_dims or found != {division.tile_dims}:
                return leaf
            return Shape.array(leaf.element_type, division.tile_dims)

        return shape.map_leaves(leaf_shape)

    return [changed(shape, iter(of_leaves)) for shape, of_leaves in zip(shapes, divisions, strict=True)]


def _in_whole_arrays(
    sets: Sequence[Sequence[Literal]], divisions: _Divisions, grid: DeviceGrid, names: Sequence[str], join: _Join
) -> list[Literal]:
    """Return the arguments of all devices with the arrays that `join` makes of those of a replica's partitions.

    Arrays without a division stay as they are.
    """
    made: list[Literal] = []
    for first in range(0, grid.size, grid.partitions):
        columns: list[list[Literal]] = []
        members = sets[first : first + grid.partitions]
        for name, of_leaves, values in zip(names, divisions, zip(*members, strict=True), strict=True):
            leaves: list[Sequence[Literal]] = []
            for division, literals in zip(of_leaves, zip(*map(leaves_of, values), strict=True), strict=True):
                if division is None:
                    leaves.append(literals)
                else:
                    whole = join(division, [np.asarray(literal) for literal in literals], name, first)
                    leaves.append([whole] * grid.partitions)
            columns.append([rebuilt(value, iter([leaf[place] for leaf in leaves])) for place, value in enumerate(values)])
        made += [value for row in zip(*columns, strict=True) for value in row]
    return made


def _join_equal(division: Division, arrays: Sequence[Array], name: str, first: int) -> Array:
    """Join tiles, or return the whole array that all partitions have. Raises UsageError if shared pieces differ."""
    if any(array.shape != division.tile_dims for array in arrays):
        division = Division(arrays[0].shape, (1,) * arrays[0].ndim, (0,) * len(arrays))
    whole, other_holders = _joined(division, arrays)
    for one, other in other_holders:
        if arrays[one].shape != arrays[other].shape or arrays[one].tobytes() != arrays[other].tobytes():
            message = f"{name} differs between devices {first + one} and {first + other}, which hold the same piece of it"
            raise UsageError(message, hint="give one set of arguments for all devices")
    return whole


def _join_own_tiles(division: Division, arrays: Sequence[Array], name: str, first: int) -> Array:
    """Join the tiles of whole arrays that each partition holds."""
    del name, first
    if any(array.shape != division.dims for array in arrays):
        return arrays[0]  # dynamic dimensions
    tiles = [array[tile_ranges(division, tile)] for array, tile in zip(arrays, division.tile_of, strict=True)]
    return _joined(division, tiles)[0]


def _joined(division: Division, tiles: Sequence[Array]) -> tuple[Array, list[tuple[int, int]]]:
    """Return the array whose tiles are those of the first partition that holds each, and the pairs of it and another holder."""
    whole = np.zeros(division.dims, tiles[0].dtype)
    first_holders: dict[int, int] = {}
    others: list[tuple[int, int]] = []
    for partition, (tile, array) in enumerate(zip(division.tile_of, tiles, strict=True)):
        holder = first_holders.setdefault(tile, partition)
        if holder != partition:
            others.append((holder, partition))
            continue
        ranges = tile_ranges(division, tile)
        # What reaches beyond the end of the array is padding.
        whole[ranges] = array[tuple(slice(0, size) for size in whole[ranges].shape)]
    return whole, others
