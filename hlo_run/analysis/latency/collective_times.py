"""The time of a collective: within a host as measured, between hosts as a ring.

XLA's `SolLatencyEstimator::ComputeCollectiveTime` with its `SolGPUCostModel`.
"""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.analysis.cost.run_time_model import TICKS_PER_MICROSECOND
from hlo_run.analysis.latency.async_kinds import async_kind
from hlo_run.analysis.latency.kernel_strategies import ONE_SHOT, strategy_of
from hlo_run.analysis.latency.kernel_times import KernelTimes
from hlo_run.analysis.latency.speeds import Speeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import REDUCING_COLLECTIVE
from hlo_run.hlo.values.replica_groups import IntLists
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.collectives import Collective
from hlo_run.options.flag import names
from hlo_run.records import replace
from hlo_run.target import TargetSpec

# One host. XLA scales the measured figures of its network by 0.45.
DEVICES_PER_HOST = 8
_SCALE = 0.45
_LAUNCH_MICROSECONDS, _CHUNK_MICROSECONDS, _ROUND_TRIP_MICROSECONDS = 100.0 * _SCALE, 13.34 * _SCALE, 68.89 * _SCALE
_NETWORK_GB_PER_SECOND, _OTHER_NETWORK_GB_PER_SECOND = 55.56 * _SCALE, 111.12 * _SCALE
_CHUNK_BYTES = 4 << 20
_HEADER = 0.025
_MEASURED_DEVICE = "NVIDIA H100 80GB HBM3"
# Of kernels that read the memory of other GPUs: gigabytes per second of a link, the launch, and the wait for all GPUs.
_LINK_GB_PER_SECOND = {9: 20.0, 10: 40.0}
_KERNEL_LAUNCH_MICROSECONDS = 1.0
_BARRIER_MICROSECONDS, _QUICK_BARRIER_MICROSECONDS = 1.5, 1.0
_QUICK_DEVICE = "NVIDIA B200"
_MICROSECONDS = 1e6


# The names that --xla_gpu_analytical_latency_estimator_options has for whole numbers.
_OPTIONS = {
    "nccl_op_launch_us": "launch",
    "chunk_prep_us": "chunk",
    "rtt_us": "round_trip",
    "gpus_per_node": "devices_per_host",
    "chunk_size_bytes": "chunk_bytes",
}
_SPEED_OPTION = "nic_speed_gbps"


class Network(Struct, frozen=True):
    """The figures of the network. Times in microseconds, speed in gigabytes per second."""

    launch: float = _LAUNCH_MICROSECONDS
    chunk: float = _CHUNK_MICROSECONDS
    round_trip: float = _ROUND_TRIP_MICROSECONDS
    speed: float = _NETWORK_GB_PER_SECOND
    chunk_bytes: int = _CHUNK_BYTES
    devices_per_host: int = DEVICES_PER_HOST

    def transfer(self, size_bytes: int) -> float:
        """Return the time of a message of one device, without its start."""
        sent = size_bytes / (1e3 * self.speed) * (1 + _HEADER)
        return in_ticks(sent) + math.ceil(size_bytes / self.chunk_bytes) * self.chunk + self.round_trip


def network_of(target: TargetSpec, figures: str = "") -> Network:
    """Return the figures for the hosts of a GPU.

    `figures` replaces some: `rtt_us=20,nic_speed_gbps=100`, as --xla_gpu_analytical_latency_estimator_options does. Unknown names
    and values that are not positive numbers are left out, as in XLA.
    """
    is_measured = target.description == _MEASURED_DEVICE
    network = Network(speed=_NETWORK_GB_PER_SECOND if is_measured else _OTHER_NETWORK_GB_PER_SECOND)
    for name, _, value in (word.partition("=") for word in names(figures)):
        number = _positive(value)
        if number is None:
            continue
        if name == _SPEED_OPTION:
            network = replace(network, speed=number)
        elif name in _OPTIONS and number.is_integer():
            network = replace(network, **{_OPTIONS[name]: int(number)})
    return network


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def in_ticks(microseconds: float) -> float:
    """Return a time rounded to quarters of a nanosecond, as XLA counts it."""
    return math.floor(microseconds * TICKS_PER_MICROSECOND + 0.5) / TICKS_PER_MICROSECOND


def collective_microseconds(
    start: HloInstruction, network: Network, target: TargetSpec, kernels: KernelTimes, speeds: Speeds
) -> float | None:
    """Return the time of the collective that `start` begins, or of a synchronous one; None if the model does not know it.

    `kernels` estimates the sums of reductions, `speeds` has the measurements within a host.
    """
    kind = async_kind(start)
    collective = collective_of(start)
    size = _transferred_bytes(collective, kind.inner)
    if kind.inner == "collective-permute":
        return _permute(collective, size, network, target, speeds)
    groups = _groups(collective)
    hosts = _hosts(groups, network.devices_per_host)
    if hosts is None:
        return None
    if hosts > 1:
        compute = 0.0
        if kind.inner in REDUCING_COLLECTIVE:
            compute = kernels.estimate(collective).compute / TICKS_PER_MICROSECOND
        between = _between_hosts(kind.inner, collective, groups, hosts, size, network, target)
        return None if between is None else in_ticks(between + compute)
    return measured_microseconds(collective, speeds)


