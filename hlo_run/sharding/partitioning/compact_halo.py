"""Exchange halos that come from far away: each piece of a tile's elements is sent by the device that has it."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.records import replace
from hlo_run.sharding.partitioning.collectives import permute
from hlo_run.sharding.partitioning.offsets import Offset, look_up
from hlo_run.sharding.partitioning.state import Builder, State
from hlo_run.sharding.values.groups import group_all_but

_PADDING, _OWN, _UNSEEN = -2, -1, -5


class _Halo(Struct):
    """A piece of a tile's elements: [start, limit) of the tile of shard `source`; `sender` is the number of its permute."""

    shard: int
    start: int
    limit: int
    sender: int
    offset: int
    source: int = 0


def exchange_compactly(
    state: State,
    value: HloInstruction,
    base: Shape,
    left: Offset,
    right: Offset,
    fill: HloInstruction | None,
    dim: int,
    sharding: SingleSharding,
    ordinal: HloInstruction,
) -> HloInstruction:
    """Return the elements of a tile with its halos, `left` and `right` of it; `fill` outside of the value (None: any number)."""
    b = state.builder
    size, count = value.shape.dims[dim], sharding.dims[dim]
    inside = replace(state, devices=group_all_but(sharding, [dim]).devices, parent=state)
    pad_value = fill if fill is not None else b.constant(0, value.shape.element_type)
    halos, window = _pieces(size, count, base.dims[dim], left, right)
    halos, by_source = _split_padding(halos, size)
    senders = _send(inside, value, dim, halos, by_source, size, count)
    parts, own_start, is_padding = _join(b, value, dim, halos, senders, pad_value, ordinal)
    if is_padding:
        return b.filled(pad_value, _sized(value.shape, dim, window))
    joined = b.concatenate(parts, dim)
    first = parts[0].shape.dims[dim]
    offsets, starts, limits = [0] * count, [0] * count, [0] * count
    needed = joined.shape.dims[dim]
    for shard, row in enumerate(halos):
        if not row:
            continue
        for halo in row:
            if halo.sender != _PADDING:
                break
            starts[shard] += halo.limit - halo.start
        limits[shard] = left.at(shard) + right.at(shard) + size
        limits[shard] -= max(0, right.at(shard) + size * (shard + 1) - base.dims[dim])
        head = row[0]
        if head.sender >= 0:
            sent, begin = senders[head.sender]
            offsets[shard] = head.start - begin + first - sent.shape.dims[dim]
        elif head.sender == _OWN:
            offsets[shard] = head.start - own_start
        else:
            offsets[shard] = first - (head.limit - head.start)
        needed = max(needed, offsets[shard] + window)
    if needed > joined.shape.dims[dim]:
        joined = b.pad(joined, pad_value, _edges(joined.shape, dim, 0, needed - joined.shape.dims[dim]))
    if joined.shape.dims[dim] > window:
        zero = b.constant(0, "s32")
        begins = [zero] * base.rank
        begins[dim] = look_up(b, offsets, "s32", ordinal)
        joined = b.dynamic_slice(joined, begins, _sized(joined.shape, dim, window).dims)
    if fill is None:
        return joined
    index = joined.shape.with_element_type("s32")
    places = b.add("iota", index, iota_dimension=dim)
    chosen = b.compare(places, b.filled(look_up(b, limits, "s32", ordinal), index), "LT")
    if any(starts):
        low = b.filled(look_up(b, starts, "s32", ordinal), index)
        chosen = b.binary("and", chosen, b.compare(places, low, "GE"))
    return b.select(chosen, joined, b.filled(pad_value, joined.shape))


def _sized(shape: Shape, dim: int, size: int) -> Shape:
    return replace(shape, dims=(*shape.dims[:dim], size, *shape.dims[dim + 1 :]))


def _edges(shape: Shape, dim: int, low: int, high: int) -> list[tuple[int, int, int]]:
    return [(low, high, 0) if d == dim else (0, 0, 0) for d in range(shape.rank)]


def _pieces(size: int, count: int, whole: int, left: Offset, right: Offset) -> tuple[list[list[_Halo]], int]:
    """Return the pieces that each shard needs, and the most elements that a shard needs."""
    rows: list[list[_Halo]] = []
    window = 0
    for shard in range(count):
        begin, end = shard * size - left.at(shard), (shard + 1) * size + right.at(shard)
        window = max(window, end - begin)
        row: list[_Halo] = []
        place = begin
        while place < end:
            halo = _Halo(shard, place % size, 0, _OWN, place - begin)
            length = end - place
            if place < 0 or place >= whole:
                length = min(length, -place) if place < 0 else length
                halo.sender = _PADDING
            else:
                length = min(size - halo.start, length)
                halo.source = place // size
            halo.limit = halo.start + length
            place += length
            row.append(halo)
        rows.append(row)
    return rows, window


