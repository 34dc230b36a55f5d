"""Send gathered parts only to the device whose slice of the padded array has them.

    g = f32[8,3] all-gather(f32[2,3] x), dimensions={0}, replica_groups={{0,1,2,3}}
    w = f32[64,3] pad(g, 0), padding=0_56x0_0
    o = f32[16,3] dynamic-slice(w, table[partition-id], 0)                           table: {0, 16, 32, 48}
        =>   o = f32[16,3] select(is_receiver[partition-id], concatenate(x, permute_1_to_0(x), permute_2_to_0(x), .., 0), 0)

All gathered parts of a group are in the slice of one device, and the padding is on one side. XLA's `AllGatherPadDsSimplifier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import free_channels
from hlo_run.hlo_passes.collectives.communication.shards import table_offset
from hlo_run.ops.groups import device_counts
from hlo_run.pass_support.hlo_pass import PassContext


class _Placement(Struct, frozen=True):
    """The places of all groups' gathered parts in the slices that have them."""

    dim: int
    # By group: its devices in the order of their parts, and the one whose slice has the parts.
    groups: tuple[tuple[tuple[int, ...], int], ...]
    # The elements of that slice before and after the parts.
    before: int
    after: int


class AllGatherPadDsSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-pad-ds-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        channels = free_channels(module)
        for shard in module.in_post_order("dynamic-slice") if module.instructions_of("all-gather") else ():
            pad = shard.operands[0]
            gather = pad.operands[0] if pad.opcode == "pad" else pad
            if pad is gather or gather.opcode != "all-gather" or not gather.shape.is_array:
                continue
            placement = _placement(shard, pad, gather)
            if placement is None:
                continue
            module.replace(shard, _received(shard, gather, placement, channels))
            assert shard.parent is not None, "it is in a computation"
            shard.parent.remove(shard)


def _placement(shard: HloInstruction, pad: HloInstruction, gather: HloInstruction) -> _Placement | None:
    """Return where the parts are, or None if XLA leaves the slice as it is."""
    replicas, partitions = device_counts(gather)
    if replicas > 1 or partitions <= 1 or gather.channel_id is None or not gather.use_global_device_ids:
        return None
    dim = _padded_dim(shard, pad, gather)
    groups = gather.replica_groups.groups()
    if dim is None or not groups:
        return None
    size, whole, gathered = (value.shape.dims[dim] for value in (shard, pad, gather))
    first, end = pad.padding[dim][0], pad.padding[dim][0] + gathered
    placed: list[tuple[tuple[int, ...], int]] = []
    edges: set[tuple[int, int]] = set()
    for group in groups:
        starts = [table_offset(shard.operands[dim + 1], device, size) for device in group]
        known = dict(sorted((start, device) for start, device in zip(starts, group, strict=True) if start is not None))
        devices = list(known.values())
        if len(known) < len(group) or devices != sorted(devices) or max(known) + size > whole:
            return None
        owners = [start for start in known if start < end and start + size > first]
        if len(owners) != 1 or owners[0] > first or owners[0] + size < end:
            return None
        (start,) = owners
        edges.add((first - start, start + size - end))
        placed.append((tuple(group), known[start]))
    places = {group.index(owner) for group, owner in placed}
    # One program for all groups: their parts are at the same place, and so is the device that keeps its own.
    if len(edges) != 1 or len(places) != 1 or max(owner for _, owner in placed) >= len(groups) * len(groups[0]):
        return None
    ((before, after),) = edges
    return _Placement(dim, tuple(placed), before, after)


def _padded_dim(shard: HloInstruction, pad: HloInstruction, gather: HloInstruction) -> int | None:
    """Return the gathered dimension if zeros are at one end of it, and the slice divides no other one."""
    (dim,), fill = gather.dimensions, pad.operands[1]
    if fill.opcode != "constant" or np.any(fill.constant_array):
        return None
    low, high, inner = pad.padding[dim]
    others = (edges for d, edges in enumerate(pad.padding) if d != dim)
    if inner or low < 0 or high < 0 or (low > 0) == (high > 0) or any(any(edges) for edges in others):
        return None
    divided = [d for d, size in enumerate(pad.shape.dims) if size != shard.shape.dims[d]]
    return dim if divided == [dim] and shard.shape.dims[dim] >= gather.shape.dims[dim] else None


def _received(shard: HloInstruction, gather: HloInstruction, placement: _Placement, channels: Iterator[int]) -> HloInstruction:
    """Return the parts between zeros on the receivers, and zeros on all other devices."""
    editor, dim, (value,) = Editor(shard), placement.dim, gather.operands
    parts: list[HloInstruction] = []
    if placement.before:
        parts.append(_zeros(editor, shard, dim, placement.before))
    places = range(len(placement.groups[0][0]))
    # XLA makes a permute per group and place, and merges the groups one by one, each before those that it has.
    merged = [tuple((group[place], owner) for group, owner in reversed(placement.groups)) for place in places]
    moved = [pairs for pairs in merged if pairs[0][0] != pairs[0][1]]
    for _ in range(2 * (len(placement.groups) - 1) * len(moved)):
        next(channels)
    for pairs in merged:
        if pairs not in moved:
            parts.append(value)
            continue
        permute = editor.add("collective-permute", value.shape, [value], channel_id=next(channels), source_target_pairs=pairs)
        parts.append(permute)
    if placement.after:
        parts.append(_zeros(editor, shard, dim, placement.after))
    together = editor.concatenate(parts, dim)
    count = len(placement.groups) * len(placement.groups[0][0])
    owners = {owner for _, owner in placement.groups}
    is_owner = _is_listed(editor, [int(device in owners) for device in range(count)])
    return editor.select(is_owner, together, _zeros(editor, shard, dim, shard.shape.dims[dim]))


def _zeros(editor: Editor, like: HloInstruction, dim: int, size: int) -> HloInstruction:
    dims = [size if d == dim else extent for d, extent in enumerate(like.shape.dims)]
    return editor.broadcast(editor.constant(0, like.shape.element_type), dims)


def _is_listed(editor: Editor, entries: Sequence[int]) -> HloInstruction:
    """Return whether the partition's entry is 1."""
    table = editor.constant(np.array(entries), "s64")
    number = editor.add("partition-id", Shape.array("u32", ()))
    entry = editor.add("dynamic-slice", Shape.array("s64", (1,)), [table, number], dynamic_slice_sizes=(1,))
    return editor.compare(editor.reshape(entry, ()), editor.constant(1, "s64"), "EQ")
