"""Name the devices along tile dimensions by the axes of a mesh, as the partitioner writes groups of devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.replica_groups import MeshGroups
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment


class _Piece(Struct, frozen=True):
    """A part of tile dimension `dim` that is also a part of dimension `source` of the iota."""

    dim: int
    source: int
    size: int


def mesh_groups(tiles: TileAssignment, dims: Sequence[tuple[int, int]]) -> MeshGroups:
    """Return groups of `size` neighbours along each of the pairs (tile dimension, size) of `dims`, the last one fastest.

    The mesh of an iota has the devices in order, and one axis for each part that tiles and iota have in common. The mesh of
    listed devices has an axis for each tile dimension.
    """
    order = tiles.order
    if not isinstance(order, Iota) and order == tuple(range(tiles.count)):
        order = Iota(tiles.dims, tuple(range(len(tiles.dims))))
    pieces = _common_pieces(tiles.dims, order) if isinstance(order, Iota) else None
    if pieces is None:
        axes = tuple((f"axis_{number}", size) for number, size in enumerate(tiles.dims))
        refs = [_minor(number, tiles.dims[number], size) for number, size in dims]
        return MeshGroups(Mesh(axes, tiles.order), tuple(refs))
    by_place = sorted(range(len(pieces)), key=lambda n: (pieces[n].source, pieces[n].dim))
    axis_of = {piece: number for number, piece in enumerate(by_place)}
    axes = tuple((f"axis_{number}", pieces[piece].size) for number, piece in enumerate(by_place))
    minor: list[AxisRef] = []
    for dim, size in dims:
        own = [(axis_of[number], piece.size) for number, piece in enumerate(pieces) if piece.dim == dim]
        minor += _minor_axes(own, size)
    return MeshGroups(Mesh(axes), tuple(minor))


def _minor_axes(axes: Sequence[tuple[int, int]], size: int) -> list[AxisRef]:
    """Return the minor ones of (axis, its size), which together have `size` devices."""
    found: list[AxisRef] = []
    for axis, count in reversed(axes):
        if size == 1:
            break
        taken = math.gcd(count, size)
        found.insert(0, _minor(axis, count, taken))
        size //= taken
    return found


def _minor(axis: int, count: int, size: int) -> AxisRef:
    return AxisRef(axis) if size == count else AxisRef(axis, count // size, size)


def _common_pieces(dims: Sequence[int], order: Iota) -> list[_Piece] | None:
    """Return the parts, major first, into which both the tiles and the transposed iota divide; None if there are none."""
    sources = [(source, order.reshape_dims[source]) for source in order.transpose_perm if order.reshape_dims[source] > 1]
    pieces: list[_Piece] = []
    place, left = 0, sources[0][1] if sources else 1
    for dim, size in enumerate(dims):
        while size > 1:
            if left == 1:
                place += 1
                left = sources[place][1]
            part = math.gcd(size, left)
            if part == 1 or (size // part > 1 and left // part > 1):
                return None
            pieces.append(_Piece(dim, sources[place][0], part))
            size, left = size // part, left // part
    return pieces
