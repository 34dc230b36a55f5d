"""Replace an all-reduce of which each device takes its own shard by a reduce-scatter.

    r = f32[8,3] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add
    o = f32[2,3] dynamic-slice(r, offset, 0)                                 offset: 2 * the device's place in the group
        =>   o = f32[2,3] reduce-scatter(x), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add

A reshape in between that keeps the divided dimension moves after the reduce-scatter. XLA's `ReduceScatterCreator`.
The instructions that computed the offset stay, as in XLA. The next `dce` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, move_to_channel
from hlo_run.hlo_passes.collectives.communication.shards import OwnShard, own_shard
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

# As in XLA, the reduce-scatter does not get this note of the all-reduce.
_OWN = frozenset(("backend_config",))


class ReduceScatterCreator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-scatter-creator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        channels = free_channels(module)
        for reduce in module.in_post_order("all-reduce"):
            shard = own_shard(reduce)
            if shard is not None:
                _scatter(module, reduce, shard, channels)


def _scatter(module: HloModule, reduce: HloInstruction, shard: OwnShard, channels: Iterator[int]) -> None:
    editor = Editor(reduce)
    (value,) = reduce.operands
    dims = list(reduce.shape.dims)
    size = dims[shard.dim] // shard.count
    if dims[shard.dim] % shard.count:
        dims[shard.dim] = size * shard.count
        value = editor.slice(value, [0] * len(dims), dims)
    dims[shard.dim] = size
    attributes: dict[str, AttributeValue] = {name: value for name, value in reduce.attrs.items() if name not in _OWN}
    attributes["dimensions"] = (shard.dim,)
    shape = replace(reduce.shape, dims=tuple(dims))
    scatter = editor.add_with("reduce-scatter", shape, [value], attributes, dict(reduce.called))
    move_to_channel(scatter, channels)
    result = scatter
    if shard.slice.operands[0] is not reduce:
        result = editor.add("reshape", shard.slice.shape, [scatter])
    module.replace_uses(shard.slice, result)
    computation = editor.computation
    between = [shard.slice] if shard.slice.operands[0] is reduce else [shard.slice, shard.slice.operands[0]]
    for gone in (*between, reduce):
        computation.remove(gone)
