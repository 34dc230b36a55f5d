"""The CUDA platform: runs an Executable on a device through pycuda; the driver's JIT loads the PTX."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.artifact import BufferSlice, Executable, Kernel, used_allocations
from hlo_run.backends.cuda.device import Device
from hlo_run.backends.cuda.run import CudaRun
from hlo_run.backends.literals import Literal
from hlo_run.backends.memory import planned_bytes
from hlo_run.backends.profile import Profile
from hlo_run.backends.transfer import constant_bytes, parameter_bytes, result_literal
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.target import TargetSpec

# What uninitialised memory holds, so that a kernel that forgets an element does not pass by luck.
_POISON = 0xA5
_POLL_SECONDS = 1e-4


class CudaBackend:
    """Opens device 0 and runs executables on it; keeps loaded kernels from one run to the next."""

    def __init__(self, timeout_seconds: float = 0.0, profile: bool = False) -> None:
        self._device = Device()
        self._driver = self._device.driver
        self._timeout_seconds = timeout_seconds
        self.profile = Profile() if profile else None
        self._functions: dict[str, Any] = {}
        self.outfeed: list[list[Literal]] = []

    @property
    def name(self) -> str:
        return "CUDA"

    @property
    def description(self) -> str:
        major, minor = self._device.compute_capability
        return f"{self._device.name}, compute capability {major}.{minor}"

    @property
    def target(self) -> TargetSpec:
        return self._device.target

    def run(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42, feeds: Feeds = NO_FEEDS) -> Literal:
        """Run with one literal per entry parameter and return the result; raises DeviceError."""
        memory: list[Any] = []
        try:
            self._allocate(executable, memory)
            for place, data in (*constant_bytes(executable), *parameter_bytes(executable, arguments)):
                if data.size:
                    self._driver.memcpy_htod(self._address(memory, place), np.ascontiguousarray(data))
            run = CudaRun(self._driver, executable, memory, self._function, seed, self.profile, feeds(0))
            run.run()
            self.outfeed = [run.outfeed]
            self._wait(executable.name)
            return result_literal(executable, self._reader(memory))
        except self._driver.Error as error:
            raise DeviceError(f"{executable.name} failed on {self._device.name}: {error}") from error
        finally:
            for block in memory:
                block.free()

    def run_devices(
        self,
        executable: Executable,
        arguments: Sequence[Sequence[Literal]],
        replicas: int,
        partitions: int,
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> list[Literal]:
        """Raise Unsupported: there is one device."""
        del executable, arguments, seed, feeds
        hint = "--platform=Host simulates them; --num_replicas=1 --num_partitions=1 runs on one device"
        raise Unsupported(f"CUDA runs on one device, but the module wants {replicas} x {partitions}", hint=hint)

    def report(self) -> str:
        return ""

    def launch_records(self) -> list[dict[str, Any]]:
        return []

    def _allocate(self, executable: Executable, memory: list[Any]) -> None:
        """Add a block per allocation to `memory`; workspaces of libraries that are not used get a byte."""
        planned, free = planned_bytes(executable), int(self._driver.mem_get_info()[0])
        if planned > free:
            message = f"{executable.name} needs {planned} bytes, {free} are free on {self._device.name}"
            raise DeviceError(message, hint="--platform=Host runs in the memory of this machine")
        used = used_allocations(executable)
        for allocation in executable.allocations:
            size = max(allocation.size_bytes, 1) if allocation.index in used else 1
            block = self._driver.mem_alloc(size)
            memory.append(block)
            self._driver.memset_d8(int(block), _POISON, size)

    @staticmethod
    def _address(memory: list[Any], place: BufferSlice) -> int:
        return int(memory[place.allocation]) + place.offset_bytes

    def _function(self, kernel: Kernel) -> Any:
        """Return the loaded kernel; equal PTX is loaded once."""
        key = f"{kernel.name}\n{kernel.ptx}"
        if key not in self._functions:
            module = self._driver.module_from_buffer(kernel.ptx.encode() + b"\0")
            # The function does not keep its module alive.
            self._functions[key] = (module, module.get_function(kernel.name))
        return self._functions[key][1]

    def _wait(self, name: str) -> None:
        """Wait for the device; a kernel cannot be stopped, so a timeout leaves it to the end of the process."""
        done = self._driver.Event()
        done.record()
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        while deadline is not None and not done.query():
            if time.monotonic() > deadline:
                raise DeviceError(f"{name} ran longer than {self._timeout_seconds:g} s", hint="raise --timeout")
            time.sleep(_POLL_SECONDS)
        done.synchronize()

    def _reader(self, memory: list[Any]) -> Callable[[BufferSlice], NDArray[np.uint8]]:
        def read(place: BufferSlice) -> NDArray[np.uint8]:
            data = np.empty(place.size_bytes, np.uint8)
            if place.size_bytes:
                self._driver.memcpy_dtoh(data, self._address(memory, place))
            return data

        return read
