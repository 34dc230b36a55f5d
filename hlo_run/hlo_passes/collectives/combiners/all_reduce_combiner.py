"""Reduce several values between devices by one all-reduce.

    a = f32[8] all-reduce(x), to_apply=add
    b = f32[6] all-reduce(y), to_apply=add    =>   (f32[8], f32[6]) all-reduce(x, y), to_apply=add

XLA's `GpuAllReduceCombiner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.collectives.communication.channels import pins_layouts
from hlo_run.hlo_passes.collectives.communication.combining import combine_all, combiner_key, limits_of
from hlo_run.hlo_passes.collectives.communication.reductions import reduction_key
from hlo_run.options.collective_flags import MOST_COMBINED_BYTES
from hlo_run.pass_support.hlo_pass import PassContext


class AllReduceCombiner(Struct, frozen=True):
    """The pass; see the module's docstring. `default_bytes` is the limit that a suggestion of the module replaces."""

    name: ClassVar[str] = "gpu-all-reduce-combiner"
    default_bytes: int = MOST_COMBINED_BYTES

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        options = ctx.options
        if not pins_layouts(module, "all-reduce"):
            size = options.xla_gpu_all_reduce_combine_threshold_bytes
            limits = limits_of(options, size, self.default_bytes)
            combine_all(module, "all-reduce", _key, limits)


def _key(reduce: HloInstruction) -> Hashable | None:
    if frontend_attribute(reduce, "_scheduling_group_id") is not None:
        return None
    key = reduction_key(reduce)
    return None if key is None else (key, combiner_key(reduce))
