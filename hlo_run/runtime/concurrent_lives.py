"""Finds the allocations that are free for values whose instructions may run at the same time.

    a = f(p);  b = g(p);  ROOT c = h(a, b)      a and b may run at once, so that neither may take the place of the other

Only the dependencies order instructions, not the schedule: XLA's `DependencyHloOrdering`, for command buffers without an order.
With regions the schedule also orders instructions of different regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from hlo_run.analysis.buffers.concurrent_regions import concurrent_regions
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue, buffer_size_bytes
from hlo_run.analysis.buffers.execution_order import ExecutionOrder, by_dependencies, by_regions
from hlo_run.runtime.planned_allocation import PlannedAllocation


class ConcurrentOccupancy:
    """The reusable allocations in order of creation. With `has_regions`, the regions of the schedule run in turn."""

    def __init__(self, dataflow: Dataflow, has_regions: bool) -> None:
        regions = concurrent_regions(dataflow.module) if has_regions else {}
        self._order = ExecutionOrder(dataflow, partial(by_regions, regions=regions) if has_regions else by_dependencies)
        self._result = dataflow.module.entry.root
        self._allocations: list[PlannedAllocation] = []

    def add_allocation(self, allocation: PlannedAllocation, values: Sequence[HloValue]) -> None:
        """Add a reusable allocation, which has its first values."""
        del values
        self._allocations.append(allocation)

    def add_values(self, allocation: PlannedAllocation, values: Sequence[HloValue]) -> None:
        """Do nothing: the allocation itself has the values."""
        del self, allocation, values

    def free_for(self, values: Sequence[HloValue], preferred: Sequence[PlannedAllocation]) -> Iterator[PlannedAllocation]:
        """Yield the allocations that are large enough for `values` and free: preferred ones, then all, the latest first."""
        size = max(map(buffer_size_bytes, values))
        for allocation in (*preferred, *reversed(self._allocations)):
            if allocation.size_bytes >= size and all(self._may_join(v, other) for other in allocation.offsets for v in values):
                yield allocation

    def _may_join(self, value: HloValue, other: HloValue) -> bool:
        if value.instruction.opcode == "copy" and any(p.instruction in value.instruction.operands for p in other.positions):
            return False
        return self._is_before(value, other) or self._is_before(other, value)

    def _is_before(self, one: HloValue, two: HloValue) -> bool:
        """Return True if every use of the value `one` runs before `two` is written, whatever the schedule."""
        if not self._order.is_defined_before(one, two):
            return False
        for position in one.positions:
            instruction = position.instruction
            if instruction is self._result:
                return False
            if instruction.is_root and self._order.is_inside(two.instruction, instruction.parent):
                return False
        return self._order.are_read_before(one.uses, two)
