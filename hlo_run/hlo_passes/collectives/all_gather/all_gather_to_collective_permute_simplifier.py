"""Replace an all-gather of which each device slices the part of one other device by a collective-permute.

    g = f32[8,3] all-gather(f32[2,3] x), dimensions={0}, replica_groups={{0,1,2,3}}
    o = f32[2,3] dynamic-slice(g, table[partition-id], 0)                            table: {2, 0, 6, 4}
        =>   o = f32[2,3] collective-permute(x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}

XLA's `AllGatherDynamicSlicePermutedOffsetSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.collectives.communication.shards import table_offset
from hlo_run.ops.groups import device_counts
from hlo_run.pass_support.hlo_pass import PassContext

Pairs = tuple[tuple[int, int], ...]


class AllGatherToCollectivePermuteSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-to-collective-permute-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for shard in module.in_post_order("dynamic-slice") if module.instructions_of("all-gather") else ():
            view = shard.operands[0]
            gather = view.operands[0] if view.opcode == "reshape" else view
            pairs = _pairs(shard, gather) if gather.opcode == "all-gather" and len(gather.users) == 1 else None
            if pairs is None:
                continue
            moved = tuple((source, target) for source, target in pairs if source != target)
            channel = gather.channel_id
            assert channel is not None, "an all-gather across partitions has a channel"
            permute = Editor(shard).add(
                "collective-permute", shard.shape, gather.operands, channel_id=channel, source_target_pairs=moved
            )
            module.replace(shard, permute)
            assert shard.parent is not None, "it is in a computation"
            shard.parent.remove(shard)


def _pairs(shard: HloInstruction, gather: HloInstruction) -> Pairs | None:
    """Return (device that has a part, device that slices it) for all parts, or None if not each part is sliced once."""
    replicas, partitions = device_counts(gather)
    if replicas > 1 or partitions <= 1 or gather.channel_id is None or not gather.use_global_device_ids:
        return None
    (value,), (dim,) = gather.operands, gather.dimensions
    view = shard.operands[0]
    if len(view.users) != 1 or value.shape.dims != shard.shape.dims:
        return None
    divided = [d for d, size in enumerate(view.shape.dims) if size != shard.shape.dims[d]]
    if divided != [dim]:
        return None
    size = shard.shape.dims[dim]
    pairs: list[tuple[int, int]] = []
    for group in gather.replica_groups.groups():
        starts = [table_offset(shard.operands[dim + 1], device, size) for device in group]
        readers = dict(zip(starts, group, strict=True))
        wanted = [size * place for place in range(len(group))]
        if len(readers) < len(group) or set(readers) != set(wanted):
            return None
        pairs += [(device, readers[start]) for device, start in zip(group, wanted, strict=True)]
    return tuple(pairs) or None
