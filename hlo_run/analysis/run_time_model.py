"""How long will a kernel run on a card? XLA's `GpuPerformanceModel`, whose guesses decide what is fused.

A kernel computes while it reads and writes: 95 % of the shorter of the two is hidden behind the longer. Times are whole
quarters of a nanosecond, as XLA counts them, since equal sums must stay equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_run.analysis.fusion_launch import KernelPlanner, PlannedKernel
from hlo_run.analysis.launch_dimensions import LaunchDimensions
from hlo_run.analysis.node_cost import CostAnalysis, NodeCost
from hlo_run.analysis.node_facts import Facts
from hlo_run.analysis.op_cost import shape_bytes
from hlo_run.hlo.fusion_graph import Node
from hlo_run.hlo.shape import Shape
from hlo_run.target import TargetSpec

TICKS_PER_SECOND = 4_000_000_000
TICKS_PER_MICROSECOND = TICKS_PER_SECOND // 1_000_000
LAUNCH_TICKS = TICKS_PER_MICROSECOND
_HIDDEN_PART = 0.95
_L2_SPEEDUP = 2.5
_L1_SPEEDUP = 8.0
_L1_BYTES_PER_CORE = 2 * 1024
_MEMORY_TRANSACTION_BYTES = 32
_DRAM_TRANSACTION_BYTES = 64
_FLOPS_PER_CLOCK = 2


@dataclass(frozen=True, slots=True)
class RunTime:
    """What a kernel takes, in ticks."""

    flops: int
    write: int
    execution: int


class RunTimeModel:
    """Estimates for the nodes of a graph and for pairs that might be fused."""

    def __init__(self, costs: CostAnalysis, facts: Facts, planner: KernelPlanner, target: TargetSpec) -> None:
        self._costs = costs
        self._facts = facts
        self._planner = planner
        self._target = target
        self._nodes: dict[Node, RunTime] = {}
        self._read_sums: dict[Node, dict[tuple[int, bool, float], int]] = {}

    def forget(self, node: Node) -> None:
        """Estimate anew when the node is next asked about."""
        self._nodes.pop(node, None)
        self._read_sums.pop(node, None)

    def alone(self, node: Node) -> RunTime:
        """Return the estimate for a node in a kernel of its own."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = self._alone(node)
        return found

    def _alone(self, node: Node) -> RunTime:
        cost = self._costs.of(node)
        kernel = self._planner.plan(None, node)
        flops = int(cost.flops)
        is_coalesced = kernel.kind == "transpose" or not self._facts.node(node).reads_badly
        read = self._read_alone(node, kernel.launch, is_coalesced, 1.0)
        if len(node.operands) > len(cost.bytes_read):  # an instruction reads what it names twice as often
            for operand in cost.bytes_read:
                more = node.operands.count(operand) - 1
                read += more * self._read(kernel.launch, operand.instruction.shape, cost.bytes_read[operand], is_coalesced)
        write = _ticks(cost.bytes_written / self._target.memory_bandwidth)
        return RunTime(flops, write, _combine(self._compute(flops, kernel.launch), read + write))

    def together(self, producer: Node, consumer: Node, writes_both: bool = False) -> int:
        """Return the ticks of a kernel of `consumer` that computes `producer` itself, and returns that too if asked to."""
        kernel = self._planner.plan(producer, consumer)
        cost = self._costs.of(consumer)
        one, two = self.alone(producer), self.alone(consumer)
        times = consumer.operands.count(producer)
        flops = int(one.flops * cost.utilization[producer] * times + two.flops)
        read = self._read_together(producer, consumer, kernel.launch, self._is_coalesced(kernel, producer, consumer))
        write = two.write + (one.write if writes_both else 0)
        return _combine(self._compute(flops, kernel.launch), read + write)

    def _is_coalesced(self, kernel: PlannedKernel, producer: Node, consumer: Node) -> bool:
        one, two = self._facts.node(producer), self._facts.node(consumer)
        if kernel.kind != "transpose" and (one.reads_badly or two.reads_badly):
            return False
        # Two row reductions in one kernel read along different rows.
        return not (kernel.kind == "reduction" and one.is_input_reduction and two.is_input_reduction)

    def _read_together(self, producer: Node, consumer: Node, launch: LaunchDimensions, is_coalesced: bool) -> int:
        """Return the ticks that reading takes: what each of both reads, and another amount for what they share.

        So a question about two nodes costs as many steps as they share operands, however many they have.
        """
        made, cost = self._costs.of(producer), self._costs.of(consumer)
        use = cost.utilization[producer]
        read = self._read_alone(consumer, launch, is_coalesced, 1.0) + self._read_alone(producer, launch, is_coalesced, use)
        read -= self._read(launch, producer.instruction.shape, cost.bytes_read[producer], is_coalesced)
        for operand in made.bytes_read.keys() & cost.bytes_read.keys():
            shape, by_consumer = operand.instruction.shape, cost.bytes_read[operand]
            by_producer = _round(made.bytes_read[operand] * use)
            common = self._common_utilization(made, cost, producer, consumer, operand)
            both = by_producer + by_consumer - (_round(shape_bytes(shape) * common) if common else 0)
            read += self._read(launch, shape, both, is_coalesced)
            read -= self._read(launch, shape, by_producer, is_coalesced) + self._read(launch, shape, by_consumer, is_coalesced)
        return read

    def _read_alone(self, node: Node, launch: LaunchDimensions, is_coalesced: bool, times: float) -> int:
        """Return the ticks to read all operands of a node that is computed so often."""
        sums = self._read_sums.setdefault(node, {})
        key = launch.blocks, is_coalesced, times
        found = sums.get(key)
        if found is None:
            bytes_read = self._costs.of(node).bytes_read.items()
            found = sums[key] = sum(
                self._read(launch, operand.instruction.shape, _round(total * times), is_coalesced)
                for operand, total in bytes_read
            )
        return found

    def _common_utilization(self, one: NodeCost, two: NodeCost, producer: Node, consumer: Node, operand: Node) -> float:
        """Return how often producer and consumer read a shared operand at the same index."""
        if producer.is_fusion:
            if not (self._facts.node(producer).is_elementwise or one.reads_like_root(operand)):
                return 0.0
        elif not self._facts.node(producer).is_elementwise:
            return 0.0
        if consumer.is_fusion:
            return two.common_utilization(operand, producer)
        return 1.0 if self._facts.node(consumer).is_elementwise else 0.0

    def _compute(self, flops: int, launch: LaunchDimensions) -> int:
        target = self._target
        units = min(launch.blocks, target.core_count) * min(launch.threads_per_block, target.fpus_per_core)
        per_nanosecond = int(target.clock_rate_ghz * _FLOPS_PER_CLOCK * units)
        return _ticks(flops / per_nanosecond * 1e-9) if per_nanosecond else 0

    def _read(self, launch: LaunchDimensions, shape: Shape, total: int, is_coalesced: bool) -> int:
        """Return the ticks to read `total` bytes of an array: each byte from memory once, again from a cache."""
        target = self._target
        useful = 1.0 if is_coalesced else _element_bytes(shape) / _DRAM_TRANSACTION_BYTES
        net = min(shape_bytes(shape), total)
        most = launch.blocks * target.clock_rate_ghz * 1e9 * _MEMORY_TRANSACTION_BYTES
        memory, again = target.memory_bandwidth * useful, float(target.memory_bandwidth)
        if net < target.l2_cache_size_bytes:
            again *= _L2_SPEEDUP
            if net < _L1_BYTES_PER_CORE * target.core_count:
                again *= _L1_SPEEDUP
        else:
            again *= useful
        ticks = _ticks(net / min(memory, most))
        return ticks + _ticks((total - net) / min(again, most)) if total > net else ticks


def _element_bytes(shape: Shape) -> int:
    return -(-shape.dtype.bits // 8) if shape.is_array else 4


def _combine(compute: int, memory: int) -> int:
    return compute + memory - _round(min(compute, memory) * _HIDDEN_PART)


def _ticks(seconds: float) -> int:
    return _round(seconds * TICKS_PER_SECOND)


def _round(value: float) -> int:
    return math.floor(value + 0.5)
