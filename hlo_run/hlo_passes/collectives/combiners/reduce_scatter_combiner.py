"""Reduce and scatter several values by one reduce-scatter.

    a = f32[2] reduce-scatter(x), dimensions={0}, to_apply=add
    b = f32[3] reduce-scatter(y), dimensions={0}, to_apply=add
        =>   (f32[2], f32[3]) reduce-scatter(x, y), dimensions={0}, to_apply=add

Values that are scattered along another dimension than most get it by a bitcast. XLA's `GpuReduceScatterCombiner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.collectives.communication.channels import pins_layouts
from hlo_run.hlo_passes.collectives.communication.combining import combine_all, combiner_key, limits_of
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_reducer, reduction_key
from hlo_run.options.collective_flags import MOST_COMBINED_BYTES
from hlo_run.pass_support.hlo_pass import PassContext


class ReduceScatterCombiner(Struct, frozen=True):
    """The pass; see the module's docstring. `default_bytes` is the limit that a suggestion of the module replaces."""

    name: ClassVar[str] = "gpu-reduce-scatter-combiner"
    default_bytes: int = MOST_COMBINED_BYTES

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        options = ctx.options
        by_dim = options.xla_gpu_enable_reduce_scatter_combine_by_dim

        def key(scatter: HloInstruction) -> Hashable | None:
            found = reduction_key(scatter)
            if found is None or not kind_of_reducer(scatter.to_apply):
                return None
            return found, scatter.dimensions if by_dim else (), combiner_key(scatter)

        if not pins_layouts(module, "reduce-scatter"):
            size = options.xla_gpu_reduce_scatter_combine_threshold_bytes
            limits = limits_of(options, size, self.default_bytes)
            combine_all(module, "reduce-scatter", key, limits)
