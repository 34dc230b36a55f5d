"""Tiles a reduction kernel: the elements that each thread reads, the shared-memory tile, and the results that it writes.

    f32[64,1000] -> f32[64], rows: blocks of 4 x 64 threads, each thread sums up to 8 pairs of a row, a warp shuffles its
    sums together, the first lane of each warp writes a 4x2 tile, and one lane per warp of a row shuffles that again

All forms work on [a, b, c] of the description. Mirrors XLA's `RowReductionFusion`, `MultiRowReductionFusion`,
`ColumnReductionFusion` and `SmallColumnReductionFusion`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.launch_dimensions import Dim3, LaunchDimensions, split_blocks
from hlo_run.analysis.tiling.reduction_description import WARP_SIZE, ReductionDescription
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import ZERO, Expr, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.reshape import delinearize
from hlo_run.indexing.thread_map import grid_variables
from hlo_run.indexing.variable import Variable
from hlo_run.ops.index import bitcast_map
from hlo_run.target import TargetSpec

_MAX_ROW_THREADS = 1024
_ELEMENTS_PER_ROW_THREAD = 16
_BLOCK_THREADS_OF_ROWS = 256
_SMALL_COLUMN_THREADS = 128
# A vector of a small row has at most 8 bytes, or 16 with a 32-bit type.
_MULTI_ROW_VECTOR_BITS = 64
_MULTI_ROW_WIDE_VECTOR_BITS = 128
_SYMBOL_NAMES = ("i", "j", "k")

Constraint = tuple[Expr, Interval]
_TH_X, _BL_X, _BL_Y = dim(0), dim(3), dim(4)


class SharedTile(Struct, frozen=True):
    """The shared memory for partial results. Threads in the domain of `write` write; after a barrier the threads of `read` read.

    Threads outside the domain of `read` continue with the init value. `distance` is that of the first shuffle after it.
    """

    dims: tuple[int, ...]
    write: IndexingMap
    read: IndexingMap
    distance: int


class ReductionTiling(Struct, frozen=True):
    """The threads of one reduction kernel.

    `element` is the position in the normalised input, of sizes `sizes`. `symbols` are the numbers of a thread's steps along each
    dimension. If `accumulators` is more than 1, a thread keeps that many partial results, and the last symbol selects one.
    `first_distance` is the distance of the first shuffle before the tile, 0 without one. `result` is the index into the kept dims
    that a thread with `result_if` writes; symbol 0 is the accumulator.
    """

    form: str
    description: ReductionDescription
    launch: LaunchDimensions
    symbols: tuple[int, ...]
    sizes: tuple[int, ...]
    element: tuple[Expr, ...]
    accumulators: int
    first_distance: int
    tile: SharedTile | None
    result: tuple[Expr, ...]
    result_if: tuple[Constraint, ...]

    @property
    def input_map(self) -> IndexingMap:
        """Return (six ids)[steps] -> normalised input index, restricted to the input."""
        names = zip(self.symbols, _SYMBOL_NAMES, strict=False)
        ranges = tuple(Variable(Interval.of_size(size), name) for size, name in names)
        inside = tuple((expr, Interval.of_size(size)) for expr, size in zip(self.element, self.sizes, strict=True))
        return _grid_map(self.launch, ranges, self.element, inside)

    @property
    def vector_size(self) -> int:
        """The number of adjacent elements that a thread reads at once. In a row reduction they belong to one result."""
        return self.symbols[-1] if self.description.is_row else self.accumulators

    def to_operand(self, shape: Shape) -> IndexingMap:
        """Return normalised input index -> index of `shape`, which has the bytes of the input."""
        found = bitcast_map(Shape.array(shape.element_type, self.sizes), shape)
        assert found is not None, "equal element counts"
        return found

    def output_map(self) -> IndexingMap:
        """Return (six ids)[accumulator] -> logical index of the reduction's result, for threads that hold a result."""
        kept = self.description.kept_dims
        inside = tuple((expr, Interval.of_size(size)) for expr, size in zip(self.result, kept, strict=True))
        own = _grid_map(self.launch, _accumulator(self.accumulators), self.result, (*inside, *self.result_if))
        shape = self.description.kept_shape
        to_shape = bitcast_map(Shape.array(shape.element_type, kept), shape)
        assert to_shape is not None, "the kept dims are those of the shape"
        return compose(own, to_shape).simplify()

    def __str__(self) -> str:
        tile = f", shared {'x'.join(map(str, self.tile.dims))}" if self.tile else ""
        steps = "x".join(map(str, self.symbols))
        return f"{self.form}: {self.launch}, {steps} elements per thread{tile}"


