"""Facts about a GPU machine: cards, clocks, driver, packages, and the bandwidth of a copy on the card."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from typing import Any

_PACKAGES = (
    "numpy ml_dtypes xdsl llvmlite pycuda cuda-bindings nvmath-python nvidia-cudnn-frontend jax jaxlib jax-cuda13-plugin "
    "nvidia-cublas nvidia-cudnn-cu13 nvidia-cufft nvidia-cusolver"
).split()
_CARD = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_mode,mig.mode.current"
_STATE = "clocks.sm,clocks.memory,temperature.gpu,power.draw,utilization.gpu,clocks_event_reasons.active"
_COPY_BYTES = 1 << 30
_COPIES = 10
# A kernel that does nothing. Its time is the least time of a measured launch.
_EMPTY_PTX = """.version 8.0
.target sm_70
.address_size 64
.visible .entry nothing()
{
  ret;
}
"""


def machine() -> dict[str, Any]:
    """Return facts about the machine that need no CUDA context."""
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "card": query(_CARD),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "tools": {tool: bool(shutil.which(tool)) for tool in ("nvcc", "ptxas", "ncu", "compute-sanitizer")},
    }


def clocks() -> dict[str, str]:
    """Return the current clocks, temperature and power of the card."""
    return query(_STATE)


def query(fields: str) -> dict[str, str]:
    """Return nvidia-smi's values of the first card; empty without nvidia-smi."""
    try:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = done.stdout.strip().splitlines()
    return dict(zip(fields.split(","), [part.strip() for part in lines[0].split(",")], strict=False)) if lines else {}


def copy_bandwidth(driver: Any, stream: Any, size_bytes: int = _COPY_BYTES) -> float:
    """Return the bytes per second, read and written, of the best of some copies from device to device."""
    size_bytes = min(size_bytes, int(driver.mem_get_info()[0]) // 4)
    source, target = driver.mem_alloc(size_bytes), driver.mem_alloc(size_bytes)
    driver.memset_d8_async(int(source), 0x5A, size_bytes, stream)
    begin, end = driver.Event(), driver.Event()
    best = float("inf")
    for _ in range(_COPIES):
        begin.record(stream)
        driver.memcpy_dtod_async(int(target), int(source), size_bytes, stream)
        end.record(stream)
        end.synchronize()
        best = min(best, float(begin.time_till(end)))
    source.free()
    target.free()
    return 2 * size_bytes / (best / 1e3)


def empty_kernel() -> tuple[str, str]:
    """Return the PTX and the name of a kernel that does nothing."""
    return _EMPTY_PTX, "nothing"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
