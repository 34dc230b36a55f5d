"""The texts about buffers that XLA dumps beside the optimised module: assignment, values, live ranges, memory usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hlo_run.analysis.dataflow_values import HloValue, buffer_size_bytes
from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.runtime.buffer_assigner import PlannedAllocation
from hlo_run.pipeline.runtime.buffers import BufferAssignment


def assignment_text(buffers: BufferAssignment, module: HloModule) -> str:
    """Return `*-buffer-assignment.txt`: each allocation with its values by id."""
    root = module.entry.root
    home = buffers.slice(root).allocation
    lines = ["BufferAssignment:"]
    for number, allocation in enumerate(buffers.planned):
        shape = f"output shape is |{root.shape.to_string(layout=False)}|" if number == home else ""
        lines.append(
            ", ".join(filter(None, [f"allocation {number}: size {allocation.size_bytes}", *_kinds(allocation, shape)])) + ":"
        )
        for value in sorted(allocation.offsets, key=lambda value: value.id):
            place = f"(size={buffer_size_bytes(value)},offset={allocation.offsets[value]})"
            lines.append(f" value: {_brief(value)} {place}: {value.shape}")
    return "\n".join(lines) + "\n"


def _kinds(allocation: PlannedAllocation, output: str) -> Iterator[str]:
    if allocation.parameter is not None:
        number, index = allocation.parameter
        value = next(v for v in allocation.offsets if v.instruction.opcode == "parameter" and v.index == index)
        yield f"parameter {number}, shape |{value.shape.to_string(layout=False)}| at ShapeIndex {_braces(index)}"
    yield output
    if allocation.is_constant:
        yield "constant"
    if allocation.is_thread_local:
        yield "thread-local"
    if allocation.is_live_out:
        yield "maybe-live-out"
    if allocation.is_temp:
        yield "preallocated-temp"


def _brief(value: HloValue) -> str:
    return f"<{value.id} {_place(value.instruction, value.index)}{' (phi)' if value.is_phi else ''} @0>"


def _place(instruction: HloInstruction, index: ShapeIndex) -> str:
    return f"{instruction.name}{_braces(index) if instruction.shape.is_tuple else ''}"


def _braces(index: Iterable[int]) -> str:
    return "{" + ",".join(map(str, index)) + "}"
