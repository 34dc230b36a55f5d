"""Refuse what cannot fit, before the machine starts to swap or ends the process."""

from __future__ import annotations

import os

from hlo_run.artifact import Executable, used_allocations
from hlo_run.errors import DeviceError

# A run holds the buffers, the literals that fill them and are read from them, and the reference's arrays.
_COPIES = 2


def check_memory(executable: Executable) -> None:
    """Raise DeviceError if the buffers of `executable`, twice over, are larger than this machine's memory."""
    used = used_allocations(executable)
    needed = _COPIES * sum(allocation.size_bytes for allocation in executable.allocations if allocation.index in used)
    available = _physical_memory_bytes()
    if available is not None and needed > available:
        raise DeviceError(
            f"{executable.name} needs about {needed / 2**30:.1f} GiB, this machine has {available / 2**30:.1f} GiB",
            hint="--stage=ptx compiles without running",
        )


def _physical_memory_bytes() -> int | None:
    """Return the bytes of memory, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
