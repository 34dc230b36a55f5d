"""Make whole arrays for all devices from the arrays of single partitions.

Arguments come as a set per device, in the order of the devices. Each parameter has a division per leaf; a leaf without one stays
what its device has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.artifact.division import Division
from hlo_run.backends.literals import Literal
from hlo_run.backends.tiles import leaves_of, rebuilt
from hlo_run.errors import UsageError
from hlo_run.records import replace
from hlo_run.reference.values import Array

Divisions: TypeAlias = "Sequence[tuple[Division | None, ...]]"
# Makes the whole array of the partitions' arrays, for a parameter of this name; the replica's first device has the number.
_Join: TypeAlias = "Callable[[Division, Sequence[Array], str, int], Array]"


def join_equal(sets: Sequence[Sequence[Literal]], divisions: Divisions, names: Sequence[str], partitions: int) -> list[Literal]:
    """Return the arguments of all devices from tiles, or from whole arrays that are the same on a replica's partitions.

    Raises UsageError if partitions differ in a piece that they share; `names` are those of the parameters.
    """
    return _in_whole_arrays(sets, divisions, names, partitions, _join_equal)


def join_own_tiles(sets: Sequence[Sequence[Literal]], divisions: Divisions, partitions: int) -> list[Literal]:
    """Return the arguments of all devices from whole arrays, of which a partition gives its tile.

    Where several partitions hold the same piece, it is the first one's.
    """
    return _in_whole_arrays(sets, divisions, [""] * len(divisions), partitions, _join_own_tiles)


def _in_whole_arrays(
    sets: Sequence[Sequence[Literal]], divisions: Divisions, names: Sequence[str], partitions: int, join: _Join
) -> list[Literal]:
    """Return the arguments of all devices with the arrays that `join` makes of the arrays of a replica's partitions.

    Arrays without a division stay as they are.
    """
    made: list[Literal] = []
    for first in range(0, len(sets), partitions):
        columns: list[list[Literal]] = []
        members = sets[first : first + partitions]
        for name, of_leaves, values in zip(names, divisions, zip(*members, strict=True), strict=True):
            leaves: list[Sequence[Literal]] = []
            for division, literals in zip(of_leaves, zip(*map(leaves_of, values), strict=True), strict=True):
                if division is None:
                    leaves.append(literals)
                else:
                    whole = join(division, [np.asarray(literal) for literal in literals], name, first)
                    leaves.append([whole] * partitions)
            columns.append([rebuilt(value, iter([leaf[place] for leaf in leaves])) for place, value in enumerate(values)])
        made += [value for row in zip(*columns, strict=True) for value in row]
    return made


def _join_equal(division: Division, arrays: Sequence[Array], name: str, first: int) -> Array:
    """Join tiles, or return the whole array that all partitions have. Raises UsageError if shared pieces differ.

    Equal arrays of the size of a sum are the sum, not its addends.
    """
    is_whole = division.tile_dims == division.dims and all(array.tobytes() == arrays[0].tobytes() for array in arrays)
    if is_whole or any(array.shape != division.tile_dims for array in arrays):
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
    tiles = [array[division.ranges(tile)] for array, tile in zip(arrays, division.tile_of, strict=True)]
    division = replace(division, addend_of=())
    return _joined(division, tiles)[0]


def _joined(division: Division, tiles: Sequence[Array]) -> tuple[Array, list[tuple[int, int]]]:
    """Return the array made of the tiles of the first partition that holds each, and the pairs of it and another holder.

    Addends of a tile are added.
    """
    whole = np.zeros(division.dims, tiles[0].dtype)
    first_holders: dict[tuple[int, int], int] = {}
    filled: set[int] = set()
    others: list[tuple[int, int]] = []
    addends = division.addend_of or (0,) * len(tiles)
    for partition, (tile, addend, array) in enumerate(zip(division.tile_of, addends, tiles, strict=True)):
        holder = first_holders.setdefault((tile, addend), partition)
        if holder != partition:
            others.append((holder, partition))
            continue
        ranges = division.ranges(tile)
        # What reaches beyond the end of the array is padding.
        part = array[tuple(slice(0, size) for size in whole[ranges].shape)]
        whole[ranges] = whole[ranges] + part if tile in filled else part
        filled.add(tile)
    return whole, others
