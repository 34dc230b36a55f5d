"""The map from GPU thread and block ids to the elements of a thread, for kernels that access memory linearly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hlo_run.indexing.expr import ZERO, Expr, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import GRID_NAMES, Variable


def grid_variables(threads: Sequence[int], blocks: Sequence[int]) -> tuple[Variable, ...]:
    """Return th_x, th_y, th_z, bl_x, bl_y, bl_z, bounded by `threads` (block sizes x, y, z) and `blocks` (grid sizes)."""
    return tuple(Variable(Interval(0, size - 1), name) for size, name in zip((*threads, *blocks), GRID_NAMES, strict=True))


@lru_cache(maxsize=1024)
def thread_map(
    dims: tuple[int, ...],
    minor_to_major: tuple[int, ...],
    threads: tuple[int, int, int],
    blocks: tuple[int, int, int],
    tile_sizes: tuple[int, ...] = (),
    symbol_names: tuple[str, ...] = (),
) -> IndexingMap:
    """Return (thread and block ids)[chunk, tile..] -> logical index into an array of `dims`, simplified.

    `threads` and `blocks` are (x, y, z). A thread handles prod(tile_sizes) consecutive elements per chunk, the last tile
    dimension fastest. Threads follow each other in memory order, then chunks, until the array is covered. Unused symbols
    are dropped, such as the chunk if one covers the array; the six dimensions stay. `symbol_names` names the tile symbols.
    Mirrors XLA's `GetDefaultWorkItemIndexingMap`.
    """
    count = prod(dims)
    linear, stride = _linear_index(threads, blocks, tile_sizes)
    chunks = -(-count // stride)
    names = symbol_names or ("",) * len(tile_sizes)
    ranges = [Variable(Interval(0, chunks - 1))]
    ranges += [Variable(Interval(0, size - 1), name) for size, name in zip(tile_sizes, names, strict=True)]
    results: list[Expr] = [ZERO] * len(dims)
    divisor = 1
    for d in minor_to_major:
        results[d] = linear // divisor % max(dims[d], 1)
        divisor *= max(dims[d], 1)
    grid = grid_variables(threads, blocks)
    full = IndexingMap(grid, tuple(ranges), (), tuple(results)).with_constraint(linear, Interval(0, count - 1))
    return full.simplify().remove_unused_symbols()[0]


def _linear_index(threads: Sequence[int], blocks: Sequence[int], tile_sizes: Sequence[int]) -> tuple[Expr, int]:
    """Return the linear element number of a thread's [chunk, tile..], and the number of elements in a chunk."""
    linear, stride = ZERO, 1
    for number, size in reversed(list(enumerate(tile_sizes))):
        linear += symbol(1 + number) * stride
        stride *= size
    for axis in range(3):
        linear += (dim(axis) + dim(3 + axis) * threads[axis]) * stride
        stride *= threads[axis] * blocks[axis]
    return linear + symbol(0) * stride, stride
