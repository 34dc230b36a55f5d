"""The view of a collective: the devices that take part."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import PERMUTE, TAKES_GLOBAL_IDS
from hlo_run.hlo.values.replica_groups import IntLists

# XLA's CollectiveOpGroupMode: the meaning of the numbers in groups and pairs.
GroupMode: TypeAlias = Literal["cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"]


class Collective(Struct, frozen=True):
    """The devices of a collective. `groups` may be empty, for one group of all; a permute has `pairs` (source, target) instead.

    `has_global_ids` is `use_global_device_ids`.
    """

    channel: int | None
    has_global_ids: bool
    takes_global_ids: bool
    groups: IntLists
    pairs: IntLists

    @classmethod
    def of(cls, instruction: HloInstruction) -> Self:
        """Return the view of a collective, or of its start."""
        i = instruction
        takes_global_ids = i.opcode in TAKES_GLOBAL_IDS
        if i.opcode in PERMUTE:
            return cls(i.channel_id, False, takes_global_ids, (), i.source_target_pairs)
        return cls(i.channel_id, i.use_global_device_ids, takes_global_ids, i.replica_groups.groups(), ())

    @property
    def has_channel(self) -> bool:
        """True if it also meets devices of other partitions."""
        return self.channel is not None

    @property
    def mode(self) -> GroupMode | None:
        """The meaning of the numbers; None if global numbers lack the channel that they need."""
        if self.has_global_ids:
            return "flattened_id" if self.has_channel else None
        if not self.has_channel:
            return "cross_replica"
        return "cross_replica_and_partition" if self.takes_global_ids else "cross_partition"

    @property
    def filled_groups(self) -> IntLists:
        """The groups that have devices."""
        return tuple([group for group in self.groups if group])
