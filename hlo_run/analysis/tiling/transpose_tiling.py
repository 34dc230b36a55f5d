"""Tiles the hero of a transpose kernel: the elements that each thread reads and writes.

    f32[20,160,170] -> f32[170,160,20]: tiles of 32x1x32, kept in 32x1x33 elements of shared memory,
    1 * 160 * 6 blocks of 128 threads, each with 8 steps of one element

The extra column puts the threads of a warp, which write a column of the tile, into different banks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.analysis.tiling.packed_transpose import PackedTranspose
from hlo_run.analysis.tiling.transpose_description import TILE_SIZE, TransposeDescription, describe_transpose
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import Expr, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.reshape import delinearize
from hlo_run.indexing.thread_map import grid_variables
from hlo_run.indexing.variable import Variable
from hlo_run.ops.index import bitcast_map
from hlo_run.target import TargetSpec

_ROWS_OF_THREADS = 4
_MAX_VECTOR_BYTES = 4


class TransposeTiling(Struct, frozen=True):
    """Tiles of `block_sizes` (normalised input dims), `block_counts` of them along each.

    A thread handles `steps` times `vector_size` adjacent elements. `shared_dims` are those of the padded tile, `exchanged` the
    two input dims that the tile exchanges.
    """

    description: TransposeDescription
    vector_size: int
    block_sizes: tuple[int, ...]
    shared_dims: tuple[int, ...]
    exchanged: tuple[int, int]
    steps: int
    launch: LaunchDimensions

    @property
    def block_counts(self) -> tuple[int, ...]:
        """The number of tiles along each normalised input dim; the last tile may be partial."""
        sizes = zip(self.description.input_dims, self.block_sizes, strict=True)
        return tuple(-(-size // block) for size, block in sizes)

    def input_map(self, shape: Shape) -> IndexingMap:
        """Return (six ids)[i, j] -> index into `shape`, which has the bytes of the hero's operand."""
        offsets = delinearize(self._linear(), self.block_sizes)
        starts = [block * size for block, size in zip(self._block_ids(), self.block_sizes, strict=True)]
        return self._element_map(starts, offsets, self.description.input_dims, shape)

    def output_map(self, shape: Shape) -> IndexingMap:
        """Return (six ids)[i, j] -> index into `shape`, the shape of a hero."""
        permutation = self.description.permutation
        sizes = [self.block_sizes[source] for source in permutation]
        ids = self._block_ids()
        starts = [ids[source] * size for source, size in zip(permutation, sizes, strict=True)]
        return self._element_map(starts, delinearize(self._linear(), sizes), self.description.dims, shape)

    def shared_read_map(self) -> IndexingMap:
        """Return (six ids)[i, j] -> index of the tile element that a thread reads and writes to the output."""
        return self._map(delinearize(self._linear(), self.block_sizes)).simplify()

    def shared_write_map(self) -> IndexingMap:
        """Return (six ids)[i, j] -> index of the tile element that a thread writes from the input."""
        index = list(delinearize(self._linear(), self.block_sizes))
        first, second = self.exchanged
        index[first], index[second] = index[second], index[first]
        return self._map(index).simplify()

    def _linear(self) -> Expr:
        """Return the row-major position in the tile: 128 threads handle `vector_size` adjacent elements each, step after step."""
        stride = TILE_SIZE * _ROWS_OF_THREADS * self.vector_size
        return symbol(0) * stride + dim(0) * self.vector_size + symbol(1)

    def _block_ids(self) -> Sequence[Expr]:
        return delinearize(dim(3), self.block_counts)

    def _map(self, results: Sequence[Expr], constraints: tuple[tuple[Expr, Interval], ...] = ()) -> IndexingMap:
        ranges = (Variable(Interval.of_size(self.steps), "i"), Variable(Interval.of_size(self.vector_size), "j"))
        return IndexingMap(grid_variables(self.launch.block, self.launch.grid), ranges, (), tuple(results), constraints)

    def _element_map(self, starts: Sequence[Expr], offsets: Sequence[Expr], sizes: tuple[int, ...], shape: Shape) -> IndexingMap:
        index = [start + offset for start, offset in zip(starts, offsets, strict=True)]
        constraints = tuple((expr, Interval.of_size(size)) for expr, size in zip(index, sizes, strict=True))
        normalized = Shape.array(shape.element_type, sizes)
        to_shape = bitcast_map(normalized, shape)
        assert to_shape is not None, "the transpose analysis admits only shapes that are bitcasts of the normalised one"
        return compose(self._map(index, constraints), to_shape).simplify()


def tile_transpose(description: TransposeDescription, hero_element_bytes: Sequence[int], target: TargetSpec) -> TransposeTiling:
    """Return the tiling for heroes equivalent to `description`, with these element sizes. Mirrors `TransposeFusion`."""
    input_dims, permutation = description.input_dims, description.permutation
    rank = len(input_dims)
    block_sizes = [1] * rank
    if description.keeps_minor:
        vector_size = block_sizes[-1] = input_dims[-1]
        exchanged = (permutation[-2], rank - 2)
        side, steps = TILE_SIZE, TILE_SIZE // _ROWS_OF_THREADS
    else:
        exchanged = (permutation[-1], rank - 1)
        vector_size = _vector_size(description, exchanged, hero_element_bytes, target)
        side = TILE_SIZE * vector_size
        steps = side // _ROWS_OF_THREADS
    for number in exchanged:
        block_sizes[number] = side
    shared_dims = list(block_sizes)
    shared_dims[exchanged[1]] += 1
    blocks = math.prod(-(-size // block) for size, block in zip(input_dims, block_sizes, strict=True))
    threads = TILE_SIZE * _ROWS_OF_THREADS
    launch = LaunchDimensions((blocks, 1, 1), (threads, 1, 1))
    return TransposeTiling(description, vector_size, tuple(block_sizes), tuple(shared_dims), exchanged, steps, launch)


def tiling_of_heroes(
    description: TransposeDescription, heroes: Iterable[HloInstruction], target: TargetSpec
) -> TransposeTiling | PackedTranspose:
    """Return the tiling of a fusion's heroes, of which `description` describes one. Only transposes count."""
    if description.packed:
        return description.packed
    transposes = (hero for hero in dict.fromkeys(heroes) if hero.opcode == "transpose" and describe_transpose(hero))
    return tile_transpose(description, [-(-hero.shape.dtype.bits // 8) for hero in transposes], target)


def _vector_size(
    description: TransposeDescription, exchanged: tuple[int, int], hero_element_bytes: Sequence[int], target: TargetSpec
) -> int:
    """Return the largest vector size that divides both exchanged dims and leaves enough work and shared memory."""
    dims = description.input_dims
    tiles = math.prod(-(-size // TILE_SIZE) if number in exchanged else size for number, size in enumerate(dims))
    threads = tiles * TILE_SIZE * _ROWS_OF_THREADS
    tile_bytes = TILE_SIZE * (TILE_SIZE + 1) * sum(hero_element_bytes)
    size = _MAX_VECTOR_BYTES // max(hero_element_bytes)
    while size > 1:
        enough_work = threads >= size * size * target.max_resident_threads
        fits = tile_bytes * size * size <= target.shared_memory_per_block_bytes
        if enough_work and fits and all(dims[number] % size == 0 for number in exchanged):
            return size
        size //= 2
    return 1
