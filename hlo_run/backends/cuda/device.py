"""Open a device and describe it as a compile target. No other file imports pycuda."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from contextlib import suppress
from functools import lru_cache
from typing import Any

from hlo_run.errors import DeviceError
from hlo_run.records import replace
from hlo_run.target import DEFAULT_TARGET, PRESETS, TargetSpec, preset

# pycuda has no types. Everything that leaves this folder has types.
Driver = Any


@lru_cache(maxsize=1)
def device_problem() -> str:
    """Return why no CUDA device can be opened; empty if one can."""
    if importlib.util.find_spec("pycuda") is None:
        return "pycuda is not installed (pip install 'hlo-run[cuda]')"
    try:
        driver = load_driver()
    except ImportError as error:
        return f"pycuda cannot be imported: {error}"
    try:
        driver.init()
        if driver.Device.count() == 0:
            return "the CUDA driver sees no device"
    except driver.Error as error:  # the base of its classes, one per code of the driver
        return f"the CUDA driver cannot be initialised: {error}"
    return ""


def load_driver() -> Driver:
    """Return the module `pycuda.driver`; raises ImportError."""
    # A pycuda that was built on a machine without a driver does not link the driver's library.
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("pycuda.driver")


class Device:
    """One open device: the `number`th, modulo the number of devices. Its primary context is current until `close`."""

    def __init__(self, number: int = 0) -> None:
        problem = device_problem()
        if problem:
            raise DeviceError(problem, hint="--platform=Host runs the same kernels on the CPU")
        self.driver: Driver = load_driver()
        device = self.driver.Device(number % self.driver.Device.count())
        self.name: str = device.name()
        self.compute_capability: tuple[int, int] = device.compute_capability()
        self.target = _target(self.driver, device)
        self._context = device.retain_primary_context()
        self._context.push()

    def close(self) -> None:
        """Release the context; the object must not be used afterwards."""
        self._context.pop()


def _target(driver: Driver, device: Any) -> TargetSpec:
    """Return the device as a TargetSpec. The preset of the same capability gives the values that the driver does not report."""
    attribute = driver.device_attribute

    def get(name: str) -> int:
        return int(device.get_attribute(getattr(attribute, name)))

    capability: tuple[int, int] = device.compute_capability()
    base = next((spec for spec in PRESETS.values() if spec.compute_capability == capability), preset(DEFAULT_TARGET))
    return replace(
        base,
        name=device.name(),
        description=device.name(),
        compute_capability=capability,
        core_count=get("MULTIPROCESSOR_COUNT"),
        threads_per_core_limit=get("MAX_THREADS_PER_MULTIPROCESSOR"),
        clock_rate_ghz=get("CLOCK_RATE") / 1e6,
        l2_cache_size_bytes=get("L2_CACHE_SIZE"),
        device_memory_size_bytes=int(device.total_memory()),
    )
