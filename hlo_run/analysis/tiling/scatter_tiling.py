"""Tiles a scatter kernel: the updates that each thread applies, and whether it needs atomics.

    f32[2008,1,32] updates: 32 elements each; a thread applies adjacent elements of one update, so it reads one index vector

If the indices are sorted, a warp applies several consecutive updates. It combines those for one index in registers and writes
them once. Mirrors XLA's `ScatterWithDistributedUpdates`, for all scatters, not only those after its scatter simplifier, and
`ScatterWithDistributedIndices`.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions, calculate_launch
from hlo_run.analysis.tiling.reduction_description import WARP_SIZE
from hlo_run.analysis.tiling.thread_map import drop_unused_ids, loop_map
from hlo_run.analysis.tiling.unroll_factor import unroll_factor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.indexing.expr import dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.reshape import delinearize
from hlo_run.indexing.thread_map import grid_variables
from hlo_run.indexing.variable import Variable
from hlo_run.records import replace

_MAX_THREADS = 1024
_WARPS_PER_BLOCK = 4
_MAX_VECTOR_BITS = 128
# Reducers that may combine updates with each other before the operand.

# plain: no two updates overlap. atomic: each write is atomic. in order: a block applies one update after the other.
Writes = Literal["plain", "atomic", "in order"]


class ScatterTiling(Struct, frozen=True):
    """The distribution of updates (of shape `updates`) over threads. A thread applies `vector_size` neighbours of a window.

    If `indices_per_warp` is not 0, a warp applies that many consecutive updates, the first dimension of the updates numbers them,
    and `index_vector_size` of their indices are read at once.
    """

    scatter: HloInstruction
    writes: Writes
    vector_size: int
    launch: LaunchDimensions
    indices_per_warp: int = 0
    index_vector_size: int = 1

    @property
    def work_map(self) -> IndexingMap:
        """Return (used ids)[..] -> index of an update's element. Not for warps with several updates."""
        if self.indices_per_warp == 0:
            return loop_map(self.launch, self.vector_size, self.updates[0].shape)
        window = self.window_map
        update = (dim(0) // WARP_SIZE + dim(3) * _WARPS_PER_BLOCK, Interval.of_size(self.updates[0].shape.dims[0]))
        return drop_unused_ids(
            IndexingMap(
                grid_variables(self.launch.block, self.launch.grid),
                window.ranges,
                (),
                (update[0], *window.results),
                (update, *window.constraints),
            ).simplify()
        )

    @property
    def index_map(self) -> IndexingMap:
        """Return (used ids)[step, vector] -> number of the update, for warps with several updates."""
        size = self.index_vector_size
        ranges = _ranges(i=self.indices_per_warp // size, j=size)
        warp = dim(0) // WARP_SIZE + dim(3) * _WARPS_PER_BLOCK
        update = warp * self.indices_per_warp + symbol(0) * size + symbol(1)
        inside = ((update, Interval.of_size(self.updates[0].shape.dims[0])),)
        grid = grid_variables(self.launch.block, self.launch.grid)
        return drop_unused_ids(IndexingMap(grid, ranges, (), (update,), inside).simplify())

    @property
    def window_map(self) -> IndexingMap:
        """Return (th_x)[step, vector] -> index in the window of the warp's current update."""
        sizes = self.updates[0].shape.dims[1:]
        elements = math.prod(sizes)
        ranges = _ranges(i=-(-elements // (WARP_SIZE * self.vector_size)), j=self.vector_size)
        place = (symbol(0) * WARP_SIZE + dim(0) % WARP_SIZE) * self.vector_size + symbol(1)
        threads = grid_variables(self.launch.block, self.launch.grid)[:1]
        inside = ((place, Interval.of_size(elements)),)
        return IndexingMap(threads, ranges, (), tuple(delinearize(place, sizes)), inside).simplify()

    @property
    def inputs(self) -> int:
        """The number of arrays that the scatter updates."""
        return len(self.scatter.operands) // 2

    @property
    def indices(self) -> HloInstruction:
        """The array of index vectors."""
        return self.scatter.operands[self.inputs]

    @property
    def updates(self) -> tuple[HloInstruction, ...]:
        """The arrays of updates, one per array that the scatter updates."""
        return tuple(self.scatter.operands[self.inputs + 1 :])

    @property
    def window_update_dims(self) -> tuple[int, ...]:
        """The dimensions of the updates within a window."""
        return self.scatter.update_window_dims

    @property
    def scatter_dims(self) -> tuple[int, ...]:
        """The dimensions of the updates that number the index vectors."""
        return Indexed.of(self.scatter).batch_dims

    @property
    def window_operand_dims(self) -> tuple[int, ...]:
        """The dimension of the operand for each of the update window dims."""
        return Indexed.of(self.scatter).kept_dims

    @property
    def window_sizes(self) -> tuple[int, ...]:
        """The size of a window along each dimension of the operand."""
        return Indexed.of(self.scatter).slice_sizes

    def __str__(self) -> str:
        return f"scatter: {self.writes} writes, {self.launch}, {self.vector_size} elements per thread"


def _ranges(**sizes: int) -> tuple[Variable, ...]:
    return tuple(Variable(Interval.of_size(size), name) for name, size in sizes.items())


def tile_scatter(analysis: FusionAnalysis) -> ScatterTiling:
    """Return the tiling for a fusion whose root is a scatter."""
    (scatter,) = analysis.roots
    inputs = len(scatter.operands) // 2
    update = scatter.operands[inputs + 1].shape
    window_dims = scatter.update_window_dims
    window = math.prod(update.dims[dim] for dim in window_dims)
    if inputs > 1 and not scatter.unique_indices:
        threads = min(_MAX_THREADS, _whole_warps(max(window, 1), analysis))
        return ScatterTiling(scatter, "in order", 1, LaunchDimensions((1, 1, 1), (threads, 1, 1)))
    by_index = _distribute_indices(analysis, scatter) if inputs == 1 else None
    if by_index is not None:
        return by_index
    factor = unroll_factor(analysis, update.element_count)
    vector = math.gcd(window, factor) if _windows_are_contiguous(scatter, update) else 1
    launch = calculate_launch(update.element_count, vector, analysis.target)
    block = (_whole_warps(launch.threads_per_block, analysis), 1, 1)
    writes: Writes = "plain" if scatter.unique_indices else "atomic"
    return ScatterTiling(scatter, writes, vector, LaunchDimensions(launch.grid, block))


def _distribute_indices(analysis: FusionAnalysis, scatter: HloInstruction) -> ScatterTiling | None:
    """Return the tiling for sorted indices; None if it does not apply, as to reducers that are not associative."""
    operand, indices, update = (each.shape for each in scatter.operands)
    warps = _WARPS_PER_BLOCK * analysis.target.core_count
    is_sorted = scatter.indices_are_sorted and not scatter.unique_indices
    is_simple = indices.rank == 2 and scatter.index_vector_dim == 1 and not scatter.input_batching_dims
    is_simple = is_simple and list(scatter.update_window_dims) == list(range(1, update.rank)) and update.element_count > 0
    slices = update.dims[0] if update.rank else 0
    if not (is_sorted and is_simple and slices > warps and _is_associative(scatter)) or update.element_type in ("c64", "c128"):
        return None
    window = math.prod(update.dims[1:])
    bits = update.dtype.bits
    vector = math.gcd(window, _MAX_VECTOR_BITS // bits)
    while vector > 1 and WARP_SIZE * vector > window:
        vector //= 2
    one_by_one = ScatterTiling(scatter, "atomic", vector, LaunchDimensions((1, 1, 1), (1, 1, 1)))
    moved = scatter.scatter_dims_to_operand_dims
    starts = [operand.dims[number] - one_by_one.window_sizes[number] + 1 for number in moved]
    per_warp = -(-slices // max(warps, math.prod(starts)))
    index_vector, read_at_once = 1, _MAX_VECTOR_BITS // indices.dtype.bits
    if indices.dims[1] == 1 and per_warp > read_at_once:
        index_vector, per_warp = read_at_once, -(-per_warp // read_at_once) * read_at_once
    blocks = -(-slices // (per_warp * _WARPS_PER_BLOCK))
    launch = LaunchDimensions((blocks, 1, 1), (WARP_SIZE * _WARPS_PER_BLOCK, 1, 1))
    return replace(one_by_one, launch=launch, indices_per_warp=per_warp, index_vector_size=index_vector)


def _is_associative(scatter: HloInstruction) -> bool:
    reducer = scatter.to_apply
    root = reducer.root
    while root.opcode in ("copy", "bitcast"):
        root = root.operands[0]
    if root.opcode == "parameter":
        return True
    return root.opcode in ASSOCIATIVE and {operand.opcode for operand in root.operands} == {"parameter"}


def _whole_warps(threads: int, analysis: FusionAnalysis) -> int:
    warp = analysis.target.threads_per_warp
    return -(-threads // warp) * warp


def _windows_are_contiguous(scatter: HloInstruction, update: Shape) -> bool:
    """True if the window dimensions vary fastest in memory, so that adjacent elements belong to one window."""
    window = scatter.update_window_dims
    return set(update.minor_to_major[: len(window)]) == set(window)
