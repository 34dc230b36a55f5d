"""Replica groups of collectives: the kind of device numbers in them, their size, and their checks (`ops.md` 11)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.views.collectives import Collective, GroupMode
from hlo_run.ops.rule import refuse

# The kinds of numbers in replica groups (XLA's CollectiveOpGroupMode).
REPLICAS: GroupMode = "cross_replica"
PARTITIONS: GroupMode = "cross_partition"
REPLICAS_AND_PARTITIONS: GroupMode = "cross_replica_and_partition"
FLATTENED: GroupMode = "flattened_id"


def group_mode(instruction: HloInstruction) -> GroupMode:
    """Return the kind of numbers in the replica groups (or source-target pairs)."""
    return _mode(Collective.of(instruction))


def _mode(collective: Collective) -> GroupMode:
    if collective.mode is None:
        raise refuse("use_global_device_ids=true needs a channel_id")
    return collective.mode


def device_counts(instruction: HloInstruction) -> tuple[int, int]:
    """Return (replicas, partitions) of the module, each 1 if the module has no such attribute."""
    module = instruction.parent.module if instruction.parent else None
    return (module.replica_count, module.num_partitions) if module else (1, 1)


def group_size(instruction: HloInstruction) -> int:
    """Return the number of devices in a group; 1 may also mean that it is unknown."""
    collective = Collective.of(instruction)
    mode, groups = _mode(collective), collective.groups
    replicas, partitions = device_counts(instruction)
    if mode == FLATTENED or (mode == PARTITIONS and groups):
        return len(groups[0])
    if mode == PARTITIONS:
        return partitions
    size = len(groups[0]) if groups else replicas
    return size * partitions if mode == REPLICAS_AND_PARTITIONS else size


def check_groups(instruction: HloInstruction, of_one_size: bool = True) -> None:
    """Refuse groups that do not hold each of the module's devices once, or, with `of_one_size`, have different sizes."""
    collective = Collective.of(instruction)
    mode, groups = _mode(collective), collective.groups
    if not groups:
        if mode == FLATTENED:
            raise refuse("replica groups must be specified in flattened-id mode")
        return
    if not all(groups):
        raise refuse("a replica group must not be empty")
    members = [member for group in groups for member in group]
    seen: set[int] = set()
    for member in members:
        if not 0 <= member < len(members):
            raise refuse(f"replica {member} is out of range (should be in [0, {len(members)}) range) in the replica groups")
        if member in seen:
            raise refuse(f"replica {member} is repeated in the replica groups")
        seen.add(member)
    replicas, partitions = device_counts(instruction)
    wanted = {
        REPLICAS: (replicas,),
        REPLICAS_AND_PARTITIONS: (replicas,),
        PARTITIONS: (partitions,),
        FLATTENED: (replicas * partitions,),
    }[mode]
    header = f"replica_count={replicas}, num_partitions={partitions}"
    if min(replicas, partitions) < 1:
        raise refuse(f"the module's header must name at least one replica and one partition, found {header}")
    # A module without the attribute has 1, which is not checked.
    if 1 not in wanted and len(members) not in wanted:
        raise refuse(f"in {mode} mode, replica groups should contain {wanted[0]} devices, but found {len(members)} ({header})")
    sizes = {len(group) for group in groups}
    if len(sizes) > 1 and of_one_size:
        raise refuse(f"replica groups must be of one size, but have the sizes {braces(sorted(sizes))}")