def _split_padding(rows: list[list[_Halo]], size: int) -> tuple[list[list[_Halo]], list[list[tuple[int, int]]]]:
    """Split long paddings beside pieces of data. Return the pieces, and per source shard the (shard, number) of what it sends.

    A padding behind other pieces is also split where it is longer than one that has data behind it: their column has one
    width. XLA leaves it whole there, and then takes elements from the wrong place.
    """
    done: list[list[_Halo]] = [[] for _ in rows]
    by_source: list[list[tuple[int, int]]] = [[] for _ in rows]
    following = [0] * len(rows)
    while True:
        open_rows = [n for n, row in enumerate(rows) if following[n] < len(row)]
        if not open_rows:
            break
        only_padding = all(rows[n][following[n]].sender == _PADDING for n in open_rows)
        width = size
        if only_padding:
            inner = [rows[n][following[n]].limit for n in open_rows if done[n] and following[n] + 1 < len(rows[n])]
            width = min(inner, default=0)
        for n in open_rows:
            halo = rows[n][following[n]]
            made = replace(halo)
            done[n].append(made)
            if width and halo.sender == _PADDING and halo.limit > width:
                made.limit = width
                halo.start, halo.limit = 0, halo.limit - width
            else:
                following[n] += 1
            if halo.sender != _PADDING and halo.source != n:
                by_source[halo.source].append((n, len(done[n]) - 1))
    for pairs in by_source:
        pairs.sort(key=lambda pair: done[pair[0]][pair[1]].offset)
    return done, by_source


def _send(
    state: State,
    value: HloInstruction,
    dim: int,
    rows: list[list[_Halo]],
    by_source: list[list[tuple[int, int]]],
    size: int,
    count: int,
) -> list[tuple[HloInstruction, int]]:
    """Add permutes in which each shard sends and receives at most once. Return each with the start of what it sends."""
    senders: list[tuple[HloInstruction, int]] = []
    following = [0] * count
    while True:
        pairs: list[tuple[int, int]] = []
        seen: set[int] = set()
        start, limit = size, 0
        for source, wanted in enumerate(by_source):
            if len(wanted) <= following[source]:
                continue
            shard, number = wanted[following[source]]
            halo = rows[shard][number]
            is_far = (start > halo.limit and limit == size and halo.start == 0) or (
                limit < halo.start and start == 0 and halo.limit == size
            )
            if pairs and (halo.shard in seen or is_far):
                continue
            halo.sender = len(senders)
            seen.add(halo.shard)
            pairs.append((source, halo.shard))
            start, limit = min(start, halo.start), max(limit, halo.limit)
            following[source] += 1
        if not pairs:
            return senders
        part = value
        if limit - start != size:
            starts, limits = [0] * value.shape.rank, list(value.shape.dims)
            starts[dim], limits[dim] = start, limit
            part = state.builder.slice(value, starts, limits)
        senders.append((permute(state, part, pairs), start))


def _join(
    b: Builder,
    value: HloInstruction,
    dim: int,
    rows: list[list[_Halo]],
    senders: list[tuple[HloInstruction, int]],
    fill: HloInstruction,
    ordinal: HloInstruction,
) -> tuple[list[HloInstruction], int, bool]:
    """Return the parts to concatenate, where the first own piece begins, and whether all is padding."""
    size = value.shape.dims[dim]
    parts: list[HloInstruction] = []
    own_start, is_padding = size, True
    for number in range(max(map(len, rows), default=0)):
        kinds = [row[number].sender if number < len(row) else _UNSEEN for row in rows]
        longest, begin, end = 0, size, 0
        for row in rows:
            if number >= len(row):
                continue
            halo = row[number]
            if halo.sender >= 0:
                longest = max(longest, senders[halo.sender][0].shape.dims[dim])
            elif halo.sender == _OWN:
                begin, end = min(begin, halo.start), max(end, halo.limit)
                longest = max(longest, end - begin)
            else:
                longest = max(longest, halo.limit - halo.start)
        begin = max(begin - (longest - (end - begin)), 0)
        if number == 0:
            own_start = begin
        padding = b.filled(fill, _sized(value.shape, dim, longest))
        choices: list[HloInstruction] = []
        index: dict[int, int] = {}
        table: list[int] = []
        for kind in kinds:
            kind = _PADDING if kind == _UNSEEN else kind
            if kind in index:
                table.append(index[kind])
                is_padding &= kind == _PADDING
                continue
            piece = padding
            if kind >= 0:
                piece = senders[kind][0]
            elif kind == _OWN:
                piece = value if size == longest else _own(b, value, dim, begin, longest)
            is_padding &= kind == _PADDING
            missing = longest - piece.shape.dims[dim]
            if missing:
                edges = _edges(piece.shape, dim, 0, missing) if parts else _edges(piece.shape, dim, missing, 0)
                piece = b.pad(piece, fill, edges)
            index[kind] = len(choices)
            table.append(len(choices))
            choices.append(piece)
        parts.append(_choose(b, choices, padding, look_up(b, table, "s32", ordinal)))
    return parts, own_start, is_padding


def _own(b: Builder, value: HloInstruction, dim: int, begin: int, size: int) -> HloInstruction:
    starts, limits = [0] * value.shape.rank, list(value.shape.dims)
    starts[dim], limits[dim] = begin, begin + size
    return b.slice(value, starts, limits)


def _choose(b: Builder, choices: list[HloInstruction], padding: HloInstruction, selector: HloInstruction) -> HloInstruction:
    """Select one of the choices by number; padding is masked later, so any choice does for it."""
    first = 1 if len(choices) > 1 and choices[0] is padding else 0
    chosen = choices[first]
    for number in range(first + 1, len(choices)):
        if choices[number] is padding:
            continue
        test = b.compare(selector, b.constant(number, "s32"), "EQ")
        mask = b.filled(test, Shape.array("pred", chosen.shape.dims))
        chosen = b.select(mask, choices[number], chosen)
    return chosen
