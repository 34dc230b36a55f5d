"""Find the devices that take part in a collective: the group of a device, from replica groups, channel and mode.

Devices are numbered replica-major: replica · partitions + partition. The modes are XLA's `CollectiveOpGroupMode`:

    no channel_id                                      groups of replicas, each partition on its own
    channel_id, the op has no use_global_device_ids    groups of partitions, each replica on its own
    channel_id, use_global_device_ids false            groups of replicas with all their partitions
    channel_id, use_global_device_ids true             groups of device numbers
"""

from __future__ import annotations

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.views.collectives import Collective
from hlo_run.reference.evaluate.device import Device, World

IntLists = tuple[tuple[int, ...], ...]


def group_of(instruction: HloInstruction, device: Device) -> tuple[int, ...]:
    """Return the numbers of the devices in this device's group, in the group's order; empty if it is in no group.

    Raises ParseError for use_global_device_ids without a channel_id.
    """
    world = device.world
    collective = Collective.of(instruction)
    groups = collective.groups
    match collective.mode:
        case "flattened_id":
            return _pick(groups, device.id, world.size)
        case "cross_replica_and_partition":
            replicas = _pick(groups, device.replica, world.replicas)
            return tuple(replica * world.partitions + k for replica in replicas for k in range(world.partitions))
        case "cross_partition":
            partitions = _pick(groups, device.partition, world.partitions)
            return tuple(device.replica * world.partitions + partition for partition in partitions)
        case "cross_replica":
            replicas = _pick(groups, device.replica, world.replicas)
            return tuple(replica * world.partitions + device.partition for replica in replicas)
        case None:
            raise _error(instruction, "use_global_device_ids needs a channel_id")


def check_members(instruction: HloInstruction, members: tuple[int, ...], world: World) -> None:
    """Raise ParseError if a group names a device that the run does not have."""
    for member in members:
        if not 0 <= member < world.size:
            message = f"a replica group names device {member}, but the run has {world.replicas} x {world.partitions} devices"
            raise _error(instruction, message, "set their number with --num_replicas=N and --num_partitions=N")


def permute_ends(instruction: HloInstruction, device: Device) -> tuple[int | None, list[int]]:
    """Return the device that sends to this one, or None, and the devices that this one sends to, as device numbers.

    Raises ParseError if a pair names a device that the run does not have.
    """
    world = device.world
    permute = Collective.of(instruction)
    has_channel = permute.has_channel
    own = device.partition if has_channel else device.replica

    def number(end: int) -> int:
        return device.replica * world.partitions + end if has_channel else end * world.partitions + device.partition

    source = next((number(source) for source, target in permute.pairs if target == own), None)
    targets = [number(target) for source, target in permute.pairs if source == own]
    check_members(instruction, (*targets, *(() if source is None else (source,))), world)
    return source, targets


def _pick(groups: IntLists, own: int, count: int) -> tuple[int, ...]:
    """Return the group that contains `own`; without groups, all are one group."""
    if not any(groups):
        return tuple(range(count))
    return next((group for group in groups if own in group), ())


def _error(instruction: HloInstruction, message: str, hint: str = "") -> ParseError:
    return ParseError(message, instruction.where, hint, (f"instruction %{instruction.name}",))
