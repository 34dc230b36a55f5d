"""Remove an all-gather if each device slices from it only its own earlier value.

    g = f32[8,3] all-gather(f32[2,3] x), dimensions={0}
    o = f32[2,3] dynamic-slice(g, offset, 0)                  offset: 2 * the device's place in its group   =>   o = x

With a reshape in between, x is reshaped. XLA's `AllGatherDynamicSliceSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.collectives.communication.shards import own_shard
from hlo_run.pass_support.hlo_pass import PassContext


class AllGatherDynamicSliceSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-dynamic-slice-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for gather in module.in_post_order("all-gather"):
            shard = own_shard(gather)
            if shard is None or (shard.dim,) != gather.dimensions:
                continue
            (value,) = gather.operands
            if shard.slice.operands[0] is not gather:
                value = Editor(shard.slice).add("reshape", shard.slice.shape, [value])
            module.replace(shard.slice, value)
            assert shard.slice.parent is not None, "it is in a computation"
            shard.slice.parent.remove(shard.slice)
