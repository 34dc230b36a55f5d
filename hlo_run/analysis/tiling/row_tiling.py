"""Tiles a row fusion: the elements that each thread computes.

128 rows of 16 floats:    blocks of 128 threads for 8 rows, 16 lanes a row
8 rows of 4096 floats:    blocks of 256 threads, 8 warps a row, 4 times 4 neighbours a thread
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.analysis.tiling.reduction_description import WARP_SIZE
from hlo_run.analysis.tiling.row_fusion import RowFusion
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.expr import ZERO, Expr, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.thread_map import grid_variables
from hlo_run.indexing.variable import Variable

_MAX_ROW_THREADS = 1024
_BLOCK_THREADS = 128
_VECTORS_PER_THREAD = 4
_VECTOR_BITS = 128
_TH_X, _BL_X = dim(0), dim(3)


class RowTiling(Struct, frozen=True):
    """`lanes` threads (a power of two) share a row and compute `vector` adjacent elements each at a time."""

    fusion: RowFusion
    rows_per_block: int
    lanes: int
    vector: int

    @property
    def launch(self) -> LaunchDimensions:
        """The launch, along x: blocks of `rows_per_block` rows with `lanes` threads each."""
        return LaunchDimensions((-(-self.fusion.rows // self.rows_per_block), 1, 1), (self.rows_per_block * self.lanes, 1, 1))

    @property
    def lanes_in_warp(self) -> int:
        """The number of threads of a warp that share a row and can shuffle."""
        return min(self.lanes, WARP_SIZE)

    @property
    def warps(self) -> int:
        """The number of warps that share a row."""
        return self.lanes // self.lanes_in_warp

    @property
    def elements(self) -> IndexingMap:
        """Return (six ids)[step, neighbour] -> (row, column)."""
        vectors = self.fusion.columns // self.vector
        ranges = _ranges(-(-vectors // self.lanes), self.vector)
        number = symbol(0) * self.lanes + _TH_X % self.lanes
        inside = ((number, Interval.of_size(vectors)), self._row_exists)
        return self._map(ranges, (self._row, number * self.vector + symbol(1)), inside)

    @property
    def leaders(self) -> IndexingMap:
        """Return (six ids) -> (row, 0), for the first thread of each row."""
        return self._map((), (self._row, ZERO), ((_TH_X % self.lanes, Interval(0, 0)), self._row_exists))

    @property
    def partial(self) -> IndexingMap:
        """Return (six ids) -> (row in the block, warp in the row), for the first thread of each row in a warp."""
        first = (_TH_X % self.lanes_in_warp, Interval(0, 0))
        return self._map((), (_TH_X // self.lanes, _TH_X % self.lanes // self.lanes_in_warp), (first,))

    @property
    def partials(self) -> IndexingMap:
        """Return (six ids)[warp] -> (row in the block, warp), for all threads."""
        return self._map(_ranges(self.warps), (_TH_X // self.lanes, symbol(0)), ())

    @property
    def _row(self) -> Expr:
        return _BL_X * self.rows_per_block + _TH_X // self.lanes

    @property
    def _row_exists(self) -> tuple[Expr, Interval]:
        return self._row, Interval.of_size(self.fusion.rows)

    def _map(
        self, ranges: tuple[Variable, ...], results: Sequence[Expr], constraints: Sequence[tuple[Expr, Interval]]
    ) -> IndexingMap:
        grid = grid_variables(self.launch.block, self.launch.grid)
        return IndexingMap(grid, ranges, (), tuple(results), tuple(constraints)).simplify()


def _ranges(*sizes: int) -> tuple[Variable, ...]:
    return tuple(Variable(Interval.of_size(size), name) for size, name in zip(sizes, "ij", strict=False))


def tile_rows(fusion: RowFusion, arrays: Sequence[HloInstruction]) -> RowTiling:
    """Return the tiling for a fusion that reads or writes `arrays`."""
    widest = max((array.shape.dtype.bits for array in arrays if array.shape.is_array), default=_VECTOR_BITS)
    vector = 1
    while fusion.columns % (2 * vector) == 0 and fusion.columns >= 2 * vector * WARP_SIZE and 2 * vector * widest <= _VECTOR_BITS:
        vector *= 2
    vectors = fusion.columns // vector
    wanted = vectors if vectors <= WARP_SIZE else max(WARP_SIZE, -(-vectors // _VECTORS_PER_THREAD))
    lanes = min(_MAX_ROW_THREADS, 1 << (wanted - 1).bit_length())
    return RowTiling(fusion, min(fusion.rows, max(1, _BLOCK_THREADS // lanes)), lanes, vector)
