"""Swap the divisions of two dimensions of a value by an all-to-all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.collectives import all_to_all, groups_within
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.partitioning.window import pad_of, slice_of, windowed_for_pad, windowed_for_slice
from hlo_run.sharding.values.make import with_tiles


def swapped_dims(source: SingleSharding, target: SingleSharding) -> list[tuple[int, int]] | None:
    """Return the pairs of tile dimensions whose extents swaps turn `source` into `target`, or None if none do."""
    if source.tiles is None or target.tiles is None or len(source.dims) != len(target.dims):
        return None
    if source.tile_count != target.tile_count:
        return None
    by_source: dict[int, list[int]] = {}
    by_target: dict[int, list[int]] = {}
    for dim, (own, wanted) in enumerate(zip(source.dims, target.dims, strict=True)):
        if own != wanted:
            by_source.setdefault(own, []).append(dim)
            by_target.setdefault(wanted, []).append(dim)
    if not by_source or {k: len(v) for k, v in by_source.items()} != {k: len(v) for k, v in by_target.items()}:
        return None

    def remove(size: int, dim: int, sizes: dict[int, list[int]]) -> None:
        sizes[size] = [other for other in sizes.get(size, []) if other != dim]
        if not sizes[size]:
            del sizes[size]

    result: list[tuple[int, int]] = []
    while by_source:
        size = min(by_source)
        dim = by_source[size][-1]
        wanted = target.dims[dim]
        if wanted == size:
            remove(size, dim, by_source)
            remove(size, dim, by_target)
            continue
        others = by_source[wanted]
        if size == 1:
            other = next((d for d in others if target.dims[d] != 1), others[-1])
        elif wanted % size == 0:
            other = next((d for d in others if target.dims[d] == size), others[-1])
        else:
            return None
        result.append((other, dim))
        remove(wanted, dim, by_target)
        by_source[size][-1] = other
        remove(wanted, other, by_source)
    return result


def _swapped(sharding: SingleSharding, pairs: Sequence[tuple[int, int]]) -> SingleSharding:
    """Return the sharding after the extents of each pair of tile dimensions are swapped."""
    tiles = sharding.tiles
    assert tiles is not None
    for source, target in pairs:
        split: list[int] = []
        places: dict[int, int] = {}
        for dim, count in enumerate(tiles.dims):
            if dim == source:
                split += [tiles.dims[target], count // tiles.dims[target]]
                places[dim] = len(split) - 1
            elif dim == target:
                split += [count, 1]
                places[dim] = len(split) - 1
            else:
                split.append(count)
        perm = list(range(len(split)))
        perm[places[source]], perm[places[target]] = perm[places[target]], perm[places[source]]
        dims = list(tiles.dims)
        dims[source], dims[target] = dims[target], dims[source]
        tiles = tiles.reshape(tuple(split)).transpose(perm).reshape(tuple(dims))
    return with_tiles(sharding, tiles)


def reshard_by_all_to_all(part: Part, target: SingleSharding, pairs: Sequence[tuple[int, int]]) -> Part:
    """Swap the divisions of pairs of dimensions; the tiles may then be on other devices than in `target`."""
    if part.leaf.is_same(target):
        return part
    rest = list(pairs)
    moved, rest = _all_at_once(part, target, rest)
    while rest and not moved.leaf.is_same(target):
        moved = _one_pair(moved, *rest.pop(0))
    return moved


def _all_at_once(part: Part, target: SingleSharding, pairs: list[tuple[int, int]]) -> tuple[Part, list[tuple[int, int]]]:
    """Swap those pairs at once that share no dimension and divide evenly, if there are several; return the pairs left."""
    source = part.leaf
    chosen: list[tuple[int, int]] = []
    rest: list[tuple[int, int]] = []
    for pair in sorted(pairs, key=lambda pair: pair[1]):
        is_even = part.base.dims[pair[0]] % source.dims[pair[0]] == 0 and part.base.dims[pair[1]] % target.dims[pair[1]] == 0
        is_free = not any(dim in other for dim in pair for other in chosen)
        (chosen if is_even and is_free else rest).append(pair)
    if len(chosen) < 2:
        return part, pairs
    b = part.builder
    sizes = [source.dims[a] // source.dims[c] for a, c in chosen]
    targets = [c for _, c in chosen]
    split: list[int] = []
    outer: list[int] = []
    for dim, size in enumerate(part.hlo.shape.dims):
        if dim in targets:
            group = sizes[targets.index(dim)]
            outer.append(len(split))
            split += [group, size // group]
        else:
            split.append(size)
    perm = [*outer, *(place for place in range(len(split)) if place not in outer)]
    separate = b.transpose_view(b.reshape(part.hlo, split), perm)
    count = len(chosen)
    joined = b.reshape(separate, [math.prod(separate.shape.dims[:count]), *separate.shape.dims[count:]])
    between = _swapped(source, chosen)
    sent = all_to_all(part.state, joined, groups_within(between, targets, sizes), 0)
    apart = b.add("reshape", separate.shape, [sent])
    order = list(range(count, count + part.base.rank))
    for number, (dim, _) in enumerate(chosen):
        order.insert(order.index(dim + count), number)
    turned = b.transpose_view(apart, order)
    dims: list[int] = []
    pending = 1
    for place, size in zip(order, turned.shape.dims, strict=True):
        if place < count:
            pending = size
        else:
            dims.append(size * pending)
            pending = 1
    return part.with_value(b.reshape(turned, dims), between), rest


def _one_pair(part: Part, source_dim: int, target_dim: int) -> Part:
    b, source, base = part.builder, part.leaf, part.base
    size = source.dims[source_dim] // source.dims[target_dim]
    between = _swapped(source, [(source_dim, target_dim)])
    edges: list[tuple[int, int, int]] = [(0, 0, 0)] * base.rank
    rounded = -(-base.dims[target_dim] // between.dims[target_dim]) * between.dims[target_dim]
    edges[target_dim] = (0, rounded - part.hlo.shape.dims[target_dim] * source.dims[target_dim], 0)
    zero = b.constant(0, part.hlo.shape.element_type)
    found = windowed_for_pad(part, zero, edges, source)
    assert found is not None, "a pad without interior padding is supported"
    padded = pad_of(part, found, zero)
    dims = list(padded.shape.dims)
    dims[target_dim : target_dim + 1] = [size, dims[target_dim] // size]
    sent = all_to_all(part.state, b.reshape(padded, dims), groups_within(between, [target_dim], [size]), target_dim)
    place = source_dim + 1 if target_dim < source_dim else source_dim
    perm: list[int] = []
    for dim in range(len(dims)):
        if dim == target_dim:
            continue
        if dim == place:
            perm.append(target_dim)
        perm.append(dim)
    turned = b.transpose_view(sent, perm)
    joined = list(padded.shape.dims)
    joined[target_dim] //= size
    joined[source_dim] *= size
    result = b.reshape(turned, joined)
    limits = list(base.dims)
    limits[source_dim] = -(-base.dims[source_dim] // between.dims[source_dim]) * between.dims[source_dim]
    now = list(base.dims)
    now[source_dim] = part.hlo.shape.dims[source_dim] * source.dims[source_dim]
    moved = Part(result, _with_dims(base, now), between, part.state)
    ones = [1] * base.rank
    cut = windowed_for_slice(moved, [0] * base.rank, limits, ones, between)
    assert cut is not None, "a slice with stride 1 is supported"
    return Part(slice_of(moved, cut, ones, base, between), base, between, part.state)


def _with_dims(shape: Shape, dims: Sequence[int]) -> Shape:
    return replace(shape, dims=tuple(dims))
