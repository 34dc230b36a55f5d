"""Converts memory, times and differences to plain data that the page's script draws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from msgspec.structs import asdict

from hlo_run.analysis.buffers.buffer_life import BufferLife, MemoryUse
from hlo_run.artifact import nested_sequences
from hlo_run.backends.profile import Event, Profile, touched_bytes
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.heat_map import heat_maps

# More boxes than these are slow in a browser; the page says how many are left out.
_MOST_BOXES = 4000
_MOST_EVENTS = 5000
_KINDS = ("parameter", "constant", "output", "temporary")


def live_bytes(memory: MemoryUse) -> list[int]:
    """Return the bytes in use at each time of the schedule, and after it. A slice of several values counts once at a time."""
    steps = [0] * (len(memory.schedule) + 2)
    for (_, _, size), group in _by_slice(memory.lives).items():
        end = -1
        for life in group:
            first = max(life.first, end + 1)
            if life.last >= first:
                steps[first] += size
                steps[life.last + 1] -= size
                end = life.last
    return list(accumulate(steps))[:-1]


def _by_slice(lives: Sequence[BufferLife]) -> dict[tuple[int, int, int], list[BufferLife]]:
    found: dict[tuple[int, int, int], list[BufferLife]] = {}
    for life in sorted(lives, key=lambda life: life.first):
        found.setdefault((life.allocation, life.offset_bytes, life.size_bytes), []).append(life)
    return found


def peak_values(memory: MemoryUse, time: int) -> list[BufferLife]:
    """Return the values that are live at `time`, the largest first."""
    alive = [life for life in memory.lives if life.first <= time <= life.last and life.size_bytes]
    return sorted(alive, key=lambda life: (-life.size_bytes, life.name))


def memory_chart(memory: MemoryUse) -> dict[str, object]:
    """Return the data of the memory chart. A box is [name, shape, kind, allocation, offset, size, first, last]."""
    largest = sorted(memory.lives, key=lambda life: -life.size_bytes * (life.last - life.first + 1))
    sizes: dict[int, int] = {}
    for life in memory.lives:
        sizes[life.allocation] = max(sizes.get(life.allocation, 0), life.offset_bytes + life.size_bytes)
    return {
        "schedule": list(memory.schedule),
        "live": live_bytes(memory),
        "allocations": sorted(sizes.items()),
        "kinds": list(_KINDS),
        "boxes": [
            [
                life.name,
                life.shape,
                _KINDS.index(life.kind),
                life.allocation,
                life.offset_bytes,
                life.size_bytes,
                life.first,
                life.last,
            ]
            for life in largest[:_MOST_BOXES]
        ],
        "left_out": max(0, len(largest) - _MOST_BOXES),
    }


def medians(profile: Profile) -> dict[str, float]:
    """Return the seconds of each thunk by its name: the median of its executions, summed over thunks of that name."""
    found: dict[str, float] = {}
    for events in _by_thunk(profile):
        name = events[0].thunk.name
        found[name] = found.get(name, 0.0) + median(event.seconds for event in events)
    return found


def profile_rows(profile: Profile) -> list[tuple[object, ...]]:
    """Return a row per thunk, the longest first: name, kind, executions, median milliseconds, bytes, GB/s."""
    rows: list[tuple[object, ...]] = []
    groups = [(median(event.seconds for event in events), events) for events in _by_thunk(profile)]
    for seconds, events in sorted(groups, key=lambda group: -group[0] * len(group[1])):
        thunk, size = events[0].thunk, touched_bytes(events[0].thunk)
        rate = f"{size / seconds / 1e9:.2f}" if seconds and not nested_sequences(thunk) else ""
        rows.append((thunk.name, thunk.kind, len(events), f"{seconds * 1e3:.3f}", size, rate))
    return rows


def _by_thunk(profile: Profile) -> list[list[Event]]:
    groups: dict[int, list[Event]] = {}
    for event in profile.events:
        groups.setdefault(id(event.thunk), []).append(event)
    return list(groups.values())


def profile_chart(profile: Profile) -> dict[str, object]:
    """Return the last run's events in time order: [name, kind, begin, microseconds, depth]; times in us from its begin."""
    events = sorted((e for e in profile.events if e.run == profile.runs), key=lambda e: (e.begin, -e.seconds))
    begin = events[0].begin if events else 0.0
    ends: list[float] = []
    rows: list[list[object]] = []
    for event in events[:_MOST_EVENTS]:
        # Rounding must not nest an event in the one before it.
        while ends and ends[-1] < event.begin + event.seconds:
            ends.pop()
        microseconds = [round((event.begin - begin) * 1e6, 2), round(event.seconds * 1e6, 2)]
        rows.append([event.thunk.name, event.thunk.kind, *microseconds, len(ends)])
        if nested_sequences(event.thunk):
            ends.append(event.begin + event.seconds)
    return {"run": profile.runs, "events": rows, "left_out": max(0, len(events) - _MOST_EVENTS)}


def heat_data(comparison: Comparison) -> list[dict[str, object]]:
    """Return the heat maps of the arrays that differ. An array that cannot be compared has none."""
    masks = comparison.masks()
    return [
        {
            "index": list(leaf.path),
            "shape": leaf.shape.to_string(layout=False),
            "dims": list(leaf.shape.dims),
            "maps": [asdict(heat) for heat in heat_maps(mask)],
        }
        for leaf, mask in zip(comparison.leaves, masks, strict=True)
        if leaf.mismatches and not leaf.problem
    ]
