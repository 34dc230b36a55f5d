"""Reject executables whose buffers exceed the free memory, before the system swaps or ends the process."""

from __future__ import annotations

import os
import re

from hlo_run.artifact import Executable, used_allocations
from hlo_run.errors import DeviceError

# A run holds the buffers, the literals for arguments and results, and the reference's arrays.
_COPIES = 2
_CGROUP = "/sys/fs/cgroup"


def planned_bytes(executable: Executable) -> int:
    """Return the total size of all allocations that a run makes. Workspaces of unused libraries do not count."""
    used = used_allocations(executable)
    return sum(allocation.size_bytes for allocation in executable.allocations if allocation.index in used)


def check_memory(executable: Executable) -> None:
    """Raise DeviceError if twice the buffers of `executable` exceed the free memory."""
    planned, free = planned_bytes(executable), free_bytes()
    if free is not None and _COPIES * planned > free:
        raise DeviceError(
            f"{executable.name} needs about {_COPIES * planned / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free",
            hint="--stage=ptx compiles without running",
            notes=(f"its allocations take {planned} bytes; arguments and results need about as much",),
        )


def free_bytes() -> int | None:
    """Return the bytes that this process may still allocate; None if the system does not tell."""
    found = [value for value in (_available(), _left_in_group()) if value is not None]
    return min(found) if found else None


def _available() -> int | None:
    """Return the bytes that the system can give without swapping. Falls back to all physical memory."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            match = re.search(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)
        if match is not None:
            return int(match[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _left_in_group() -> int | None:
    """Return the bytes that remain under the container's memory limit (cgroup)."""
    try:
        limit, used = (_number(f"{_CGROUP}/memory.{name}") for name in ("max", "current"))
    except (OSError, ValueError):
        return None
    return max(limit - used, 0)


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())
