"""Split an all-reduce over all partitions, of which each device slices a shard, into one within and one across groups.

    r = f32[8] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add
    o = f32[4] dynamic-slice(r, offset)                                    offset: 4 * (partition-id mod 2)
        =>   r = f32[8] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add
             s = f32[4] dynamic-slice(r, offset)
             o = f32[4] all-reduce(s), replica_groups={{0,2},{1,3}}, to_apply=add

`reduce-scatter-creator` then joins the first two. It splits if another all-reduce has the groups of one of the two, which may be
combined with it. XLA's `AllReduceSplitter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo_passes.collectives.communication.channels import free_channels
from hlo_run.hlo_passes.collectives.communication.shards import own_shard
from hlo_run.ops.groups import device_counts
from hlo_run.pass_support.hlo_pass import PassContext


class AllReduceSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-reduce-splitter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        reduces = module.in_post_order("all-reduce")
        for reduce in reduces:
            replicas, partitions = device_counts(reduce)
            if replicas != 1 or not reduce.use_global_device_ids or len(reduce.users) != 1 or not reduce.shape.is_array:
                continue
            others = {r.replica_groups.groups() for r in reduces if r.parent is reduce.parent}
            _split(module, reduce, partitions, others)


def _split(module: HloModule, reduce: HloInstruction, partitions: int, others: set[tuple[tuple[int, ...], ...]]) -> None:
    (shard,) = reduce.users
    groups = reduce.replica_groups.groups()
    if shard.opcode != "dynamic-slice" or shard.operands[0] is not reduce or len(shard.users) > 1:
        return
    if len(groups) != 1 or len(groups[0]) != partitions:
        return
    divided = [dim for dim, size in enumerate(reduce.shape.dims) if size != shard.shape.dims[dim]]
    if len(divided) != 1 or not shard.shape.dims[divided[0]]:
        return
    size = reduce.shape.dims[divided[0]] // shard.shape.dims[divided[0]]
    if size == partitions or partitions % size:
        return
    within = tuple(tuple(range(first, first + size)) for first in range(0, partitions, size))
    across = tuple(tuple(range(first, partitions, size)) for first in range(size))
    if within not in others and across not in others:
        return
    before = reduce.replica_groups
    reduce.attrs["replica_groups"] = ReplicaGroups(within)
    if own_shard(reduce) is None:
        reduce.attrs["replica_groups"] = before
        return
    channels = free_channels(module)
    reduce.attrs["channel_id"] = next(channels)
    attributes: dict[str, AttributeValue] = {
        **dict(reduce.attrs.items()),
        "replica_groups": ReplicaGroups(across),
        "channel_id": next(channels),
    }
    users, was_root = list(shard.users), shard.is_root
    made = Editor(reduce, derives=False).add_with("all-reduce", shard.shape, [shard], attributes, dict(reduce.called))
    for user in users:
        user.replace_operand(shard, made)
    if was_root:
        assert shard.parent is not None, "it is in a computation"
        shard.parent.root = made