def _grid_map(
    launch: LaunchDimensions, ranges: tuple[Variable, ...], results: Sequence[Expr], constraints: Sequence[Constraint] = ()
) -> IndexingMap:
    grid = grid_variables(launch.block, launch.grid)
    return IndexingMap(grid, ranges, (), tuple(results), tuple(constraints)).simplify()


def _accumulator(count: int) -> tuple[Variable, ...]:
    return (Variable(Interval.of_size(count), "i"),) if count > 1 else ()


def tile_reduction(description: ReductionDescription, analysis: FusionAnalysis, groups: int) -> ReductionTiling:
    """Return the tiling for heroes equivalent to `description`. Each of `groups` groups of outputs has its own blocks along z."""
    if description.is_row:
        return _multi_row(description, analysis, groups) or _row(description, analysis, groups)
    if WARP_SIZE % description.dims[2] == 0:
        return _small_column(description, analysis, groups)
    return _column(description, analysis, groups)


def _block_id(grid: Dim3) -> Expr:
    return _BL_X + _BL_Y * grid[0] if grid[1] > 1 else _BL_X


def _launch(blocks: int, threads: int, groups: int, target: TargetSpec) -> LaunchDimensions:
    x, y = split_blocks(blocks, target)
    return LaunchDimensions((x, y, groups), (threads, 1, 1))


def _vector_size(minor: int, threads: int, analysis: FusionAnalysis, description: ReductionDescription) -> int:
    """Return the number of adjacent elements that a thread reads at once along a dimension of `minor` elements."""
    operands = description.instruction.operands
    is_complex = any(operand.shape.element_type in ("c64", "c128") for operand in operands)
    if minor % 2 or threads * 2 > minor or is_complex or analysis.smallest_input_bits >= 64:
        return 1
    if analysis.smallest_input_bits >= 32 or threads * 4 > minor:
        return 2
    return 4 if minor % 4 == 0 else 2


def _rows_per_block(rows: int, threads_per_row: int) -> int:
    return rows if rows * threads_per_row <= _BLOCK_THREADS_OF_ROWS else _BLOCK_THREADS_OF_ROWS // threads_per_row


