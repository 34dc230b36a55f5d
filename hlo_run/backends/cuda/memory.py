"""Device memory of a run: allocations of an executable, scratch memory of libraries, copies in the order of a stream."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.artifact import BufferSlice, Executable, used_allocations
from hlo_run.backends.literals import Bytes
from hlo_run.backends.memory import planned_bytes
from hlo_run.errors import DeviceError

# What uninitialised memory holds, so that a kernel that forgets an element does not pass by luck.
_POISON = 0xA5


class DeviceMemory:
    """All memory that this process has on a device; `stream` is the one on which everything runs."""

    def __init__(self, driver: Any, stream: Any, device_name: str) -> None:
        self._driver, self._stream, self._device_name = driver, stream, device_name
        self._executable: Executable | None = None
        self._blocks: list[Any] = []
        self._sizes: list[int] = []
        self._scratch: Any = None
        self._scratch_bytes = 0

    def hold(self, executable: Executable) -> None:
        """Have a block for each allocation, those of the last run if it was of the same executable; poison what is not constant.

        Workspaces of libraries that are not used get a byte. Raises DeviceError where there is not enough memory.
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
        """Free all of it."""
        self._executable = None
        blocks = [*self._blocks, *([self._scratch] if self._scratch is not None else [])]
        self._blocks, self._scratch, self._scratch_bytes = [], None, 0
        for block in blocks:
            # After a kernel's fault the driver refuses everything; that fault is what counts.
            with suppress(self._driver.Error):
                block.free()

    def address(self, place: BufferSlice) -> int:
        """Return where a slice begins."""
        return int(self._blocks[place.allocation]) + place.offset_bytes

    def scratch(self, size_bytes: int) -> int:
        """Return where as many bytes are free until the next call: what uses them runs on the stream."""
        if size_bytes > self._scratch_bytes:
            if self._scratch is not None:
                self._scratch.free()
                self._scratch, self._scratch_bytes = None, 0
            self._scratch = self._driver.mem_alloc(size_bytes)
            self._scratch_bytes = size_bytes
        return int(self._scratch)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copy from device to device, on the stream."""
        self._driver.memcpy_dtod_async(target, source, size_bytes, self._stream)

    def fill(self, target: int, byte: int, size_bytes: int) -> None:
        """Fill with a byte, on the stream."""
        self._driver.memset_d8_async(target, byte, size_bytes, self._stream)

    def fill_words(self, target: int, word: int, count: int) -> None:
        """Fill with a 32-bit value, on the stream."""
        self._driver.memset_d32_async(target, word, count, self._stream)

    def upload(self, target: int, data: NDArray[Any]) -> None:
        """Copy from this process, behind what the stream does."""
        self._stream.synchronize()
        self._driver.memcpy_htod(target, np.ascontiguousarray(data))

    def read(self, place: BufferSlice) -> Bytes:
        """Return the bytes of a slice, behind what the stream does."""
        data = np.empty(place.size_bytes, np.uint8)
        if place.size_bytes:
            self._stream.synchronize()
            self._driver.memcpy_dtoh(data, self.address(place))
        return data

    def read_word(self, address: int) -> int:
        """Return the 32-bit number at an address, behind what the stream does."""
        data = np.empty(4, np.uint8)
        self._stream.synchronize()
        self._driver.memcpy_dtoh(data, address)
        return int(data.view(np.int32)[0])

    def write(self, place: BufferSlice, data: Bytes) -> None:
        """Fill a slice from this process, behind what the stream does."""
        if data.size:
            self.upload(self.address(place), data)
