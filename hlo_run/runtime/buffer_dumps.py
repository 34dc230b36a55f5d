"""Writes XLA's buffer dumps of the optimised module: buffer assignment, values, live ranges, memory usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from hlo_run.analysis.buffers.dataflow_values import POINTER_BYTES, HloPosition, HloUse, HloValue, buffer_size_bytes
from hlo_run.analysis.buffers.live_range import FlatSchedule, LiveRanges
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.printer import instruction_to_string
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.runtime.buffers import BufferAssignment
from hlo_run.runtime.peak_breakdown import peak_breakdown
from hlo_run.runtime.planned_allocation import PlannedAllocation


def assignment_text(buffers: BufferAssignment, module: HloModule) -> str:
    """Return `*-buffer-assignment.txt`: each allocation with its values by id."""
    root = module.entry.root
    home = buffers.slice(root).allocation
    lines = ["BufferAssignment:"]
    for number, allocation in enumerate(buffers.planned):
        shape = f"output shape is |{root.shape.to_string(layout=False)}|" if number == home else ""
        start = f"allocation {number}: size {allocation.size_bytes}"
        lines.append(", ".join(filter(None, [start, *_kinds(allocation, shape)])) + ":")
        for value in sorted(allocation.offsets, key=lambda value: value.id):
            place = f"(size={buffer_size_bytes(value)},offset={allocation.offsets[value]})"
            lines.append(f" value: {_brief(value)} {place}: {value.shape}")
    return "\n".join(lines) + "\n"


def _kinds(allocation: PlannedAllocation, output: str) -> Iterator[str]:
    if allocation.color:
        yield f"color {allocation.color}"
    yield "page 0"
    if allocation.parameter is not None:
        number, index = allocation.parameter
        value = next(v for v in allocation.offsets if v.instruction.opcode == "parameter" and v.index == index)
        yield f"parameter {number}, shape |{value.shape.to_string(layout=False)}| at ShapeIndex {braces(index)}"
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
    return f"<{value.id} {_place(value.instruction, value.index)}{' (phi)' if value.is_phi else ''} @{value.color}>"


def _place(instruction: HloInstruction, index: ShapeIndex) -> str:
    return f"{instruction.name}{braces(index) if instruction.shape.is_tuple else ''}"


def values_text(buffers: BufferAssignment) -> str:
    """Return `*-buffer-assignment-values.txt`: every value that has memory, by id, with its positions and uses."""
    lines = ["", _total(buffers.planned).replace("Total bytes", "Total bytes used"), "", "Used values:"]
    values = [value for allocation in buffers.planned for value in allocation.offsets]
    for value in sorted(values, key=lambda value: value.id):
        lines += [_brief(value), " positions:", *map(_position, value.positions), " uses:"]
        lines += map(_use, value.uses) if value.uses else ["  (none)"]
        lines.append(f" from instruction: {instruction_to_string(value.instruction)}")
    return "\n".join(lines) + "\n"


def _position(position: HloPosition) -> str:
    return f"  {position_text(position)}"


def position_text(position: HloPosition) -> str:
    """Return the name of a position: its instruction, and its index if that is a tuple."""
    index = f" {braces(position.shape_index)}" if position.instruction.shape.is_tuple else ""
    return f"{position.instruction.name}{index}"


def _use(use: HloUse) -> str:
    index = f" {braces(use.operand_index)}" if use.instruction.operands[use.operand_number].shape.is_tuple else ""
    return f"  {use.instruction.name}, operand {use.operand_number}{index}"


def live_range_text(buffers: BufferAssignment, module: HloModule) -> str:
    """Return `*-live-range.txt`: the flat schedule, the live range of each value, and the values live at the peak."""
    live = buffers.live
    if not buffers.is_timed:
        live = LiveRanges(FlatSchedule([], {}, {}, {}), {})
    lines = [f"HloLiveRange (max {live.schedule.end}):", "  InstructionSequence:"]
    lines += [f"    {time}:{instruction.name}" for time, instruction in enumerate(live.schedule.order)]
    lines.append("  BufferLiveRange:")
    by_id = sorted(live.ranges.items(), key=lambda item: item[0].id)
    lines += [f"    {_full_name(value)}:{bound.start}-{bound.end}" for value, bound in by_id]
    peak = _peak_time(live)
    lines.append(f"  Live ranges at {peak} (peak):")
    alive = [value for value, bound in by_id if bound.start <= peak <= bound.end]
    alive.sort(key=lambda value: (-buffer_size_bytes(value), value.instruction.name, value.index))
    for value, total in zip(alive, accumulate(map(buffer_size_bytes, alive)), strict=True):
        lines.append(f"    {_full_name(value)}: {buffer_size_bytes(value)} bytes (cumulative: {total} bytes)")
    if alive:
        lines += [f"  {line}" for line in peak_breakdown(module, alive)]
    return "\n".join(lines) + "\n"


def _full_name(value: HloValue) -> str:
    return value.instruction.name + braces(value.index)


def _peak_time(live: LiveRanges) -> int:
    """Return the first time of peak memory. A value still counts at the time after its end, when the next values begin.

    As in XLA, a value in a tuple-shaped result counts the bytes of the tuple's pointer table.
    """
    begins = [0] * (live.schedule.end + 2)
    ends = list(begins)
    for value, bound in live.ranges.items():
        shape = value.instruction.shape
        size = POINTER_BYTES * len(shape.tuple_shapes) if shape.is_tuple else shape.size_bytes
        begins[bound.start] += size
        ends[bound.end + 1] += size
    alive = accumulate(begin - end for begin, end in zip(begins, [0, *ends], strict=False))
    totals = list(alive)
    return totals.index(max(totals))


# The table always shows this many rows. After them it ends when the remaining bytes are less than this part of the total.
_SHOWN_ROWS = 50
_SMALL_PART = 0.05
# XLA's names of memory spaces; they do not depend on the device.
_SPACES = {0: "default", 1: "vmem", 2: "smem", 3: "hbm", 4: "host", 5: "cmem"}
_COLUMNS = "  cumulative_size;       size;       offset; used_by_n_values; shapes_list"


class UsageSpace(NamedTuple):
    """A memory space: its number, the bytes of all its allocations, and the number and text of those that are shown."""

    color: int
    total_bytes: int
    entries: list[tuple[int, PlannedAllocation, str]]


def usage_spaces(buffers: BufferAssignment) -> list[UsageSpace]:
    """Return the memory spaces in order, with their allocations, the largest first."""
    spaces: dict[int, list[tuple[int, PlannedAllocation]]] = {0: []}
    for number, allocation in sorted(enumerate(buffers.planned), key=lambda pair: -pair[1].size_bytes):
        spaces.setdefault(allocation.color, []).append((number, allocation))
    found: list[UsageSpace] = []
    for color, allocations in sorted(spaces.items()):
        total = rest = sum(allocation.size_bytes for _, allocation in allocations)
        entries: list[tuple[int, PlannedAllocation, str]] = []
        for number, allocation in allocations:
            text = "\n".join((_COLUMNS, "  " + "-" * 60, *_usage_rows(allocation)))
            entries.append((number, allocation, f"{text}\n"))
            rest -= allocation.size_bytes
            if len(entries) > _SHOWN_ROWS and rest < _SMALL_PART * total:
                break
        found.append(UsageSpace(color, total, entries))
    return found


def memory_usage_text(buffers: BufferAssignment) -> str:
    """Return `*-memory-usage-report.txt`: per allocation, the largest first, the values at each offset."""
    parts: list[str] = []
    for color, total, entries in usage_spaces(buffers):
        size = f"Total bytes: {total} ({_readable(total)})"
        parts += [f"Memory Space: {_SPACES.get(color, f'color_{color}')} (color={color})", size]
        parts += [text for _, _, text in entries]
        parts.append("")
    return "\n".join(parts) + "\n"


def _total(allocations: Iterable[PlannedAllocation]) -> str:
    total = sum(allocation.size_bytes for allocation in allocations)
    return f"Total bytes: {total} ({_readable(total)})"


def _usage_rows(allocation: PlannedAllocation) -> Iterator[str]:
    places: dict[int, list[HloValue]] = {}
    for value, offset in allocation.offsets.items():
        places.setdefault(offset, []).append(value)
    sizes = {offset: max(map(buffer_size_bytes, values)) for offset, values in places.items()}
    order = sorted(places, key=lambda offset: (-sizes[offset], max(value.id for value in places[offset])))
    total = sum(sizes.values())
    cumulative = 0
    for number, offset in enumerate(order, 1):
        cumulative += sizes[offset]
        shapes = Counter(value.shape.to_string(layout=False) for value in places[offset])
        names = ", ".join(f"{n}×{name}" if n > 1 else name for n, name in sorted((n, name) for name, n in shapes.items()))
        # XLA divides 0 by 0 if all values are empty.
        percent = str(round(100 * cumulative / total)) if total else "-nan"
        yield (
            f"  {_readable(cumulative):>9}({percent:>3}%);{_readable(sizes[offset]):>11};"
            f"{offset:>13};{len(places[offset]):>17}; {names}"
        )
        if number > _SHOWN_ROWS and number < len(order) and total - cumulative < _SMALL_PART * total:
            yield f"  The rest {len(order) - number} values are less than {_SMALL_PART:.0%} of the total size and not shown."
            return


def _readable(size_bytes: int) -> str:
    """Return a size in XLA's format: `400B`, `1.6KiB`, `32.34MiB`. Each unit is a whole number of the next smaller one."""
    if size_bytes < 1024:
        return f"{size_bytes}B"
    place = (size_bytes.bit_length() - 1) // 10
    unit = " KMGTPE"[place]
    return f"{(size_bytes >> 10 * (place - 1)) / 1024:.{1 if unit == 'K' else 2}f}{unit}iB"


def buffer_texts(buffers: BufferAssignment, module: HloModule) -> dict[str, Callable[[], str]]:
    """Return the functions that make the dumps, keyed by the end of the file name."""
    return {
        "buffer-assignment": lambda: assignment_text(buffers, module),
        "buffer-assignment-values": lambda: values_text(buffers),
        "live-range": lambda: live_range_text(buffers, module),
        "memory-usage-report": lambda: memory_usage_text(buffers),
    }
