"""Rotations along a divided dimension: every tile is made of pieces of one or two others.

    rotate(012|345|678) right by 2   =>   pieces 78|01|34 of the tiles before, then 6|2|5 of the same ones:  780|123|456 ..

If the last tile has elements past the end, a second rotation, by these in addition, brings what goes around the end.
"""

from __future__ import annotations

import numpy as np

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.partitioning.collectives import permute
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.offsets import partition_offsets
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.make import device_array


def rotate(v: Visit) -> Part:
    """Handle `_SPMDInternalOp_RotateRight`, whose `backend_config` names the dimension and the amount."""
    dim, amount = _attributes(v.hlo)
    part = v.parts[0].reshard(v.sharding)
    whole, size = v.hlo.shape.dims[dim], part.hlo.shape.dims[dim]
    amount %= whole
    if not amount:
        return part
    tiles = -(-whole // size)
    excess = tiles * size - whole
    rotated = _rotated(v, part.hlo, dim, amount, tiles)
    if not excess:
        return v.made(rotated)
    again = _rotated(v, part.hlo, dim, (amount + excess) % (size * tiles), tiles)
    b = v.b
    offset = partition_offsets(b, v.hlo.shape, v.leaf, v.state.partition_id, (dim,))[dim]
    index = b.add("iota", rotated.shape.with_element_type("s32"), iota_dimension=dim)
    bound = b.filled(b.binary("subtract", b.constant(amount, "s32"), offset), index.shape)
    return v.made(b.select(b.compare(index, bound, "LT"), again, rotated))


def _attributes(call: HloInstruction) -> tuple[int, int]:
    """Return the dimension and the amount."""
    found: dict[str, int] = {}
    for entry in call.backend_config.split(","):
        name, _, number = entry.partition("=")
        found[name.strip()] = int(number) if number.strip().isdigit() else -1
    dim, amount = found.get("dimension", -1), found.get("amount", -1)
    if not 0 <= dim < call.shape.rank or amount < 0:
        message = f"expected backend_config=\"dimension=D,amount=N\" of a rotation, found '{call.backend_config}'"
        raise ParseError(message, call.where, notes=(f"instruction %{call.name}",))
    return dim, amount


def _rotated(v: Visit, value: HloInstruction, dim: int, amount: int, tiles: int) -> HloInstruction:
    """Rotate the tiles with their excess, among the first `tiles` of them."""
    size, done = value.shape.dims[dim], 0
    pieces: list[HloInstruction] = []
    while done < size:
        distance = -(-(amount - done) // size)
        start = distance * size - amount + done
        length = min(size - start, size - done)
        done += length
        piece = value
        if length != size:
            starts, limits = [0] * value.shape.rank, list(value.shape.dims)
            starts[dim], limits[dim] = start, start + length
            piece = v.b.slice(value, starts, limits)
        pieces.append(permute(v.state, piece, _pairs(v, dim, distance, tiles)) if distance else piece)
    return v.b.concatenate(pieces, dim)


def _pairs(v: Visit, dim: int, distance: int, tiles: int) -> list[tuple[int, int]]:
    """Return the pairs of devices of which the second one's tile is `distance` after the first one's, around the end."""
    devices = device_array(v.leaf)
    pairs: list[tuple[int, int]] = []
    for place, device in np.ndenumerate(devices):
        if place[dim] < tiles:
            target = (*place[:dim], (place[dim] + distance) % tiles, *place[dim + 1 :])
            pairs.append((int(device), int(devices[target])))
    return pairs
