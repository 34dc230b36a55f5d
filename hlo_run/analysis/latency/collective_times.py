"""The time of a collective: within a host as measured, between hosts as a ring.

XLA's `SolLatencyEstimator::ComputeCollectiveTime` with its `SolGPUCostModel`.
"""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import async_kind
from hlo_run.analysis.latency.speed_tables import collective_seconds, permute_seconds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import REDUCING_COLLECTIVE
from hlo_run.hlo.values.replica_groups import IntLists, ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec

# One host. XLA scales the measured figures of its network by 0.45.
DEVICES_PER_HOST = 8
_SCALE = 0.45
_LAUNCH_MICROSECONDS, _CHUNK_MICROSECONDS, _ROUND_TRIP_MICROSECONDS = 100.0 * _SCALE, 13.34 * _SCALE, 68.89 * _SCALE
_NETWORK_GB_PER_SECOND, _OTHER_NETWORK_GB_PER_SECOND = 55.56 * _SCALE, 111.12 * _SCALE
_CHUNK_BYTES = 4 << 20
_HEADER = 0.025
_MEASURED_DEVICE = "NVIDIA H100 80GB HBM3"
_MICROSECONDS = 1e6


class Network(Struct, frozen=True):
    """The figures of the network; `with_options` replaces some. Times in microseconds, speed in gigabytes per second."""

    launch: float = _LAUNCH_MICROSECONDS
    chunk: float = _CHUNK_MICROSECONDS
    round_trip: float = _ROUND_TRIP_MICROSECONDS
    speed: float = _NETWORK_GB_PER_SECOND
    chunk_bytes: int = _CHUNK_BYTES
    devices_per_host: int = DEVICES_PER_HOST

    def transfer(self, size_bytes: int) -> float:
        """Return the time of a message of one device, without its start."""
        sent = size_bytes / (1e3 * self.speed) * (1 + _HEADER)
        return sent + math.ceil(size_bytes / self.chunk_bytes) * self.chunk + self.round_trip


def network_of(target: TargetSpec) -> Network:
    """Return the figures for the hosts of a GPU."""
    is_measured = target.description == _MEASURED_DEVICE
    return Network(speed=_NETWORK_GB_PER_SECOND if is_measured else _OTHER_NETWORK_GB_PER_SECOND)


def collective_microseconds(start: HloInstruction, network: Network, target: TargetSpec) -> float | None:
    """Return the time of the collective that `start` begins, or of a synchronous one; None if the model does not know it."""
    kind = async_kind(start)
    collective = start.called_computations[0].root if start.opcode == "async-start" else start
    size = _transferred_bytes(collective, kind.inner)
    if kind.inner == "collective-permute":
        return _permute(collective, size, network)
    groups = _groups(collective)
    hosts = _hosts(groups, network.devices_per_host)
    if hosts is None:
        return None
    if hosts > 1:
        return _between_hosts(kind.inner, collective, groups, hosts, size, network, target)
    seconds = collective_seconds(kind.inner, len(groups[0]), size)
    return None if seconds is None else seconds * _MICROSECONDS


def _permute(permute: HloInstruction, size: int, network: Network) -> float | None:
    pairs = permute.source_target_pairs
    if any(source // network.devices_per_host != target // network.devices_per_host for source, target in pairs):
        return network.launch + network.transfer(size)
    seconds = permute_seconds(pairs, size)
    return None if seconds is None else seconds * _MICROSECONDS


def _between_hosts(
    inner: str, collective: HloInstruction, groups: IntLists, hosts: int, size: int, network: Network, target: TargetSpec
) -> float | None:
    communicators = len(groups)
    if network.devices_per_host % communicators:
        return None
    devices = hosts * network.devices_per_host // communicators
    per_host = devices // hosts
    memory = _accessed_bytes(collective, size) / target.memory_bandwidth * _MICROSECONDS
    if inner == "all-to-all":
        return memory + network.launch + per_host * (hosts - 1) * network.transfer(size // (devices - 1))
    if inner != "all-gather" and inner not in REDUCING_COLLECTIVE:
        return None
    rounds = 2 if inner == "all-reduce" else 1
    return memory + network.launch + network.transfer(size // devices) * (devices - 1) / per_host * rounds


def _hosts(groups: IntLists, devices_per_host: int) -> int | None:
    """Return how many hosts XLA counts for a group; 1 within a host, None for groups of several forms."""
    found: set[tuple[int, ...]] = set()
    size = 1
    for group in groups:
        members: dict[int, int] = {}
        for device in group:
            members[device // devices_per_host] = members.get(device // devices_per_host, 0) + 1
        found.add(tuple(sorted(members.values())))
        size = max(size, len(members))
    if len(found) != 1:
        return None
    (counts,) = found
    if size == 1:
        return 1
    is_whole = all(count == devices_per_host for count in counts)
    return len(groups[0]) // devices_per_host if is_whole else len(groups[0])


def _groups(collective: HloInstruction) -> IntLists:
    """Return the groups; without any, one of all devices."""
    value = collective.attrs.get("replica_groups")
    given = value.groups() if isinstance(value, ReplicaGroups) else value or ()
    groups = tuple(tuple(group) for group in given if group)
    if groups:
        return groups
    module = collective.parent.module if collective.parent is not None else None
    return (tuple(range(device_count(module))),)


def device_count(module: HloModule | None) -> int:
    """Return the number of devices that a module is for."""
    if module is None:
        return 1
    return int(module.attrs.get("num_partitions", 1)) * int(module.attrs.get("replica_count", 1))


def _transferred_bytes(collective: HloInstruction, inner: str) -> int:
    """Return the bytes that XLA counts for a collective, whose opcode without -start is `inner`."""
    match inner:
        case "collective-permute":
            return _array_bytes(collective.operands[0].shape)
        case "reduce-scatter":
            return sum(_array_bytes(operand.shape) for operand in collective.operands)
        case "all-gather" if collective.opcode == "all-gather-start":
            return _array_bytes(collective.shape.tuple_shapes[1])
        case _:
            return _array_bytes(collective.shape)


def _accessed_bytes(collective: HloInstruction, size: int) -> int:
    """Return the bytes of memory that XLA's cost analysis counts."""
    if collective.opcode == "all-reduce":
        return size + sum(_array_bytes(operand.shape) for operand in collective.operands)
    if collective.opcode.startswith(("all-gather", "reduce-scatter")):
        ranks = len(_groups(collective)[0])
        return size // ranks * (3 * ranks - 1)
    return size


def _array_bytes(shape: Shape) -> int:
    return sum(leaf.size_bytes for _, leaf in shape.leaves() if leaf.is_array)
