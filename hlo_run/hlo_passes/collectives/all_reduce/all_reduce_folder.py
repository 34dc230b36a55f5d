"""Replace an all-reduce of an all-reduce by one all-reduce over larger groups.

    a = f32[8] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add
    b = f32[8] all-reduce(a), replica_groups={{0,2},{1,3}}, to_apply=add
        =>   b = f32[8] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add

Each device's value must count once. XLA's `AllReduceFolder`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, move_to_channel, pins_layouts
from hlo_run.hlo_passes.collectives.communication.reductions import IntLists, reduction_key
from hlo_run.pass_support.hlo_pass import PassContext


class AllReduceFolder(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-reduce-folder"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if pins_layouts(module, "all-reduce"):
            return
        channels = free_channels(module)
        for second in module.in_post_order("all-reduce"):
            first = second.operands[0]
            if first.opcode != "all-reduce" or len(first.users) != 1 or len(second.operands) != 1:
                continue
            key = reduction_key(first, ignores_groups=True)
            if key is None or key != reduction_key(second, ignores_groups=True):
                continue
            groups = _folded(first.replica_groups.groups(), second.replica_groups.groups())
            if groups is None:
                continue
            attributes: dict[str, AttributeValue] = {**dict(first.attrs.items()), "replica_groups": ReplicaGroups(groups)}
            made = Editor(first, derives=False).add_with(
                "all-reduce", first.shape, first.operands, attributes, dict(first.called)
            )
            move_to_channel(made, channels)
            module.replace_uses(second, made)
            for gone in (second, first):
                assert gone.parent is not None, "it is in a computation"
                gone.parent.remove(gone)


def _folded(first: IntLists, second: IntLists) -> IntLists | None:
    """Return the groups of devices whose values meet in the two steps, or None if a value would count twice or some miss one."""
    if not first or not second:
        return None
    group_of = {device: group for group in first for device in group}
    reached: dict[int, frozenset[int]] = {}
    for group in second:
        met = [member for device in group for member in group_of.get(device, ())]
        if len(set(met)) < len(met):
            return None
        reached |= dict.fromkeys(group, frozenset(met))
    folded = set(reached.values())
    if any(reached.get(device) != members for members in folded for device in members):
        return None
    return tuple(sorted(tuple(sorted(members)) for members in folded))
