"""Counts the differing elements of an array over pairs of its dimensions, in cells, for a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct

from hlo_run.reference.values import Array

# Cells per dimension, and dimensions of a size above 1 that are looked at: the largest.
_MOST_CELLS = 64
_MOST_DIMENSIONS = 5


class HeatMap(Struct, frozen=True):
    """Differing elements over dimensions `rows` and `columns`, summed over the others.

    A cell covers `row_size` x `column_size` indices. `counts` has the row-major numbers of elements that differ per cell;
    `elements` is the number of elements behind an index pair. An array of one dimension has one row, and `rows` is -1.
    """

    rows: int
    columns: int
    height: int
    width: int
    row_size: int
    column_size: int
    counts: tuple[tuple[int, ...], ...]
    elements: int


def heat_maps(mask: Array) -> list[HeatMap]:
    """Return a map per pair of dimensions of a mask, true where elements differ. Empty for a mask with one element."""
    wide = [d for d in range(mask.ndim) if mask.shape[d] > 1]
    if len(wide) > _MOST_DIMENSIONS:
        wide = sorted(sorted(wide, key=lambda d: -mask.shape[d])[:_MOST_DIMENSIONS])
    if not wide or not mask.size:
        return []
    if len(wide) == 1:
        return [_map(mask, -1, wide[0])]
    # The last two dimensions come first.
    return [_map(mask, rows, columns) for rows, columns in reversed(list(combinations(wide, 2)))]


def _map(mask: Array, rows: int, columns: int) -> HeatMap:
    kept = [d for d in (rows, columns) if d >= 0]
    counts = np.count_nonzero(mask, axis=tuple(d for d in range(mask.ndim) if d not in kept))
    plane = np.asarray(counts).reshape(1, -1) if rows < 0 else np.asarray(counts)
    height, width = plane.shape
    row_size, column_size = -(-height // _MOST_CELLS), -(-width // _MOST_CELLS)
    cells = np.add.reduceat(plane, _starts(height, row_size), axis=0)
    cells = np.add.reduceat(cells, _starts(width, column_size), axis=1)
    table = tuple(tuple(int(count) for count in row) for row in cells)
    return HeatMap(rows, columns, height, width, row_size, column_size, table, mask.size // (height * width))


def _starts(size: int, step: int) -> Sequence[int]:
    return range(0, size, step)
