"""Estimates without measurements: XLA's `AnalyticalLatencyEstimator`. The unit is a microsecond.

Every instruction has the time of the model of kernels. A collective is a ring over the channels of NCCL, within one host.
"""

from __future__ import annotations

from hlo_run.analysis.cost.run_time_model import flops_per_nanosecond
from hlo_run.analysis.latency.async_kinds import async_kind, is_collective_done, is_collective_start
from hlo_run.analysis.latency.collective_times import accessed_bytes, collective_of, group_size, in_ticks
from hlo_run.analysis.latency.estimator import LOW_COST, LatencyEstimator
from hlo_run.analysis.latency.kernel_times import KernelTimes
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import REDUCING_COLLECTIVE, TRANSFER
from hlo_run.target import TargetSpec

_LAUNCH_MICROSECONDS = 5.0
_CHANNELS, _THREADS = 32, 640
_RINGS = REDUCING_COLLECTIVE | opcode_set("all-gather")
_HOPPER = 9
# Gigabytes per second of a channel: of the links between the GPUs of a host, and of the protocol.
_LINK, _OLD_LINK = 60.0, 40.0
_PROTOCOL, _OLD_PROTOCOL = 36.7, 20.0
_RING_EFFICIENCY = 0.92


class RingTimes:
    """The estimates for a GPU. `other` estimates latencies between instructions that are not an asynchronous pair."""

    def __init__(self, target: TargetSpec, other: LatencyEstimator) -> None:
        self._target = target
        self._other = other
        self._kernels = KernelTimes(target)

    def cost(self, instruction: HloInstruction) -> float:
        """Return the time of an instruction as a kernel. The start and the done of a collective cost 1."""
        if is_collective_start(instruction) or is_collective_done(instruction) or async_kind(instruction).inner in TRANSFER:
            return LOW_COST
        return self._kernels.microseconds(instruction)

    def latency(self, first: HloInstruction, user: HloInstruction) -> float:
        """Return the time of an asynchronous operation from its start to its done; else the other estimator's latency."""
        one, other = async_kind(first), async_kind(user)
        if (one.phase, other.phase) != ("start", "done") or one.inner != other.inner:
            return self._other.latency(first, user)
        return self._ring(first, one.inner) if one.inner in _RINGS else _LAUNCH_MICROSECONDS

    def _ring(self, start: HloInstruction, inner: Opcode) -> float:
        collective = collective_of(start)
        ranks = group_size(collective)
        if ranks == 1:
            return _LAUNCH_MICROSECONDS
        channels = max(ranks, _CHANNELS)
        compute = 0.0
        if inner in REDUCING_COLLECTIVE:
            flops = int(self._kernels.estimate(collective).flops) // channels
            compute = flops / flops_per_nanosecond(self._target, channels, _THREADS) / 1000
        is_new = self._target.compute_capability[0] >= _HOPPER
        links = channels * (_LINK if is_new else _OLD_LINK) * _RING_EFFICIENCY
        speed = min(links, channels * (_PROTOCOL if is_new else _OLD_PROTOCOL))
        steps = (2 if inner == "all-reduce" else 1) * (ranks - 1)
        transfer = accessed_bytes(collective, inner) / (1e3 * speed * ranks / steps)
        return _LAUNCH_MICROSECONDS + in_ticks(compute) + in_ticks(transfer)
