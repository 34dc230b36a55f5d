"""A stand-in for `pycuda.driver`: device memory in a bytearray, kernels as Python, one stream that does everything at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

_BASE = 0x1000


class FakeError(Exception):
    pass


class DriverMemory(Protocol):
    """The part of a stand-in for the driver that stand-ins for libraries use."""

    captures: bool

    def view(self, address: int, size: int) -> np.ndarray[Any, Any]: ...


class _Block:
    def __init__(self, driver: FakeDriver, address: int) -> None:
        self._driver = driver
        self._address = address

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        self._driver.live.remove(self._address)


class _Event:
    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def record(self, stream: FakeStream) -> None:
        assert stream.handle
        self._driver.log.append("record")

    def query(self) -> bool:
        return not self._driver.hangs

    def synchronize(self) -> None:
        self._driver.log.append("synchronize")

    def time_till(self, end: _Event) -> float:
        assert end is not self
        return 0.25


class FakeStream:
    """The only stream; everything is done at once."""

    handle = 77

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def synchronize(self) -> None:
        assert not self._driver.captures, "a stream that records waits for nothing"
        self._driver.log.append("stream")


class StandInDevice:
    """As much of `pycuda.driver.Device` as the backend uses. Attributes without a value have `other_attributes`."""

    title = "Stand-in"
    capability = (8, 0)
    attributes: ClassVar[Mapping[str, int]] = {"CLOCK_RATE": 1410000}
    other_attributes = 108
    memory_bytes = 1 << 30

    def __init__(self, number: int) -> None:
        assert number == 0

    @staticmethod
    def count() -> int:
        return 1

    def name(self) -> str:
        return self.title

    def compute_capability(self) -> tuple[int, int]:
        return self.capability

    def get_attribute(self, attribute: str) -> int:
        return self.attributes.get(attribute, self.other_attributes)

    def total_memory(self) -> int:
        return self.memory_bytes

    def retain_primary_context(self) -> Any:
        return self

    def push(self) -> None:
        pass

    def pop(self) -> None:
        pass


class AttributeNames:
    """`pycuda.driver.device_attribute`: each attribute is its name."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeDriver:
    """As much of `pycuda.driver` as the backend uses; `kernels` maps a kernel's name to what it does to the memory."""

    Error = FakeError
    Device = StandInDevice

    def __init__(self, kernels: dict[str, Callable[..., None]]) -> None:
        self.memory = bytearray(1 << 16)
        self.live: list[int] = []
        self.log: list[str] = []
        self.hangs = False
        self.kernels = kernels
        self.device_attribute = AttributeNames()
        self.free_bytes = 1 << 16
        self.most_blocks = 99
        self.captures = False
        self._stream = FakeStream(self)

    def init(self) -> None:
        pass

    def Event(self) -> _Event:
        return _Event(self)

    def Stream(self) -> FakeStream:
        return self._stream

    def mem_get_info(self) -> tuple[int, int]:
        return self.free_bytes, 1 << 16

    def mem_alloc(self, size: int) -> _Block:
        assert 0 < size <= 4096
        assert not self.captures, "memory is there before a graph is recorded"
        if len(self.live) >= self.most_blocks:
            raise FakeError("out of memory")
        # What is free is given out again; it still holds what it held.
        address = next(place for place in range(_BASE, len(self.memory), 4096) if place not in self.live)
        self.live.append(address)
        return _Block(self, address)

    def memset_d8_async(self, address: int, value: int, size: int, stream: FakeStream) -> None:
        assert stream is self._stream
        self.memory[address : address + size] = bytes([value]) * size

    def memset_d32_async(self, address: int, value: int, count: int, stream: FakeStream) -> None:
        assert stream is self._stream
        self.memory[address : address + 4 * count] = value.to_bytes(4, "little") * count

    def memcpy_htod(self, address: int, data: np.ndarray[Any, Any]) -> None:
        assert not self.captures, "nothing comes from the host while a graph is recorded"
        self.memory[address : address + data.nbytes] = data.tobytes()

    def memcpy_dtoh(self, data: np.ndarray[Any, Any], address: int) -> None:
        data[...] = np.frombuffer(bytes(self.memory[address : address + data.nbytes]), np.uint8)

    def memcpy_dtod_async(self, destination: int, source: int, size: int, stream: FakeStream) -> None:
        assert stream is self._stream
        self.memory[destination : destination + size] = self.memory[source : source + size]

    def module_from_buffer(self, image: bytes) -> Any:
        assert image.endswith(b"\0"), "the driver wants a terminated text"
        self.log.append("load")
        return self

    def get_function(self, name: str) -> Callable[..., None]:
        return self.kernels[name]

    def view(self, address: int, size: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(memoryview(self.memory)[address : address + size], np.uint8)

    def floats(self, address: int, count: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(memoryview(self.memory)[address : address + 4 * count], np.float32)
