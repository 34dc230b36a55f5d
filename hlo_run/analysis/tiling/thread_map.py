"""Maps the threads of a loop-like kernel to the elements that they compute.

bf16[6,512,4096], unroll factor 4, 24576 blocks of 128 threads:
(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512,
                               (bl_x mod 8) * 512 + th_x * 4 + vector_index)
"""

from __future__ import annotations

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing.expr import ZERO, dim
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.substitute import Substitution
from hlo_run.indexing.thread_map import thread_map
from hlo_run.indexing.variable import GRID_NAMES


def loop_map(launch: LaunchDimensions, unroll_factor: int, shape: Shape) -> IndexingMap:
    """Return the map (used ids)[vector_index] -> logical index of `shape`, in physical order, restricted to the elements.

    The map has the symbol only if a thread computes several elements.
    """
    tile, names = ((unroll_factor,), ("vector_index",)) if unroll_factor > 1 else ((), ())
    return drop_unused_ids(thread_map(shape.dims, shape.minor_to_major, launch.block, launch.grid, tile, names))


def drop_unused_ids(indexing_map: IndexingMap, launch: LaunchDimensions | None = None) -> IndexingMap:
    """Drop dimensions that occur in no result and no constraint. Keep at least one variable, which printing needs.

    Given the launch, keep also an id whose range the map restricts. Symbols always stay, since they are the induction variables
    of a loop.
    """
    used = 0
    if launch is not None:
        sizes: dict[str, int] = dict(zip(GRID_NAMES, (*launch.block, *launch.grid), strict=True))
        used |= sum(1 << n for n, id_ in enumerate(indexing_map.dims) if id_.bounds.upper < sizes[id_.name] - 1)
    for expr in (*indexing_map.results, *(expr for expr, _ in indexing_map.constraints)):
        used |= expr.dims_mask
    kept = [number for number in range(len(indexing_map.dims)) if used >> number & 1]
    if not kept and not indexing_map.ranges:
        kept = [0]
    renumbered = [ZERO] * len(indexing_map.dims)
    for new, old in enumerate(kept):
        renumbered[old] = dim(new)
    rewrite = Substitution(renumbered)
    return IndexingMap(
        dims=tuple(indexing_map.dims[number] for number in kept),
        ranges=indexing_map.ranges,
        rts=indexing_map.rts,
        results=tuple(map(rewrite, indexing_map.results)),
        constraints=tuple((rewrite(expr), interval) for expr, interval in indexing_map.constraints),
    )
