"""Tiles a transpose of narrow elements so that threads exchange whole bank words of shared memory.

    bf16[30,16,30] -> bf16[30,16,30], dimensions={2,1,0}: v = 2 elements per word of 32 bits, tiles of 64x64 elements that
    hold 30 rows of 2x30 columns each

The input is [.., T2, .., A, T1]. T1 and T2 swap places; A, if it stays in its place, fills the columns that a short T1 leaves
free. A tile has rows along T2 and columns along (A, T1). A thread reads v x v elements of it and transposes them in
registers, so that both loops access global memory in vectors. Row r is rotated by r/v words, which puts the threads of a warp
into different banks. Mirrors XLA's `PackedTranspose`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import Expr, constant, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.reshape import delinearize
from hlo_run.indexing.thread_map import grid_variables
from hlo_run.indexing.variable import Variable
from hlo_run.ops.index import bitcast_map

_BANKS = 32
_BANK_BITS = 32
_GROUPS = 4
_THREADS = _BANKS * _GROUPS
# With fewer words per row and column most threads would be idle.
_MIN_WORDS = 10

Constraint = tuple[Expr, Interval]


class PackedTranspose(Struct, frozen=True):
    """Tiles of `block_sizes` over the normalised `input_dims`; output dim i is input dim `permutation[i]`.

    `rows` and `columns` of a tile are in use; `vector_size` elements make a bank word. `batch_dim` is A, None if the dimension
    before the last one moves.
    """

    input_dims: tuple[int, ...]
    permutation: tuple[int, ...]
    vector_size: int
    block_sizes: tuple[int, ...]
    batch_dim: int | None

    @property
    def shared_dims(self) -> tuple[int, int]:
        """The rows and columns of the tile in shared memory, in elements."""
        return (_BANKS * self.vector_size, _BANKS * self.vector_size)

    @property
    def rows(self) -> int:
        """The rows of a tile that are in use: its extent along T2."""
        return self.block_sizes[self.permutation[-1]]

    @property
    def columns(self) -> int:
        """The columns of a tile that are in use: its extent along (A, T1)."""
        return self.block_sizes[-1] * (1 if self.batch_dim is None else self.block_sizes[self.batch_dim])

    @property
    def launch(self) -> LaunchDimensions:
        """The launch: one block of 128 threads per tile, along x."""
        return LaunchDimensions((math.prod(self._block_counts), 1, 1), (_THREADS, 1, 1))

    @property
    def _block_counts(self) -> tuple[int, ...]:
        return tuple(-(-size // block) for size, block in zip(self.input_dims, self.block_sizes, strict=True))

    def input_map(self, shape: Shape) -> IndexingMap:
        """Return (six ids)[step, vector] -> index into `shape`, which has the bytes of the hero's operand."""
        row, column = self._written()
        return self._element_map(self._position(row, column), self._write_ranges, row, column, self.input_dims, shape)

    def shared_write_map(self) -> IndexingMap:
        """Return (six ids)[step, vector] -> index of the tile element that a thread writes from the input."""
        row, column = self._written()
        return self._map((row, self._rotated(row, column)), self._write_ranges).simplify()

    def shared_read_map(self) -> IndexingMap:
        """Return (six ids)[step] -> the start of the first of the `vector_size` words that a thread transposes."""
        row, column = self._read(constant(0), constant(0))
        position = zip(self._position(row, column), self.input_dims, strict=True)
        inside = (*self._in_tile(row, column), *((expr, Interval.of_size(size)) for expr, size in position))
        return self._map((row, self._rotated(row, column)), self._read_ranges[:1], inside).simplify()

    def shared_element_map(self) -> IndexingMap:
        """Return (six ids)[step, which column, which row] -> index of the tile element that a thread writes to the output."""
        row, column = self._read(symbol(1), symbol(2))
        return self._map((row, self._rotated(row, column)), self._read_ranges).simplify()

    @property
    def fills_words(self) -> bool:
        """False if a tile at the edge ends inside a word, the rest of which is never written."""
        return self.input_dims[-1] % self.block_sizes[-1] % self.vector_size == 0

    def output_map(self, shape: Shape) -> IndexingMap:
        """Return (six ids)[step, which column, which row] -> index into `shape`, the shape of a hero."""
        row, column = self._read(symbol(1), symbol(2))
        position = self._position(row, column)
        permuted = [position[source] for source in self.permutation]
        sizes = tuple(self.input_dims[source] for source in self.permutation)
        return self._element_map(permuted, self._read_ranges, row, column, sizes, shape)

    @property
    def _write_ranges(self) -> tuple[Variable, ...]:
        return _ranges(i=-(-self.rows // _GROUPS), j=self.vector_size)

    @property
    def _read_ranges(self) -> tuple[Variable, ...]:
        steps = -(-self.columns // (self.vector_size * _GROUPS))
        return _ranges(i=steps, j=self.vector_size, k=self.vector_size)

    def _written(self) -> tuple[Expr, Expr]:
        """Return row and column of the element that a thread writes to the tile. A warp writes a row."""
        group, lane = delinearize(dim(0), (_GROUPS, _BANKS))
        return symbol(0) * _GROUPS + group, lane * self.vector_size + symbol(1)

    def _read(self, which_column: Expr, which_row: Expr) -> tuple[Expr, Expr]:
        """Return row and column of the element that a thread reads from the tile. A warp reads columns, a word of each row."""
        group, lane = delinearize(dim(0), (_GROUPS, _BANKS))
        size = self.vector_size
        return lane * size + which_row, (symbol(0) * _GROUPS + group) * size + which_column

    def _rotated(self, row: Expr, column: Expr) -> Expr:
        return (column + row // self.vector_size * self.vector_size) % (_BANKS * self.vector_size)

    def _in_tile(self, row: Expr, column: Expr) -> tuple[Constraint, ...]:
        return (row, Interval.of_size(self.rows)), (column, Interval.of_size(self.columns))

    def _position(self, row: Expr, column: Expr) -> list[Expr]:
        counts = self._block_counts
        blocks = delinearize(dim(3), [counts[source] for source in self.permutation])  # neighbours in the output
        position = [constant(0)] * len(counts)
        for source, block in zip(self.permutation, blocks, strict=True):
            position[source] = block * self.block_sizes[source]
        position[self.permutation[-1]] += row
        minor = self.block_sizes[-1]
        if self.batch_dim is None:
            position[-1] += column
        else:
            position[self.batch_dim] += column // minor
            position[-1] += column % minor
        return position

    def _map(self, results: Sequence[Expr], ranges: tuple[Variable, ...], inside: Sequence[Constraint] = ()) -> IndexingMap:
        return IndexingMap(grid_variables(self.launch.block, self.launch.grid), ranges, (), tuple(results), tuple(inside))

    def _element_map(
        self, index: Sequence[Expr], ranges: tuple[Variable, ...], row: Expr, column: Expr, sizes: tuple[int, ...], shape: Shape
    ) -> IndexingMap:
        inside = tuple((expr, Interval.of_size(size)) for expr, size in zip(index, sizes, strict=True))
        to_shape = bitcast_map(Shape.array(shape.element_type, sizes), shape)
        assert to_shape is not None, "the transpose analysis admits only shapes that are bitcasts of the normalised one"
        return compose(self._map(index, ranges, (*self._in_tile(row, column), *inside)), to_shape).simplify()

    def __str__(self) -> str:
        return f"packed by {self.vector_size}, {self.rows} rows of {self.columns} columns"


def _ranges(**sizes: int) -> tuple[Variable, ...]:
    return tuple(Variable(Interval.of_size(size), name) for name, size in sizes.items())


def judge_packed_transpose(
    input_dims: Sequence[int], permutation: Sequence[int], element_bits: int
) -> PackedTranspose | Decision:
    """Return the tiling of a normalised transpose, or the reason why it cannot exchange whole words."""
    if element_bits >= _BANK_BITS:
        return no(f"elements of {element_bits} bits fill bank words")
    last = len(input_dims) - 1
    if permutation[-1] == last:
        return no("its minor dimension stays")
    size = _BANK_BITS // element_bits
    side = _BANKS * size
    block_sizes = [1] * len(input_dims)
    block_sizes[last] = min(input_dims[last], side)
    batch_dim = last - 1 if permutation[-2] == last - 1 else None
    if batch_dim is not None:
        block_sizes[batch_dim] = min(input_dims[batch_dim], side // block_sizes[last])
    row_dim = permutation[-1]
    block_sizes[row_dim] = min(input_dims[row_dim], side)
    found = PackedTranspose(tuple(input_dims), tuple(permutation), size, tuple(block_sizes), batch_dim)
    if min(found.rows, found.columns) < _MIN_WORDS * size:
        return no(f"tiles of {found.rows} rows and {found.columns} columns would leave threads idle")
    if found.rows % size or found.columns % size or input_dims[row_dim] % found.rows % size:
        return no(f"tiles of {found.rows} rows and {found.columns} columns are not whole words of {size} elements")
    return found
