"""Which threads of a scatter kernel take which updates, and may they write without atomics?

    f32[2008,1,32] updates: 32 elements each; a thread takes neighbours of one update, so that it looks up one place

Mirrors XLA's `ScatterWithDistributedUpdates`, for all scatters, not only those that its simplifier leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hlo_run.analysis.fusion_analysis import FusionAnalysis
from hlo_run.analysis.launch_dimensions import LaunchDimensions, calculate_launch
from hlo_run.analysis.unroll_factor import unroll_factor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape

_MAX_THREADS = 1024

# plain: no two updates meet. atomic: each write is one. in order: a block does one update after the other.
Writes = Literal["plain", "atomic", "in order"]


@dataclass(frozen=True, slots=True)
class ScatterTiling:
    """How the updates (of shape `updates`) are spread over threads; a thread takes `vector_size` neighbours of a window."""

    scatter: HloInstruction
    writes: Writes
    vector_size: int
    launch: LaunchDimensions

    @property
    def inputs(self) -> int:
        return len(self.scatter.operands) // 2

    @property
    def indices(self) -> HloInstruction:
        return self.scatter.operands[self.inputs]

    @property
    def updates(self) -> tuple[HloInstruction, ...]:
        return tuple(self.scatter.operands[self.inputs + 1 :])

    @property
    def window_update_dims(self) -> tuple[int, ...]:
        """The dimensions of the updates that move within a window."""
        dims: tuple[int, ...] = self.scatter.attrs["update_window_dims"]
        return dims

    @property
    def scatter_dims(self) -> tuple[int, ...]:
        """The dimensions of the updates that choose an index vector."""
        return tuple(dim for dim in range(self.updates[0].shape.rank) if dim not in self.window_update_dims)

    @property
    def window_operand_dims(self) -> tuple[int, ...]:
        """The dimension of the operand that each of the update window dims moves along."""
        attrs = self.scatter.attrs
        dropped = (*attrs["inserted_window_dims"], *attrs.get("input_batching_dims", ()))
        return tuple(dim for dim in range(self.scatter.operands[0].shape.rank) if dim not in dropped)

    @property
    def window_sizes(self) -> tuple[int, ...]:
        """The size of a window along each dimension of the operand."""
        sizes = [1] * self.scatter.operands[0].shape.rank
        for update_dim, operand_dim in zip(self.window_update_dims, self.window_operand_dims, strict=True):
            sizes[operand_dim] = self.updates[0].shape.dims[update_dim]
        return tuple(sizes)

    def __str__(self) -> str:
        return f"scatter: {self.writes} writes, {self.launch}, {self.vector_size} elements per thread"


def tile_scatter(analysis: FusionAnalysis) -> ScatterTiling:
    """Return the tiling for a fusion whose root is a scatter."""
    (scatter,) = analysis.roots
    inputs = len(scatter.operands) // 2
    update = scatter.operands[inputs + 1].shape
    window_dims: tuple[int, ...] = scatter.attrs["update_window_dims"]
    window = math.prod(update.dims[dim] for dim in window_dims)
    if inputs > 1 and not scatter.attrs.get("unique_indices"):
        threads = min(_MAX_THREADS, _whole_warps(max(window, 1), analysis))
        return ScatterTiling(scatter, "in order", 1, LaunchDimensions((1, 1, 1), (threads, 1, 1)))
    factor = unroll_factor(analysis, update.element_count)
    vector = math.gcd(window, factor) if _windows_are_contiguous(scatter, update) else 1
    launch = calculate_launch(update.element_count, vector, analysis.target)
    block = (_whole_warps(launch.threads_per_block, analysis), 1, 1)
    writes: Writes = "plain" if scatter.attrs.get("unique_indices") else "atomic"
    return ScatterTiling(scatter, writes, vector, LaunchDimensions(launch.grid, block))


def _whole_warps(threads: int, analysis: FusionAnalysis) -> int:
    warp = analysis.target.threads_per_warp
    return -(-threads // warp) * warp


def _windows_are_contiguous(scatter: HloInstruction, update: Shape) -> bool:
    """True if the window dimensions vary fastest in memory, so that neighbours belong to one window."""
    window = scatter.attrs["update_window_dims"]
    return set(update.minor_to_major[: len(window)]) == set(window)
