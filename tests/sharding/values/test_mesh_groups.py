"""Tests of groups of devices as axes of a mesh."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.sharding.values.mesh_groups import mesh_groups

_LISTED = TileAssignment((2, 1, 3), (5, 0, 3, 1, 4, 2))


def _iota(dims: tuple[int, ...], reshape: tuple[int, ...], perm: tuple[int, ...]) -> TileAssignment:
    return TileAssignment(dims, Iota(reshape, perm))


_TILES = (
    _iota((2, 4), (8,), (0,)),
    _iota((4, 1, 2), (2, 4), (1, 0)),
    _iota((4, 2), (2, 2, 2), (2, 0, 1)),
    _iota((2, 2, 2), (4, 2), (1, 0)),
    _iota((8, 1), (2, 4), (1, 0)),
    TileAssignment((2, 3), (0, 1, 2, 3, 4, 5)),
    _LISTED,
)


def _neighbours(tiles: TileAssignment, dims: list[tuple[int, int]]) -> set[tuple[int, ...]]:
    """Return the groups by their meaning: devices whose places differ along `dims`, by less than the size, are together."""
    places = np.array(tiles.devices()).reshape(tiles.dims)
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for place, device in np.ndenumerate(places):
        outer, inner = list(place), list[int]()
        for dim, size in dims:
            inner.append(place[dim] % size)
            outer[dim] = place[dim] // size
        groups.setdefault(tuple(outer), []).append((tuple(inner), int(device)))
    return {tuple(device for _, device in sorted(group)) for group in groups.values()}


@pytest.mark.parametrize("tiles", _TILES, ids=str)
def test_groups_are_the_devices_along_the_dimensions(tiles: TileAssignment) -> None:
    divided = [dim for dim, size in enumerate(tiles.dims) if size > 1]
    for count in range(1, len(divided) + 1):
        for dims in itertools.permutations(divided, count):
            for sizes in itertools.product(*([n for n in (2, 3, 4, 8) if tiles.dims[dim] % n == 0] for dim in dims)):
                pairs = list(zip(dims, sizes, strict=True))
                assert set(mesh_groups(tiles, pairs).groups()) == _neighbours(tiles, pairs)


def test_the_mesh_of_an_iota_has_the_devices_in_order() -> None:
    tiles = _iota((4, 1, 2), (2, 4), (1, 0))
    assert str(mesh_groups(tiles, [(0, 4)])) == "mesh['axis_0'=2,'axis_1'=4] {'axis_1'}"
    assert str(mesh_groups(tiles, [(0, 2)])) == "mesh['axis_0'=2,'axis_1'=4] {'axis_1':(2)2}"
    assert str(mesh_groups(_iota((2, 2, 2), (4, 2), (1, 0)), [(1, 2)])) == "mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_0'}"


def test_the_mesh_of_listed_devices_has_an_axis_for_each_dimension() -> None:
    assert str(mesh_groups(_LISTED, [(2, 3)])) == "mesh['axis_0'=2,'axis_1'=1,'axis_2'=3], device_ids=(5,0,3,1,4,2) {'axis_2'}"
