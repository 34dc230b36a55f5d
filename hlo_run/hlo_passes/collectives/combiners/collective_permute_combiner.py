"""Send several values by one collective-permute between the same devices.

    a = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,0}}
    b = f32[6] collective-permute(y), source_target_pairs={{0,1},{1,0}}
        =>   (f32[8], f32[6]) collective-permute(x, y), source_target_pairs={{0,1},{1,0}}

XLA's `CollectivePermuteCombiner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.communication.combining import Limits, combine_all, combiner_key
from hlo_run.hlo_passes.hlo_pass import PassContext


class CollectivePermuteCombiner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-permute-combiner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        options = ctx.options
        size = options.xla_gpu_collective_permute_combine_threshold_bytes
        limits = Limits(size, options.xla_gpu_collective_combine_threshold_count)
        combine_all(module, "collective-permute", _key, limits)


def _key(permute: HloInstruction) -> Hashable:
    return permute.source_target_pairs, combiner_key(permute)