def _row(description: ReductionDescription, analysis: FusionAnalysis, groups: int) -> ReductionTiling:
    """Whole warps shuffle a row. If a row has several warps, they exchange one element per warp in a tile and shuffle again."""
    a, b, c = description.dims
    threads = min(_MAX_ROW_THREADS, _round_up(-(-c // _ELEMENTS_PER_ROW_THREAD), WARP_SIZE))
    rows = _rows_per_block(b, threads) if 2 * threads <= _BLOCK_THREADS_OF_ROWS else 1
    vector = _vector_size(c, threads, analysis, description)
    steps = min(_ELEMENTS_PER_ROW_THREAD // vector, -(-(c // vector) // threads))
    launch = _launch(-(-b // rows), rows * threads, groups, analysis.target)
    row_in_block, lane_of_row = delinearize(_TH_X, (rows, threads))
    row = _block_id(launch.grid) * rows + row_in_block
    warps = threads // WARP_SIZE
    tile = None
    if warps > 1:
        lane = lane_of_row % WARP_SIZE
        tile = SharedTile(
            dims=(rows, warps),
            write=_grid_map(launch, (), (row_in_block, lane_of_row // WARP_SIZE), ((lane, Interval(0, 0)),)),
            read=_grid_map(launch, (), (row_in_block, lane_of_row % WARP_SIZE), ((lane_of_row, Interval.of_size(warps)),)),
            distance=WARP_SIZE // 2,
        )
    return ReductionTiling(
        form="row",
        description=description,
        launch=launch,
        symbols=(a, steps, vector),
        sizes=(a, b, c // vector, vector),
        element=(symbol(0), row, symbol(1) * threads + lane_of_row, symbol(2)),
        accumulators=1,
        first_distance=WARP_SIZE // 2,
        tile=tile,
        result=(row,),
        result_if=((lane_of_row, Interval(0, 0)),),
    )


def _multi_row(description: ReductionDescription, analysis: FusionAnalysis, groups: int) -> ReductionTiling | None:
    """A warp computes several rows, or a thread one row, with shuffles only. None for long rows and variadic reductions."""
    a, b, c = description.dims
    if len(description.instruction.operands) > 2:
        return None
    vector = _multi_row_vector(b, c, analysis)
    if vector == 0 or c & (c - 1) or c > WARP_SIZE * vector:
        return None
    threads = c // vector
    rows = _rows_per_block(b, threads)
    launch = _launch(-(-b // rows), rows * threads, groups, analysis.target)
    row_in_block, lane_of_row = delinearize(_TH_X, (rows, threads))
    row = _block_id(launch.grid) * rows + row_in_block
    return ReductionTiling(
        form="multi-row",
        description=description,
        launch=launch,
        symbols=(a, vector),
        sizes=(a, b, c),
        element=(symbol(0), row, lane_of_row * vector + symbol(1)),
        accumulators=1,
        first_distance=threads // 2,
        tile=None,
        result=(row,),
        result_if=((lane_of_row, Interval(0, 0)),),
    )


def _multi_row_vector(b: int, c: int, analysis: FusionAnalysis) -> int:
    """Return the vector size along a short row: smaller while the grid has fewer blocks than multiprocessors.
    0 for a reduce of several operands, whose result has no width. This form does not support it.
    """
    narrow, wide = sorted((analysis.smallest_input_bits, analysis.smallest_output_bits))
    if not analysis.parameter_shapes:
        wide = narrow
    vector = max(1, min(c, _MULTI_ROW_VECTOR_BITS // narrow))
    if wide >= 32:
        vector = min(vector, _MULTI_ROW_WIDE_VECTOR_BITS // wide)
    while vector > 1 and c <= WARP_SIZE * vector and -(-b // _rows_per_block(b, c // vector)) < analysis.target.core_count:
        vector //= 2
    return vector


def _column(description: ReductionDescription, analysis: FusionAnalysis, groups: int) -> ReductionTiling:
    """32 threads read each of 32 columns (or groups of 2 or 4), then a tile turns columns into rows of a warp."""
    a, b, c = description.dims
    vector = _vector_size(c, WARP_SIZE, analysis, description)
    column_blocks = -(-c // (WARP_SIZE * vector))
    launch = _launch(a * column_blocks, WARP_SIZE * WARP_SIZE, groups, analysis.target)
    batch, column_block = delinearize(_block_id(launch.grid), (a, column_blocks))
    warp, lane = delinearize(_TH_X, (WARP_SIZE, WARP_SIZE))
    accumulator = symbol(0) if vector > 1 else ZERO
    minor = symbol(1) if vector > 1 else ZERO
    ranges = _accumulator(vector)
    return ReductionTiling(
        form="column",
        description=description,
        launch=launch,
        symbols=(-(-b // WARP_SIZE), vector) if vector > 1 else (-(-b // WARP_SIZE),),
        sizes=(a, b, c),
        element=(batch, warp + symbol(0) * WARP_SIZE, (column_block * WARP_SIZE + lane) * vector + minor),
        accumulators=vector,
        first_distance=0,
        tile=SharedTile(
            dims=(WARP_SIZE, WARP_SIZE * vector + 1),
            write=_grid_map(launch, ranges, (lane, warp * vector + accumulator)),
            read=_grid_map(launch, ranges, (warp, lane * vector + accumulator)),
            distance=WARP_SIZE // 2,
        ),
        result=(batch, (column_block * WARP_SIZE + warp) * vector + accumulator),
        result_if=((lane, Interval(0, 0)),),
    )


def _small_column(description: ReductionDescription, analysis: FusionAnalysis, groups: int) -> ReductionTiling:
    """For few columns: a block reads [b, c] linearly, since a thread then always reads the same columns."""
    a, b, c = description.dims
    vector = _vector_size(b * c, WARP_SIZE, analysis, description)
    threads = _SMALL_COLUMN_THREADS
    shared_rows = vector * threads // c
    while shared_rows > WARP_SIZE and vector > 1:
        vector, shared_rows = vector // 2, shared_rows // 2
    if shared_rows > WARP_SIZE:
        threads, shared_rows = threads // (shared_rows // WARP_SIZE), WARP_SIZE
    launch = _launch(a, threads, groups, analysis.target)
    block = _block_id(launch.grid)
    steps = -(-b * c // (vector * threads))
    accumulator = symbol(0) if vector > 1 else ZERO
    minor = symbol(1) if vector > 1 else ZERO
    linear = symbol(0) * (vector * threads) + _TH_X * vector + minor
    written, read = _TH_X * vector + accumulator, _TH_X + accumulator * threads
    column, row = delinearize(read, (c, shared_rows))
    pad = 0 if threads == WARP_SIZE and vector == 1 else -(-c // (threads * vector))
    ranges = _accumulator(vector)
    return ReductionTiling(
        form="small-column",
        description=description,
        launch=launch,
        symbols=(steps, vector) if vector > 1 else (steps,),
        sizes=(a, b, c),
        element=(block, linear // c, linear % c),
        accumulators=vector,
        first_distance=0,
        tile=SharedTile(
            dims=(shared_rows, c + pad),
            write=_grid_map(launch, ranges, delinearize(written, (shared_rows, c))),
            read=_grid_map(launch, ranges, (row, column)),
            distance=shared_rows // 2,
        ),
        result=(block, column),
        result_if=((_TH_X % shared_rows, Interval(0, 0)),),
    )


def _round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