def measured_microseconds(collective: HloInstruction, speeds: Speeds) -> float | None:
    """Return the time that was measured for such a collective within a host; None without a measurement."""
    inner = async_kind(collective).inner
    size = _transferred_bytes(collective, inner)
    if inner == "collective-permute":
        seconds = speeds.permutation(collective.source_target_pairs, size)
    else:
        groups = _groups(collective)
        seconds = speeds.collective(inner, len(groups), len(groups[0]), size, collective.shape.element_type)
    return None if seconds is None else in_ticks(seconds * _MICROSECONDS)


def kernel_microseconds(collective: HloInstruction, target: TargetSpec) -> float | None:
    """Return the time of an all-reduce that Triton's kernel does; None for other collectives, and without links.

    In one shot all GPUs read the whole array of all others, in two a part each, and then the sums.
    """
    strategy, speed = strategy_of(collective), target.active_links * _LINK_GB_PER_SECOND.get(target.compute_capability[0], 0.0)
    if not strategy or not speed:
        return None
    size, devices = _transferred_bytes(collective, "all-reduce"), group_size(collective)
    barrier = _QUICK_BARRIER_MICROSECONDS if target.description == _QUICK_DEVICE else _BARRIER_MICROSECONDS
    if strategy == ONE_SHOT:
        network = barrier + in_ticks((devices - 1) * size / (1e3 * speed))
    else:
        network = 2 * (barrier + in_ticks((devices - 1) * size / devices / (1e3 * speed)))
    return _memory(collective, size, target) + _KERNEL_LAUNCH_MICROSECONDS + network


def collective_of(start: HloInstruction) -> HloInstruction:
    """Return the collective that an async-start begins; else the instruction itself."""
    return start.called_computations[0].root if start.opcode == "async-start" else start


def group_size(collective: HloInstruction) -> int:
    """Return the number of devices of the largest group of a collective."""
    return max(map(len, _groups(collective)))


def accessed_bytes(collective: HloInstruction, inner: Opcode) -> int:
    """Return the bytes of memory that XLA's cost analysis counts. `inner` is the opcode without -start."""
    return _accessed_bytes(collective, _transferred_bytes(collective, inner))


def _permute(permute: HloInstruction, size: int, network: Network, target: TargetSpec, speeds: Speeds) -> float | None:
    pairs = permute.source_target_pairs
    if any(source // network.devices_per_host != goal // network.devices_per_host for source, goal in pairs):
        return in_ticks(_memory(permute, size, target) + network.launch + network.transfer(size))
    return measured_microseconds(permute, speeds)


def _between_hosts(
    inner: Opcode, collective: HloInstruction, groups: IntLists, hosts: int, size: int, network: Network, target: TargetSpec
) -> float | None:
    communicators = len(groups)
    if network.devices_per_host % communicators:
        return None
    devices = hosts * network.devices_per_host // communicators
    per_host = devices // hosts
    memory = _memory(collective, size, target)
    if inner == "all-to-all":
        return memory + network.launch + per_host * (hosts - 1) * network.transfer(size // (devices - 1))
    if inner != "all-gather" and inner not in REDUCING_COLLECTIVE:
        return None
    rounds = 2 if inner == "all-reduce" else 1
    return memory + network.launch + in_ticks(network.transfer(size // devices) * (devices - 1) / per_host) * rounds


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
    groups = Collective.of(collective).filled_groups
    if groups:
        return groups
    module = collective.parent.module if collective.parent is not None else None
    return (tuple(range(device_count(module))),)


def device_count(module: HloModule | None) -> int:
    """Return the number of devices that a module is for."""
    if module is None:
        return 1
    return module.num_partitions * module.replica_count


def _transferred_bytes(collective: HloInstruction, inner: Opcode) -> int:
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


def _memory(collective: HloInstruction, size: int, target: TargetSpec) -> float:
    return in_ticks(_accessed_bytes(collective, size) / target.memory_bandwidth * _MICROSECONDS)


def _accessed_bytes(collective: HloInstruction, size: int) -> int:
    """Return the bytes of memory that XLA's cost analysis counts."""
    if collective.opcode.startswith("collective-permute"):
        return _array_bytes(collective.shape) + sum(_array_bytes(operand.shape) for operand in collective.operands)
    if collective.opcode in ("all-reduce", "all-to-all"):
        return size + sum(_array_bytes(operand.shape) for operand in collective.operands)
    if collective.opcode.startswith(("all-gather", "reduce-scatter")):
        ranks = len(_groups(collective)[0])
        return size // ranks * (3 * ranks - 1)
    return size


def _array_bytes(shape: Shape) -> int:
    return sum(leaf.size_bytes for _, leaf in shape.leaves() if leaf.is_array)
