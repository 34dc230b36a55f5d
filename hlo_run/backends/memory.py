"""Refuse what cannot fit, before the machine starts to swap or ends the process."""

from __future__ import annotations

import os
import re

from hlo_run.artifact import Executable, used_allocations
from hlo_run.errors import DeviceError

# A run holds the buffers, the literals that fill them and are read from them, and the reference's arrays.
_COPIES = 2
_CGROUP = "/sys/fs/cgroup"


def planned_bytes(executable: Executable) -> int:
    """Return the bytes of all allocations that a run makes; workspaces of libraries that are not here are none."""
    used = used_allocations(executable)
    return sum(allocation.size_bytes for allocation in executable.allocations if allocation.index in used)


def check_memory(executable: Executable) -> None:
    """Raise DeviceError if the buffers of `executable`, twice over, are larger than the memory that is free here."""
    planned, free = planned_bytes(executable), free_bytes()
    if free is not None and _COPIES * planned > free:
        raise DeviceError(
            f"{executable.name} needs about {_COPIES * planned / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free",
            hint="--stage=ptx compiles without running",
            notes=(f"its allocations are {planned} bytes; arguments and results stand beside them",),
        )


def free_bytes() -> int | None:
    """Return the bytes that this process may still take, None where the system does not say."""
    found = [value for value in (_available(), _left_in_group()) if value is not None]
    return min(found) if found else None


def _available() -> int | None:
    """Return what the system could give without swapping, or else all it has."""
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
    """Return what the limit of a container leaves."""
    try:
        limit, used = (_number(f"{_CGROUP}/memory.{name}") for name in ("max", "current"))
    except (OSError, ValueError):
        return None
    return max(limit - used, 0)


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())
