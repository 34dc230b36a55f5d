"""Estimates the run time of kernels as XLA's `GpuPerformanceModel` does. The estimates decide which instructions fuse.

A kernel computes while it reads and writes: 95 % of the shorter of the two overlaps with the longer. Times are whole
quarters of a nanosecond, as XLA counts them, since equal sums must stay equal.
"""

from __future__ import annotations

import math
from collections.abc import Set

from msgspec import Struct

from hlo_run.analysis.cost.node_cost import CostAnalysis, NodeCost
from hlo_run.analysis.cost.op_cost import operand_bytes, shape_bytes
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner, PlannedKernel
from hlo_run.analysis.tiling.node_facts import Facts
from hlo_run.hlo.fusion_graph import Node
from hlo_run.hlo.values.shape import Shape
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


class RunTime(Struct, frozen=True):
    """The estimate of a kernel's time, in ticks of 0.25 ns. `memory` is the time of reads and writes."""

    flops: int
    write: int
    execution: int
    compute: int
    memory: int


class _Guest:
    """The extra time for reads, `ticks` (or less than 0), if a consumer computes a producer itself.

    It is valid for this kernel, while the consumer reads the producer `use` times, the producer's estimate is `one`, and the
    consumer's other reads of the producer and of its operands did not change since `change`.
    """

    __slots__ = ("change", "is_coalesced", "kernel", "one", "ticks", "use")

    def __init__(self, kernel: PlannedKernel, is_coalesced: bool, use: float, one: RunTime, change: int, ticks: int) -> None:
        self.kernel = kernel
        self.is_coalesced = is_coalesced
        self.use = use
        self.one = one
        self.change = change
        self.ticks = ticks


class _Changes:
    """The number of changes of a consumer, the operands whose reads changed last, and its guests."""

    __slots__ = ("count", "guests", "operands")

    def __init__(self) -> None:
        self.count = 0
        self.operands: Set[Node] = frozenset()
        self.guests: dict[Node, _Guest] = {}


