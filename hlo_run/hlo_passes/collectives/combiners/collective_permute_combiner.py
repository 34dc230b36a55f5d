"""Send several values by one collective-permute between the same devices.

    a = f32[8] collective-permute(x), source_target_pairs={{0,1},{1,0}}
    b = f32[6] collective-permute(y), source_target_pairs={{0,1},{1,0}}
        =>   (f32[8], f32[6]) collective-permute(x, y), source_target_pairs={{0,1},{1,0}}

With `--xla_enable_enzyme_comms_opt`, pairs in another order are the same, and a value that several permutes send is sent once.
XLA's `CollectivePermuteCombiner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.collectives.communication.combining import combine_all, combiner_key, limits_of
from hlo_run.pass_support.hlo_pass import PassContext


class CollectivePermuteCombiner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-permute-combiner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        options = ctx.options
        size = options.xla_gpu_collective_permute_combine_threshold_bytes
        limits = limits_of(options, size)
        in_any_order = options.xla_enable_enzyme_comms_opt

        def key(permute: HloInstruction) -> Hashable:
            pairs = permute.source_target_pairs
            return tuple(sorted(pairs)) if in_any_order else pairs, combiner_key(permute)

        combine_all(module, "collective-permute", key, limits)
