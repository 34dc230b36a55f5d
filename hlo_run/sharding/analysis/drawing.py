"""Draw which device holds which piece of an array: a table for one and two dimensions, a list of slices for more.

     0:3   3:5
    +-----+-----+
0:2 | 0   | 1   |
    +-----+-----+
2:4 | 2   | 3   |
    +-----+-----+
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.sharding.values.make import as_tiles, device_array, elements_of, shard_shape

# A wider table becomes a list.
_MOST_COLUMNS = 120
_MOST_LINES = 64
# How devices of one cell are joined: those of manual subgroups, of sums, and those with the same data.
_MARKS = {"manual": " / ", "unreduced": " + "}
_LEGENDS = {
    "unreduced": "0 + 1: the data are the sum of what devices 0 and 1 have",
    "manual": "0 / 1: devices 0 and 1 have data of their own",
}
# Of more parts only the first ones are shown, and the last.
_MOST_PARTS = 16


class Piece(Struct, frozen=True):
    """A piece of an array: the half-open ranges of its elements along each dimension, and its devices as text."""

    ranges: tuple[tuple[int, int], ...]
    devices: str

    @property
    def slices(self) -> str:
        """The ranges as `[0:2, 4:8]`; `nothing` for a tile beyond the end of the array."""
        is_empty = any(begin >= end for begin, end in self.ranges)
        return "nothing" if is_empty else f"[{', '.join(f'{begin}:{end}' for begin, end in self.ranges)}]"


def pieces_of(shape: Shape, sharding: SingleSharding, partitions: int) -> list[Piece]:
    """Return the pieces of an array in row-major order. An array without tiles is one piece."""
    whole = tuple((0, size) for size in shape.dims)
    if sharding.kind == "maximal":
        return [Piece(whole, str(sharding.device))]
    everyone = range(partitions)
    if sharding.kind in ("manual", "unreduced"):
        return [Piece(whole, _joined([str(device) for device in everyone], sharding.kind))]
    if sharding.kind != "tiled":
        return [Piece(whole, _same(everyone))]
    devices = device_array(sharding)
    tile = shard_shape(shape, sharding).dims
    pieces: list[Piece] = []
    for place in np.ndindex(*sharding.data_dims):
        ranges = tuple(
            (min(at * own, size), min((at + 1) * own, size)) for at, own, size in zip(place, tile, shape.dims, strict=True)
        )
        pieces.append(Piece(ranges, _group_text(devices[place].tolist(), sharding.subgroups)))
    return pieces


def draw(title: str, shape: Shape, sharding: Sharding, partitions: int) -> str:
    """Return the drawings of the arrays of a value, each below its title; `sharding` belongs to the value's shape."""
    leaves = list(shape.leaves())
    parts = elements_of(as_tiles(sharding))
    if len(parts) == 1:
        parts = parts * len(leaves)
    return "\n\n".join(
        _drawn(f"{title}{{{','.join(map(str, index))}}}" if index else title, leaf, part, partitions)
        for (index, leaf), part in zip(leaves, parts, strict=True)
        if leaf.is_array
    )


def legend(text: str) -> str:
    """Return the meaning of the marks in drawings, "" if they have none."""
    return ". ".join(words for kind, words in _LEGENDS.items() if _MARKS[kind] in text)


def _drawn(title: str, shape: Shape, sharding: SingleSharding, partitions: int) -> str:
    text = shape.to_string(layout=False)
    if sharding.kind == "tiled" and sharding.data_rank != shape.rank:
        return f"{title} {text}, sharding={sharding}: tiles of {sharding.data_rank} dimensions, which do not fit"
    pieces = pieces_of(shape, sharding, partitions)
    title = f"{title} {text}, sharding={sharding}: {_meaning(shape, sharding)}"
    counts = sharding.data_dims if sharding.kind == "tiled" else (1,) * shape.rank
    table = _table(pieces, counts) if shape.rank in (1, 2) else []
    if not table or max(map(len, table)) > _MOST_COLUMNS or len(table) > _MOST_LINES:
        table = [f"{piece.slices if shape.rank else 'whole'}: {piece.devices}" for piece in pieces[:_MOST_LINES]]
        if len(pieces) > _MOST_LINES:
            table.append(f".. {len(pieces) - _MOST_LINES} more pieces")
    return "\n".join([title, *(f"  {line}" for line in table)])


def _meaning(shape: Shape, sharding: SingleSharding) -> str:
    """Return in words what a device has."""
    if sharding.kind == "maximal":
        return f"device {sharding.device} has the whole array"
    if sharding.kind == "manual":
        return "every device has an array of its own"
    if sharding.kind == "unreduced":
        return "every device has a part of the sum"
    if sharding.kind != "tiled" or sharding.tile_count == 1:
        return "no dimension is divided" if sharding.kind == "tiled" else "every device has the whole array"
    tile = shard_shape(shape, sharding)
    is_even = all(size % count == 0 for size, count in zip(shape.dims, sharding.data_dims, strict=True))
    return f"tiles of {tile.to_string(layout=False)}" + ("" if is_even else ", the last ones padded")


def _table(pieces: Sequence[Piece], counts: Sequence[int]) -> list[str]:
    """Return the lines of a table of one row for one dimension; for two, dimension 0 goes down and 1 to the right."""
    columns = counts[-1]
    rows = [pieces[begin : begin + columns] for begin in range(0, len(pieces), columns)]
    heads = [_range_text(piece.ranges[-1]) for piece in rows[0]]
    sides = [_range_text(row[0].ranges[0]) if len(counts) > 1 else "" for row in rows]
    side = max(map(len, sides))
    side += 1 if side else 0
    width = max(len(text) for text in (*heads, *(piece.devices for piece in pieces)))
    rule = " " * side + "+" + f"{'-' * (width + 2)}+" * columns
    lines = [(" " * side + " " + "".join(f" {head:<{width + 2}}" for head in heads)).rstrip(), rule]
    for text, row in zip(sides, rows, strict=True):
        lines += [f"{text:<{side}}|" + "".join(f" {piece.devices:<{width}} |" for piece in row), rule]
    return lines


def _range_text(ends: tuple[int, int]) -> str:
    return f"{ends[0]}:{ends[1]}" if ends[0] < ends[1] else "none"


def _group_text(devices: int | list[int], subgroups: Sequence[str]) -> str:
    """Return the devices of a tile. The nested lists have a level for each subgroup."""
    if isinstance(devices, int):
        return str(devices)
    if list(subgroups) == ["replicated"]:
        return _same(devices)
    return _joined([_group_text(part, subgroups[1:]) for part in devices], subgroups[0])


def _joined(parts: list[str], kind: str) -> str:
    if len(parts) > _MOST_PARTS:
        parts = [*parts[: _MOST_PARTS - 1], "..", parts[-1]]
    return _MARKS.get(kind, " ").join(parts)


def _same(devices: Sequence[int]) -> str:
    """Return `0-3,6`: runs of consecutive numbers by their ends."""
    runs: list[str] = []
    for _, group in itertools.groupby(enumerate(sorted(devices)), key=lambda pair: pair[1] - pair[0]):
        numbers = [device for _, device in group]
        runs.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}{'-' if len(numbers) > 2 else ','}{numbers[-1]}")
    return ",".join(runs)
