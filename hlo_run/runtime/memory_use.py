"""Lists which value is where in memory, and when, from a buffer assignment."""

from __future__ import annotations

from hlo_run.analysis.buffers.buffer_life import BufferLife, MemoryUse
from hlo_run.analysis.buffers.dataflow_values import buffer_size_bytes
from hlo_run.hlo.values.braces import braces
from hlo_run.runtime.buffers import BufferAssignment
from hlo_run.runtime.planned_allocation import PlannedAllocation


def memory_use(buffers: BufferAssignment) -> MemoryUse:
    """Return the values in memory, ordered by allocation, offset and time. Memory inside of kernels is left out."""
    lives: list[BufferLife] = []
    for number, allocation in enumerate(buffers.planned):
        if allocation.is_thread_local:
            continue
        kind = _kind(allocation)
        for value, offset in allocation.offsets.items():
            bound = buffers.live.ranges.get(value)
            if bound is None:
                continue
            name = value.instruction.name + (braces(value.index) if value.index else "")
            shape = value.shape.to_string(layout=False)
            lives.append(BufferLife(name, shape, kind, number, offset, buffer_size_bytes(value), bound.start, bound.end))
    lives.sort(key=lambda life: (life.allocation, life.offset_bytes, life.first, life.name))
    allocated = sum(a.size_bytes for a in buffers.planned if not a.is_thread_local)
    return MemoryUse(tuple(lives), tuple(i.name for i in buffers.live.schedule.order), allocated)


def _kind(allocation: PlannedAllocation) -> str:
    if allocation.parameter is not None:
        return "parameter"
    if allocation.is_constant:
        return "constant"
    return "output" if allocation.is_live_out else "temporary"
