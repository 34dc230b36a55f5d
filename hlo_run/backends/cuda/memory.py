"""Device memory of a run: the allocations of an executable, scratch memory for libraries, and copies in stream order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from hlo_run.arrays import Array
from hlo_run.artifact import BufferSlice, Executable, used_allocations
from hlo_run.backends.literals import Bytes
from hlo_run.backends.memory import planned_bytes
from hlo_run.errors import DeviceError

# Uninitialised memory holds this byte, so that a kernel that skips an element fails its test.
_POISON = 0xFF  # a NaN in every floating-point format, the integer -1


class DeviceMemory:
    """All device memory of this process. `stream` orders all work.

    `settle` waits for the work on it so far. A shared run sets one that ends if other processes do not do their part.
    """

    def __init__(self, driver: Any, stream: Any, device_name: str) -> None:
        self._driver, self._stream, self._device_name = driver, stream, device_name
        self.settle: Callable[[], None] = stream.synchronize
        self._executable: Executable | None = None
        self._blocks: list[Any] = []
        self._sizes: list[int] = []
        self._scratch: Any = None
        self._scratch_bytes = 0

    def hold(self, executable: Executable) -> None:
        """Provide a block for each allocation and poison all but the constants. A repeated executable keeps its blocks.

        An unused library workspace gets one byte. Raises DeviceError if the memory is too small.
        """
        if self._executable is not executable:
            self.release()
            self._allocate(executable)
        for block, size, allocation in zip(self._blocks, self._sizes, executable.allocations, strict=True):
            if allocation.constant is None:
                self.fill(int(block), _POISON, size)

    def _allocate(self, executable: Executable) -> None:
        planned, free = planned_bytes(executable), int(self._driver.mem_get_info()[0])
        if planned > free:
            message = f"{executable.name} needs {planned} bytes, {free} are free on {self._device_name}"
            raise DeviceError(message, hint="--platform=Host runs in the memory of this machine")
        used = used_allocations(executable)
        self._sizes = [max(a.size_bytes, 1) if a.index in used else 1 for a in executable.allocations]
        for size in self._sizes:
            self._blocks.append(self._driver.mem_alloc(size))
        self._executable = executable

    def release(self) -> None:
        """Free all blocks and the scratch memory."""
        self._executable = None
        blocks = [*self._blocks, *([self._scratch] if self._scratch is not None else [])]
        self._blocks, self._scratch, self._scratch_bytes = [], None, 0
        for block in blocks:
            # After a fault in a kernel the driver rejects every call. The first error is the one to report.
            with suppress(self._driver.Error):
                block.free()

    def address(self, place: BufferSlice) -> int:
        """Return the address of a slice."""
        return int(self._blocks[place.allocation]) + place.offset_bytes

    def scratch(self, size_bytes: int) -> int:
        """Return the address of at least `size_bytes` free bytes, valid until the next call. Their users run on the stream."""
        if size_bytes > self._scratch_bytes:
            if self._scratch is not None:
                self._scratch.free()
                self._scratch, self._scratch_bytes = None, 0
            self._scratch = self._driver.mem_alloc(size_bytes)
            self._scratch_bytes = size_bytes
        return int(self._scratch)

    def poison(self, place: BufferSlice) -> None:
        """Fill a slice with a value that no right kernel leaves there, on the stream."""
        self.fill(self.address(place), _POISON, place.size_bytes)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copy from device to device, on the stream."""
        self._driver.memcpy_dtod_async(target, source, size_bytes, self._stream)

    def fill(self, target: int, byte: int, size_bytes: int, stream: Any = None) -> None:
        """Fill with a byte, on the stream or another one."""
        self._driver.memset_d8_async(target, byte, size_bytes, self._stream if stream is None else stream)

    def fill_words(self, target: int, word: int, count: int) -> None:
        """Fill with a 32-bit value, on the stream."""
        self._driver.memset_d32_async(target, word, count, self._stream)

    def upload(self, target: int, data: Array) -> None:
        """Copy from host memory, after all work on the stream."""
        self.settle()
        self._driver.memcpy_htod(target, np.ascontiguousarray(data))

    def read(self, place: BufferSlice) -> Bytes:
        """Return the bytes of a slice, after all work on the stream."""
        data = np.empty(place.size_bytes, np.uint8)
        if place.size_bytes:
            self.settle()
            self._driver.memcpy_dtoh(data, self.address(place))
        return data

    def read_word(self, address: int) -> int:
        """Return the 32-bit integer at an address, after all work on the stream."""
        data = np.empty(4, np.uint8)
        self.settle()
        self._driver.memcpy_dtoh(data, address)
        return int(data.view(np.int32)[0])

    def write(self, place: BufferSlice, data: Bytes) -> None:
        """Fill a slice from host memory, after all work on the stream."""
        if data.size:
            self.upload(self.address(place), data)
