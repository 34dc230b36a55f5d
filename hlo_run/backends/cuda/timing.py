"""Time work on the device with CUDA events, after a flush of the L2 cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from hlo_run.artifact import KernelThunk, Thunk, every_thunk

_FLUSH_FACTOR = 4  # the flush also covers the time that the processor needs for the launch
_WARM_UP = 2


class KernelTime(Struct, frozen=True):
    """The times of one kernel thunk in milliseconds, in order of measurement. `bytes` counts each argument's slice once."""

    thunk: str
    kernel: str
    milliseconds: tuple[float, ...]
    bytes: int


class DeviceTimer:
    """Times work on `stream`. Before each measurement it overwrites `_FLUSH_FACTOR` times the size of the L2 cache."""

    def __init__(self, driver: Any, stream: Any, l2_cache_size_bytes: int) -> None:
        self._driver, self._stream = driver, stream
        self._flush_bytes = _FLUSH_FACTOR * l2_cache_size_bytes

    def measure(self, work: Callable[[], None], repeats: int, flush: bool = True) -> tuple[float, ...]:
        """Do `work` twice to warm up, then `repeats` times. Return the milliseconds of each repeat."""
        for _ in range(_WARM_UP):
            work()
        begin, end = self._driver.Event(), self._driver.Event()
        # A separate block, because graphs hold the address of the libraries' scratch memory.
        block = self._driver.mem_alloc(self._flush_bytes) if flush else None
        times: list[float] = []
        for _ in range(repeats):
            if block is not None:
                self._driver.memset_d8_async(int(block), 0, self._flush_bytes, self._stream)
            begin.record(self._stream)
            work()
            end.record(self._stream)
            end.synchronize()
            times.append(float(begin.time_till(end)))
        if block is not None:
            block.free()
        return tuple(times)


def kernel_thunks(thunks: Sequence[Thunk]) -> Iterator[KernelThunk]:
    """Return all kernel thunks in order. Loop bodies and all branches count once."""
    return (thunk for thunk in every_thunk(thunks) if isinstance(thunk, KernelThunk))


def touched_bytes(thunk: KernelThunk) -> int:
    """Return the total size of the distinct slices among a kernel's arguments."""
    return sum(place.size_bytes for place in {argument.slice for argument in thunk.arguments})
