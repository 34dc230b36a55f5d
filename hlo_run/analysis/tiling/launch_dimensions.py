"""Computes the numbers of blocks and threads of a loop-like kernel."""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.target import TargetSpec

Dim3 = tuple[int, int, int]
_WARPS_PER_BLOCK = 4


class LaunchDimensions(Struct, frozen=True):
    """Counts along x, y, z: `grid` of blocks, `block` of threads in a block."""

    grid: Dim3
    block: Dim3

    @property
    def blocks(self) -> int:
        """The number of blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads_per_block(self) -> int:
        """The number of threads in a block."""
        return math.prod(self.block)

    def __str__(self) -> str:
        return f"grid {_dim3(self.grid)} block {_dim3(self.block)}"


def _dim3(sizes: Dim3) -> str:
    return "x".join(map(str, sizes))


def calculate_launch(elements: int, unroll_factor: int, target: TargetSpec) -> LaunchDimensions:
    """Return the launch of a kernel in which each thread computes `unroll_factor` adjacent elements of `elements` elements.

    A small number of elements is not rounded up to a warp: 5 elements make 5 threads. Mirrors XLA's `CalculateLaunchDimensions`.
    """
    if elements <= 1:
        return LaunchDimensions((1, 1, 1), (1, 1, 1))
    work_items = -(-elements // unroll_factor)
    threads = min(target.threads_per_warp * _WARPS_PER_BLOCK, work_items)
    blocks = -(-work_items // threads)
    rows = -(-blocks // target.block_dim_limit[0])
    return LaunchDimensions((-(-blocks // rows), rows, 1), (threads, 1, 1))


def split_blocks(blocks: int, target: TargetSpec) -> tuple[int, int]:
    """Return grid sizes along x and y for at least `blocks` blocks; more only if y is needed. Mirrors XLA's split along x."""
    limit_x, limit_y, _ = target.block_dim_limit
    y = 1
    while -(-blocks // y) > limit_x and y < limit_y:
        y = min(2 * y, limit_y)
    return -(-blocks // y), y
