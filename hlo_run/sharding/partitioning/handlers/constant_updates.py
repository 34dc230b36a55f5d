"""Divide an update at a constant place: every device chooses between its own tile and the padded update's.

    dynamic-update-slice(x, u, 3)   =>   select(mask, x, pad(u)), where the mask is false inside of the update

The tile of the padded update comes from the nearest value that the update is made of: a scalar that fills it, or the value that
it is a slice of, so that less is sent. The pieces of a concatenation update one after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.records import replace
from hlo_run.sharding.partitioning.handlers.shapes import slice_part
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.state import Part, key_of
from hlo_run.sharding.partitioning.window import pad_of, windowed_for_pad
from hlo_run.sharding.values.make import REPLICATED, shard_shape

Edges = list[tuple[int, int, int]]


def constant_starts(v: Visit) -> list[int] | None:
    """Return the start indices of an update, or None if one is not constant or out of bounds."""
    found: list[int] = []
    view = DynamicSlice.of(v.hlo)
    for index, size, whole in zip(view.starts, view.sizes, v.hlo.shape.dims, strict=True):
        if index.opcode != "constant":
            return None
        start = int(np.asarray(index.constant_array))
        if start < 0 or start + size > whole:
            return None
        found.append(start)
    return found


def update_at(v: Visit, starts: Sequence[int]) -> Part:
    """Return the part of the updated value."""
    return v.made(_updated(v, v.hlo.operands[1], list(starts), v.parts[0].reshard(v.leaf).hlo))


def _part(v: Visit, instruction: HloInstruction) -> Part:
    assert v.earlier is not None, "only updates that may read earlier instructions are divided here"
    return v.earlier[instruction]


def _updated(v: Visit, piece: HloInstruction, starts: list[int], base: HloInstruction) -> HloInstruction:
    """Return the tile `base` after an update by `piece`."""
    if piece.opcode == "copy" and len(piece.users) == 1:
        return _updated(v, piece.operands[0], starts, base)
    if piece.opcode == "concatenate" and len(piece.users) == 1:
        return _updated_by_pieces(v, piece, starts, base)
    b, whole = v.b, v.hlo.shape
    edges = [(start, size - start - own, 0) for start, size, own in zip(starts, whole.dims, piece.shape.dims, strict=True)]
    inside = Shape.array("pred", piece.shape.dims)
    mask = _padded(v, Part(b.zeros(inside), inside, REPLICATED, v.state), b.constant(True, "pred"), edges)
    fill = b.constant(0, whole.element_type)
    found = _filled(v, piece) or _expanded(v, piece, starts, fill) or _padded(v, _part(v, piece), fill, edges)
    return b.select(mask, base, found)


def _updated_by_pieces(v: Visit, joined: HloInstruction, starts: list[int], base: HloInstruction) -> HloInstruction:
    (dim,) = joined.dimensions
    place = starts[dim]
    for piece in joined.operands:
        own = [place if d == dim else start for d, start in enumerate(starts)]
        # A slice of the value itself, from where it goes to, changes nothing.
        is_own = piece.opcode == "slice" and piece.operands[0] is v.hlo.operands[0]
        if not is_own or [start for start, _, _ in piece.slice_ranges] != own:
            base = _updated(v, piece, own, base)
        place += piece.shape.dims[dim]
    return base


def _padded(v: Visit, part: Part, fill: HloInstruction, edges: Edges) -> HloInstruction:
    """Return the tile of the padded value."""
    found = windowed_for_pad(part, fill, edges, v.leaf)
    if found is None:
        whole = part.replicate()
        return v.made(v.b.pad(whole.hlo, fill, edges), REPLICATED).hlo
    made = pad_of(part, found, fill)
    return made if found.starts is None else v.b.dynamic_slice(made, found.starts, shard_shape(v.hlo.shape, v.sharding).dims)


def _filled(v: Visit, piece: HloInstruction) -> HloInstruction | None:
    """Return a tile full of the scalar that the update is full of, or None."""
    while len(piece.users) == 1 and piece.opcode == "copy" and _part(v, piece).leaf.kind != "replicated":
        piece = piece.operands[0]
    if piece.opcode != "broadcast" or piece.operands[0].shape.dims:
        return None
    scalar = _part(v, piece.operands[0]).replicate().hlo
    return v.b.filled(scalar, shard_shape(v.hlo.shape, v.sharding))


def _expanded(v: Visit, piece: HloInstruction, starts: Sequence[int], fill: HloInstruction) -> HloInstruction | None:
    """Return a tile with the update at its place, made of the value that the update is a slice of; None if it is not one.

    Elements outside of the update are any.
    """
    reverse: set[int] = set()
    while piece.opcode in ("copy", "reverse"):
        reverse ^= set(piece.dimensions) if piece.opcode == "reverse" else set()
        piece = piece.operands[0]
    if piece.opcode != "slice" or any(stride != 1 for _, _, stride in piece.slice_ranges):
        return None
    if any(v.leaf.dims[dim] > 1 for dim in reverse):
        return None
    source = piece.operands[0]
    sizes = source.shape.dims
    places = [
        size - limit if dim in reverse else start
        for dim, (size, (start, limit, _)) in enumerate(zip(sizes, piece.slice_ranges, strict=True))
    ]
    part = _part(v, source)
    if reverse:
        made = v.b.add("reverse", part.hlo.shape, [part.hlo], dimensions=tuple(sorted(reverse)))
        part = replace(part, hlo=made)
    alone = _without_exchange(v, part, piece, places, starts, fill)
    return alone or _exchanged(v, part, piece, places, starts, fill)


def _exchanged(
    v: Visit, part: Part, piece: HloInstruction, places: Sequence[int], starts: Sequence[int], fill: HloInstruction
) -> HloInstruction | None:
    """Move all that fits of the value by the distance between slice and update."""
    cuts, edges = _fitting_ranges(part.base.dims, v.hlo.shape.dims, places, starts)
    if any((first, limit) != (0, size) for (first, limit), size in zip(cuts, part.base.dims, strict=True)):
        base = replace(part.base, dims=tuple(limit - first for first, limit in cuts))
        ranges = tuple((first, limit, 1) for first, limit in cuts)
        found = slice_part(part, base, ranges, _part(v, piece).leaf)
        if found is None:
            return None
        part = found
    return _padded(v, part, fill, edges) if any(map(any, edges)) else part.reshard(v.leaf).hlo


def _fitting_ranges(
    sizes: Sequence[int], wanted: Sequence[int], places: Sequence[int], starts: Sequence[int]
) -> tuple[list[tuple[int, int]], Edges]:
    """Return the ranges of a value that fit into the dimensions `wanted` when `places` go to `starts`, and the edges to add."""
    cuts: list[tuple[int, int]] = []
    edges: Edges = []
    for size, whole, place, start in zip(sizes, wanted, places, starts, strict=True):
        low, first = max(start - place, 0), max(place - start, 0)
        excess = max(low + size - first - whole, 0)
        cuts.append((first, size - excess))
        edges.append((low, whole - (low + size - first - excess), 0))
    return cuts, edges


def _without_exchange(
    v: Visit, part: Part, piece: HloInstruction, places: Sequence[int], starts: Sequence[int], fill: HloInstruction
) -> HloInstruction | None:
    """Make each tile of the result from the device's own; None if the update crosses tiles and does not stay in place."""
    if key_of(part.sharding) != key_of(v.sharding):
        return None
    whole, source = v.hlo.shape.dims, part.base.dims
    cuts, edges = _fitting_ranges(source, whole, places, starts)
    pads = any(map(any, edges))
    own, target = part.hlo.shape.dims, shard_shape(v.hlo.shape, v.sharding).dims
    for dim, count in enumerate(v.leaf.data_dims):
        if count == 1:
            continue
        place, start, size = places[dim], starts[dim], piece.shape.dims[dim]
        if place == start and source[dim] == whole[dim]:
            cuts[dim], edges[dim] = (0, own[dim]), (0, 0, 0)
            continue
        tiles = {place // own[dim], (place + size - 1) // own[dim], start // target[dim], (start + size - 1) // target[dim]}
        if len(tiles) > 1:
            return None
        cuts[dim] = (place % own[dim], place % own[dim] + size)
        edges[dim] = (start % target[dim], target[dim] - start % target[dim] - size, 0)
    value = part.hlo
    if any((first, limit) != (0, size) for (first, limit), size in zip(cuts, own, strict=True)):
        value = v.b.slice(value, [first for first, _ in cuts], [limit for _, limit in cuts])
    return v.b.pad(value, fill, edges) if pads or any(map(any, edges)) else value
