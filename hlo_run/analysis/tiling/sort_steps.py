"""Plans the kernels of a sort: a bitonic network as in XLA, which exchanges pairs at decreasing distances.

    20000 elements in a row, 8 bytes in all operands, tiles of 4096 in shared memory:
        sort tiles        every tile by itself: distances 1; 3, 1; 7, 2, 1; .. 4095, .., 1
        pairs 8191        with a tile's mirror image: place p with p xor 8191
        merge tiles       2048, .., 1 inside the tiles
        pairs 16383, pairs 4096, merge tiles, pairs 32767, pairs 8192, pairs 4096, merge tiles

A row is the elements along the sorted dimension. It is sorted as if it were padded to a power of two with elements that come
after all others, so a pair with an index beyond the end is never exchanged. Mirrors XLA's `EmitSort` and its callers.
"""

from __future__ import annotations

from math import prod

from msgspec import Struct

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions, calculate_launch
from hlo_run.hlo.graph import HloInstruction
from hlo_run.target import TargetSpec

# XLA's numbers: elements per thread of a tile, and the most threads of a block.
_ELEMENTS_PER_THREAD = 4
_MAX_THREADS = 1024
_BYTE_BITS = 8


class TileStep(Struct, frozen=True):
    """Sort each tile of 2^`stages` elements. `is_merge`: the tiles are already bitonic, so only decreasing distances remain."""

    stages: int
    is_merge: bool
    is_first: bool = False


class PairStep(Struct, frozen=True):
    """Exchange pairs at distance 2^`exponent`. `is_mirrored`: exchange each index of 2^(`exponent` + 1) with its mirror image."""

    exponent: int
    is_mirrored: bool
    is_first: bool = False


SortStep = TileStep | PairStep


class SortSizes(Struct, frozen=True):
    """The array has `rows` rows of `row_elements` elements along dimension `dim`. `row_dims` are all other sizes."""

    dim: int
    row_elements: int
    row_dims: tuple[int, ...]
    tile_stages: int

    @property
    def rows(self) -> int:
        """The number of rows: the product of all other sizes."""
        return prod(self.row_dims)

    @property
    def stages(self) -> int:
        """The number of times that a row, padded to a power of two, can be halved; at least 1."""
        return max(1, (self.row_elements - 1).bit_length())

    @property
    def tiles_per_row(self) -> int:
        """The number of tiles of 2^`tile_stages` elements that cover a row."""
        return -(-self.row_elements >> self.tile_stages)

    @property
    def pairs_per_thread(self) -> int:
        """The pairs per thread of a `PairStep`."""
        return min(_ELEMENTS_PER_THREAD, self.pairs_per_row)

    @property
    def pairs_per_row(self) -> int:
        """The number of pairs in a row, padded to a power of two."""
        return 1 << (self.stages - 1)


def takes_sort(fusion: HloInstruction) -> bool:
    """True for a fusion that is a sort of its parameters and of iotas and that kernels can do."""
    sort = fusion.fused_computation.root
    if sort.opcode != "sort" or not sorts_in_place(sort):
        return False
    return all(operand.opcode in ("parameter", "iota") for operand in sort.operands)


def sorts_in_place(sort: HloInstruction) -> bool:
    """True for a sort that kernels can do in the buffers of its results.

    These kernels are not stable, and cannot exchange elements of less than a byte.
    """
    return not sort.is_stable and all(o.shape.dtype.bits >= _BYTE_BITS for o in sort.operands)


def sort_sizes(sort: HloInstruction, target: TargetSpec) -> SortSizes:
    """Return the sizes of a sort. A tile has 2^0 elements if tiles are not worthwhile."""
    dims = sort.operands[0].shape.dims
    dim: int = sort.dimensions[0]
    sizes = SortSizes(dim, dims[dim], (*dims[:dim], *dims[dim + 1 :]), 0)
    element_bytes = sum(-(-operand.shape.dtype.bits // 8) for operand in sort.operands)
    limit = min(_ELEMENTS_PER_THREAD * _MAX_THREADS, target.shared_memory_per_block_bytes // element_bytes, 1 << sizes.stages)
    if limit < _ELEMENTS_PER_THREAD:
        return sizes
    return SortSizes(dim, sizes.row_elements, sizes.row_dims, limit.bit_length() - 1)


def sort_steps(sizes: SortSizes) -> list[SortStep]:
    """Return the steps in order. Only the first reads the operands; the others change the results in place."""
    tile = sizes.tile_stages
    steps: list[SortStep] = [TileStep(tile, is_merge=False, is_first=True)] if tile else []
    for stage in range(tile, sizes.stages):
        for exponent in range(stage, tile - 1, -1):
            steps.append(PairStep(exponent, is_mirrored=exponent == stage, is_first=not steps))
        if tile:
            steps.append(TileStep(tile, is_merge=True))
    return steps


def step_launch(step: SortStep, sizes: SortSizes, target: TargetSpec) -> LaunchDimensions:
    """Return the launch of a step: a block for each tile, or threads for the pairs."""
    if isinstance(step, TileStep):
        threads = (1 << sizes.tile_stages) // _ELEMENTS_PER_THREAD
        return LaunchDimensions((sizes.rows * sizes.tiles_per_row, 1, 1), (threads, 1, 1))
    return calculate_launch(sizes.rows * sizes.pairs_per_row // sizes.pairs_per_thread, 1, target)
