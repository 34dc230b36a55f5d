"""Gather several values by one all-gather.

    a = f32[8] all-gather(x), dimensions={0}
    b = f32[6] all-gather(y), dimensions={0}    =>   (f32[8], f32[6]) all-gather(x, y), dimensions={0}

Values that are gathered along another dimension than most get it by a bitcast. XLA's `GpuAllGatherCombiner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.views.collectives import Collective
from hlo_run.hlo_passes.collectives.communication.channels import pins_layouts
from hlo_run.hlo_passes.collectives.communication.combining import combine_all, combiner_key, limits_of
from hlo_run.options.collective_flags import MOST_COMBINED_BYTES
from hlo_run.pass_support.hlo_pass import PassContext


class AllGatherCombiner(Struct, frozen=True):
    """The pass; see the module's docstring. `default_bytes` is the limit that a suggestion of the module replaces."""

    name: ClassVar[str] = "gpu-all-gather-combiner"
    default_bytes: int = MOST_COMBINED_BYTES

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        options = ctx.options
        by_dim = options.xla_gpu_enable_all_gather_combine_by_dim

        def key(gather: HloInstruction) -> Hashable:
            dim = gather.dimensions if by_dim else ()
            collective = Collective.of(gather)
            return (
                dim,
                collective.has_channel,
                collective.has_global_ids,
                collective.groups,
                combiner_key(gather),
            )

        if not pins_layouts(module, "all-gather"):
            size = options.xla_gpu_all_gather_combine_threshold_bytes
            limits = limits_of(options, size, self.default_bytes)
            combine_all(module, "all-gather", key, limits)
