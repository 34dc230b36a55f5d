"""Reduce several values between devices by one all-reduce.

    a = f32[8] all-reduce(x), to_apply=add
    b = f32[6] all-reduce(y), to_apply=add    =>   (f32[8], f32[6]) all-reduce(x, y), to_apply=add

XLA's `GpuAllReduceCombiner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.communication.channels import pins_layouts
from hlo_run.hlo_passes.communication.combining import Limits, combine_in_steps, combiner_key
from hlo_run.hlo_passes.communication.reductions import reduction_key
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.options.collective_flags import COMBINED_BYTES


class AllReduceCombiner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu-all-reduce-combiner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        options = ctx.options
        if not pins_layouts(module, "all-reduce"):
            limits = Limits(
                options.xla_gpu_all_reduce_combine_threshold_bytes, options.xla_gpu_collective_combine_threshold_count
            )
            combine_in_steps(module, "all-reduce", _key, limits, COMBINED_BYTES)


def _key(reduce: HloInstruction) -> Hashable | None:
    attributes = reduce.frontend_attributes
    if attributes is not None and attributes.get("_scheduling_group_id") is not None:
        return None
    key = reduction_key(reduce)
    return None if key is None else (key, combiner_key(reduce))
