"""The limits of XLA's block-level emitter, whose kernels Triton compiles, for the tiles of a kernel.

XLA's `VerifyTritonConstraints` of `service/gpu/model/triton_emitter_constraints.cc`.
"""

from __future__ import annotations

from math import prod

from hlo_run.analysis.block_level.dim_tile import power_of_two
from hlo_run.analysis.block_level.tiling import Tiling
from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.target import TargetSpec

MOST_TILE_ELEMENTS = 1 << 20
"""The most elements of a tile, with every dimension padded to a power of two."""
MOST_DOT_TILE_SIZE = 256
"""The most elements of a dimension of a tile that a dot reads."""


def padded_elements(sizes: tuple[int, ...]) -> int:
    """Return the elements of a tile with every dimension padded to a power of two."""
    return prod([power_of_two(size) for size in sizes])


def judge_limits(tiling: Tiling, target: TargetSpec) -> Decision:
    """Refuse tile sizes that the emitter cannot have."""
    for placed in tiling.region.walk():
        if padded_elements(placed.sizes) > MOST_TILE_ELEMENTS:
            return no(f"the tile {list(placed.sizes)} of {placed.op.name} has more than {MOST_TILE_ELEMENTS} elements")
        if placed.op.opcode == "dot":
            large = next((operand for operand in placed.operands if max(operand.sizes) > MOST_DOT_TILE_SIZE), None)
            if large is not None:
                return no(f"a dot reads the tile {list(large.sizes)} of {large.op.name}, larger than {MOST_DOT_TILE_SIZE}")
    return judge_grid(tiling.space.root.shape.dims, tiling.root.sizes, target)


def judge_grid(dims: tuple[int, ...], sizes: tuple[int, ...], target: TargetSpec) -> Decision:
    """Refuse sizes of the root's tile that are neither a power of two nor the whole dimension, and too many blocks."""
    blocks = 1
    for dim, size in zip(dims, sizes, strict=True):
        if size != dim and size & (size - 1):
            return no(f"the root's tile has {size} of {dim} elements, neither a power of two nor all")
        blocks *= -(-dim // size)
    most = target.block_dim_limit[0]
    return YES if blocks <= most else no(f"the kernel would have {blocks} blocks, more than {most}")