class RunTimeModel:
    """Estimates for the nodes of a graph and for pairs that might be fused."""

    def __init__(self, costs: CostAnalysis, facts: Facts, planner: KernelPlanner, target: TargetSpec) -> None:
        self._costs = costs
        self._facts = facts
        self._planner = planner
        self._target = target
        self._nodes: dict[Node, RunTime] = {}
        self._read_sums: dict[Node, dict[tuple[int, bool, float], int]] = {}
        self._arrays: dict[Node, tuple[int, int]] = {}
        self._reads: dict[tuple[int, bool, tuple[int, int], int], int] = {}
        self._shared_reads: dict[tuple[int, bool], dict[tuple[tuple[int, int], int, int, float], int]] = {}
        self._changes: dict[Node, _Changes] = {}
        self._flops_per_nanosecond: dict[PlannedKernel, int] = {}

    def forget(self, node: Node) -> None:
        """Drop the estimate of a node; the next request computes it again."""
        self._nodes.pop(node, None)
        self._read_sums.pop(node, None)
        self._changes.pop(node, None)

    def absorb(self, producer: Node, consumer: Node) -> None:
        """Record that `consumer` computes `producer` itself from now on. Call it before the graph fuses them.

        Then its reads of the producer's operands change. All other reads stay, unless it was not a fusion.
        """
        self._nodes.pop(consumer, None)
        self._read_sums.pop(consumer, None)
        if not consumer.is_fusion:
            self._changes.pop(consumer, None)
            return
        changes = self._changes.get(consumer)
        if changes is not None:
            changes.count += 1
            changes.operands = frozenset(producer.reads)
            changes.guests.pop(producer, None)

    def alone(self, node: Node) -> RunTime:
        """Return the estimate for a node in its own kernel."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = self._alone(node)
        return found

    def _alone(self, node: Node) -> RunTime:
        cost = self._costs.of(node)
        kernel = self._planner.plan(None, node)
        flops = int(cost.flops)
        is_coalesced = kernel.kind == "transpose" or not self._facts.node(node).reads_badly
        read = self._read_alone(node, kernel.blocks, is_coalesced, 1.0)
        if len(node.operands) > len(cost.bytes_read):  # an instruction reads an operand that it names twice twice as often
            for operand in cost.bytes_read:
                more = node.operands.count(operand) - 1
                read += more * self._read(kernel.blocks, is_coalesced, self._array(operand), cost.bytes_read[operand])
        write = _ticks(cost.bytes_written / self._target.memory_bandwidth)
        compute = self._compute(flops, kernel)
        return RunTime(flops, write, _combine(compute, read + write), compute, read + write)

    def together(self, producer: Node, consumer: Node, writes_both: bool = False) -> int:
        """Return the ticks of a kernel of `consumer` that computes `producer` itself, and also returns it with `writes_both`."""
        kernel = self._planner.plan(producer, consumer)
        cost = self._costs.of(consumer)
        known = self._nodes
        one, two = known.get(producer) or self.alone(producer), known.get(consumer) or self.alone(consumer)
        use = cost.utilization[producer]
        times = 1 if consumer.is_changed else consumer.operands.count(producer)
        flops = int(one.flops * use * times + two.flops)
        is_coalesced = self._is_coalesced(kernel, producer, consumer)
        read = self._read_alone(consumer, kernel.blocks, is_coalesced, 1.0)
        read += self._read_more(producer, consumer, kernel, is_coalesced, one, use)
        write = two.write + (one.write if writes_both else 0)
        return _combine(self._compute(flops, kernel), read + write)

    def into_bitcast(self, producer: Node, bitcast: Node, flops: int, blocks: int, threads: int) -> int:
        """Return the ticks of a kernel of these blocks and threads that computes a bitcast of a producer with `flops`."""
        cost, two = self._costs.of(bitcast), self.alone(bitcast)
        is_coalesced = not (self._facts.node(producer).reads_badly or self._facts.node(bitcast).reads_badly)
        read = self._read_alone(bitcast, blocks, is_coalesced, 1.0) + self._guest_ticks(producer, bitcast, blocks, is_coalesced)
        flops = int(flops * cost.utilization[producer] + two.flops)
        per_nanosecond = flops_per_nanosecond(self._target, blocks, threads)
        compute = math.floor(flops / per_nanosecond * 1e-9 * TICKS_PER_SECOND + 0.5) if per_nanosecond else 0
        return _combine(compute, read + two.write)

    def _is_coalesced(self, kernel: PlannedKernel, producer: Node, consumer: Node) -> bool:
        one, two = self._facts.node(producer), self._facts.node(consumer)
        if kernel.kind != "transpose" and (one.reads_badly or two.reads_badly):
            return False
        # Two row reductions in one kernel read along different rows.
        return not (kernel.kind == "reduction" and one.is_input_reduction and two.is_input_reduction)

    def _read_more(
        self, producer: Node, consumer: Node, kernel: PlannedKernel, is_coalesced: bool, one: RunTime, use: float
    ) -> int:
        """Return the ticks for reads beyond the consumer's own reads."""
        changes = self._changes.get(consumer)
        if changes is None:
            changes = self._changes[consumer] = _Changes()
        count, found = changes.count, changes.guests.get(producer)
        if found is not None and found.kernel is kernel and found.one is one and found.use == use:
            if found.change + 1 == count and producer not in changes.operands and changes.operands.isdisjoint(producer.reads):
                found.change = count
            if found.change == count and found.is_coalesced is is_coalesced:
                return found.ticks
        ticks = self._guest_ticks(producer, consumer, kernel.blocks, is_coalesced)
        changes.guests[producer] = _Guest(kernel, is_coalesced, use, one, count, ticks)
        return ticks

    def _guest_ticks(self, producer: Node, consumer: Node, blocks: int, is_coalesced: bool) -> int:
        """Return the ticks to read the producer's operands, corrected for operands that both share.

        The cost of a request depends only on the number of shared operands, not of all operands.
        """
        made, cost = self._costs.of(producer), self._costs.of(consumer)
        use = cost.utilization[producer]
        read = self._read_alone(producer, blocks, is_coalesced, use)
        array = self._array(producer)
        read -= self._read(blocks, is_coalesced, array, cost.bytes_read[producer])
        shared = made.bytes_read.keys() & cost.bytes_read.keys()
        if not shared:
            return read
        at_root = self._read_at_root(producer, made, shared)
        is_same_index = not consumer.is_fusion and self._facts.node(consumer).is_elementwise
        theirs, mine, arrays = cost.bytes_read, made.bytes_read, self._arrays
        kernel = self._shared_reads.setdefault((blocks, is_coalesced), {})
        for operand in shared:
            array, by_consumer, by_producer = arrays.get(operand) or self._array(operand), theirs[operand], mine[operand]
            if use != 1.0:
                by_producer = math.floor(by_producer * use + 0.5)
            common = 0.0
            if operand in at_root:
                common = cost.common_utilization(operand, producer) if consumer.is_fusion else float(is_same_index)
            key = array, by_producer, by_consumer, common
            more = kernel.get(key)
            if more is None:
                both = by_producer + by_consumer - (_round(array[0] * common) if common else 0)
                more = self._read(blocks, is_coalesced, array, both) - self._read(blocks, is_coalesced, array, by_producer)
                more = kernel[key] = more - self._read(blocks, is_coalesced, array, by_consumer)
            read += more
        return read

    def _read_at_root(self, producer: Node, made: NodeCost, operands: Set[Node]) -> Set[Node]:
        """Return the operands that a producer reads at the index of its own result."""
        if self._facts.node(producer).is_elementwise:
            return operands
        if not producer.is_fusion or made.place_uses[made.root] != 1.0:
            return frozenset()
        root, places = made.root, made.places
        return {operand for operand in operands if root in places.get(operand, ())}

    def _array(self, node: Node) -> tuple[int, int]:
        """Return the bytes of a node's result and of one element, on which the time to read it depends."""
        found = self._arrays.get(node)
        if found is None:
            shape = node.instruction.shape
            size = shape_bytes(shape) if node.is_fusion else operand_bytes(shape)
            found = self._arrays[node] = size, _element_bytes(shape)
        return found

    def _read_alone(self, node: Node, blocks: int, is_coalesced: bool, times: float) -> int:
        """Return the ticks to read all operands of a node that is computed `times` times."""
        sums = self._read_sums.get(node)
        if sums is None:
            sums = self._read_sums[node] = {}
        key = blocks, is_coalesced, times
        found = sums.get(key)
        if found is None:
            bytes_read = self._costs.of(node).bytes_read.items()
            found = sums[key] = sum(
                self._read(blocks, is_coalesced, self._array(operand), math.floor(total * times + 0.5))
                for operand, total in bytes_read
            )
        return found

    def _compute(self, flops: int, kernel: PlannedKernel) -> int:
        per_nanosecond = self._flops_per_nanosecond.get(kernel)
        if per_nanosecond is None:
            per_nanosecond = flops_per_nanosecond(self._target, kernel.blocks, kernel.threads_per_block)
            self._flops_per_nanosecond[kernel] = per_nanosecond
        return math.floor(flops / per_nanosecond * 1e-9 * TICKS_PER_SECOND + 0.5) if per_nanosecond else 0

    def _read(self, blocks: int, is_coalesced: bool, array: tuple[int, int], total: int) -> int:
        """Return the ticks to read `total` bytes of an array: each byte from memory once, again from a cache."""
        key = blocks, is_coalesced, array, total
        found = self._reads.get(key)
        if found is None:
            found = self._reads[key] = self._read_ticks(blocks, is_coalesced, array, total)
        return found

    def _read_ticks(self, blocks: int, is_coalesced: bool, array: tuple[int, int], total: int) -> int:
        target = self._target
        array_bytes, element_bytes = array
        useful = 1.0 if is_coalesced else element_bytes / _DRAM_TRANSACTION_BYTES
        net = min(array_bytes, total)
        most = blocks * target.clock_rate_ghz * 1e9 * _MEMORY_TRANSACTION_BYTES
        memory, again = target.memory_bandwidth * useful, float(target.memory_bandwidth)
        if net < target.l2_cache_size_bytes:
            again *= _L2_SPEEDUP
            if net < _L1_BYTES_PER_CORE * target.core_count:
                again *= _L1_SPEEDUP
        else:
            again *= useful
        ticks = _ticks(net / min(memory, most))
        return ticks + _ticks((total - net) / min(again, most)) if total > net else ticks


def flops_per_nanosecond(target: TargetSpec, blocks: int, threads_per_block: int) -> int:
    """Return the operations in a nanosecond of a kernel of `blocks` blocks."""
    units = min(blocks, target.core_count) * min(threads_per_block, target.fpus_per_core)
    return int(target.clock_rate_ghz * _FLOPS_PER_CLOCK * units)


def _element_bytes(shape: Shape) -> int:
    return -(-shape.dtype.bits // 8) if shape.is_array else 4


def _combine(compute: int, memory: int) -> int:
    return compute + memory - math.floor((compute if compute < memory else memory) * _HIDDEN_PART + 0.5)


def _ticks(seconds: float) -> int:
    return _round(seconds * TICKS_PER_SECOND)


def _round(value: float) -> int:
    return math.floor(value + 0.5)
