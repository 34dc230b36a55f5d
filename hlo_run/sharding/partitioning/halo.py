"""Exchange the edges of tiles between neighbours, if the tiles that a computation reads are not the devices' tiles."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.collectives import permute
from hlo_run.sharding.partitioning.compact_halo import exchange_compactly
from hlo_run.sharding.partitioning.masks import as_type_of
from hlo_run.sharding.partitioning.offsets import Linear, Offset, minus, plus
from hlo_run.sharding.partitioning.state import State
from hlo_run.sharding.values.make import device_array


def exchange(
    state: State, value: HloInstruction, left: Offset, right: Offset, dim: int, target: SingleSharding
) -> HloInstruction | None:
    """Join a tile with the halos of its neighbours along `dim`; None if a replication is cheaper.

    `left` and `right` are the sizes of the halos per tile, negative where a tile's own elements are not needed.
    """
    b = state.builder
    size, count = value.shape.dims[dim], target.dims[dim]
    most_left, most_right = left.most(1, count), right.most(0, count - 1)
    if most_left + most_right + size >= size * count and max(most_left, most_right) > size:
        return None
    begin, end = -left.most(0, count), size + right.most(0, count)
    if begin >= end:
        return None
    pieces: list[HloInstruction] = []
    zeros = 0
    number = -(-most_left // size) - 1
    while number >= 0 and (-number - 1) * size < end:
        with_skips = min(most_left - size * number, size)
        skipped = max(-number * size - end, 0)
        part = _cut(state, value, dim, size - with_skips, size - skipped)
        pairs = _pairs(target, dim, number + 1)
        if pairs:
            pieces.append(permute(state, part, pairs))
        else:
            zeros += part.shape.dims[dim]
        number -= 1
    if zeros:
        pieces.insert(0, b.zeros(_sized(value.shape, dim, zeros)))
    if begin < size and end > 0:
        pieces.append(_cut(state, value, dim, max(0, begin), min(size, end)))
    zeros = 0
    first = min(max(begin - size, 0), max(most_right, 0)) // size
    for number in range(first, -(-most_right // size)):
        with_skips = min(most_right - size * number, size)
        skipped = max(begin - (number + 1) * size, 0)
        part = _cut(state, value, dim, skipped, with_skips)
        pairs = [(target_device, source) for source, target_device in _pairs(target, dim, number + 1)]
        if pairs:
            pieces.append(permute(state, part, pairs))
        else:
            zeros += part.shape.dims[dim]
    if zeros:
        pieces.append(b.zeros(_sized(value.shape, dim, zeros)))
    return b.concatenate(pieces, dim)


def _cut(state: State, value: HloInstruction, dim: int, start: int, limit: int) -> HloInstruction:
    if (start, limit) == (0, value.shape.dims[dim]):
        return value
    starts, limits = [0] * value.shape.rank, list(value.shape.dims)
    starts[dim], limits[dim] = start, limit
    return state.builder.slice(value, starts, limits)


def _sized(shape: Shape, dim: int, size: int) -> Shape:
    return replace(shape, dims=(*shape.dims[:dim], size, *shape.dims[dim + 1 :]))


def _pairs(sharding: SingleSharding, dim: int, distance: int) -> list[tuple[int, int]]:
    """Return the pairs of devices of which the second one's tile is `distance` tiles after the first one's."""
    devices = device_array(sharding)
    pairs: list[tuple[int, int]] = []
    for place, device in np.ndenumerate(devices):
        if place[dim] >= distance:
            source = (*place[:dim], place[dim] - distance, *place[dim + 1 :])
            pairs.append((int(devices[source]), int(device)))
    return pairs


def exchange_valid(
    state: State,
    value: HloInstruction,
    base: Shape,
    left: Offset,
    right: Offset,
    left_padding: int,
    padded_size: int,
    wanted: int,
    dim: int,
    target: SingleSharding,
    offset: HloInstruction,
    fill: HloInstruction,
    ordinal: HloInstruction,
    masks: bool,
    masks_compact: bool,
) -> HloInstruction | None:
    """Return the `wanted` elements along `dim` that each tile's computation reads, after an exchange; None if that is too much.

    The whole value is padded by `left_padding` in front, to `padded_size`. `offset` is where the tile's elements begin in the
    padded value. With `masks`, elements outside of the whole value are replaced by `fill`.
    """
    b = state.builder
    count = target.dims[dim]
    if left_padding == left.at(0):
        most = max(left.most(0, count), right.most(0, count))
        largest = value.shape.dims[dim] + plus(left, right).most(0, count)
        if largest == wanted and most > 2 * wanted:
            if largest * 2 >= count * value.shape.dims[dim]:
                return None
            compact_fill = as_type_of(b, fill, value) if masks or masks_compact else None
            return exchange_compactly(state, value, base, left, right, compact_fill, dim, target, ordinal)
    joined = exchange(state, value, left, right, dim, target)
    if joined is None:
        return None
    most_left = left.most(1, count)
    in_front = max(most_left, left_padding)
    start = minus(Linear(0, in_front), left)
    extra_left = max(0, in_front - max(0, most_left))
    extra_right = max(0, start.most(0, count) + wanted - joined.shape.dims[dim] - extra_left)
    if extra_left or extra_right:
        edges = [(extra_left, extra_right, 0) if d == dim else (0, 0, 0) for d in range(base.rank)]
        joined = b.pad(joined, fill, edges)
    valid = joined
    if wanted != joined.shape.dims[dim]:
        dims = _sized(joined.shape, dim, wanted).dims
        if left.is_constant and left.at(0) == left_padding:
            valid = b.slice(joined, [0] * len(dims), dims)
        else:
            zero = b.constant(0, "s32")
            starts = [start.emit(b, ordinal) if d == dim else zero for d in range(base.rank)]
            valid = b.dynamic_slice(joined, starts, dims)
    right_padding = padded_size - base.dims[dim] - left_padding
    if not masks or (left_padding <= 0 and right_padding <= 0):
        return valid
    index = valid.shape.with_element_type("s32")
    places = b.add("iota", index, iota_dimension=dim)
    places = b.binary("add", places, b.filled(offset, index))
    tests: list[HloInstruction] = []
    if left_padding > 0:
        tests.append(b.compare(places, b.filled(b.constant(left_padding, "s32"), index), "GE"))
    if right_padding > 0:
        tests.append(b.compare(places, b.filled(b.constant(base.dims[dim] + left_padding, "s32"), index), "LT"))
    chosen = b.binary("and", tests[0], tests[1]) if len(tests) == 2 else tests[0]
    return b.select(chosen, valid, b.filled(as_type_of(b, fill, valid), valid.shape))
