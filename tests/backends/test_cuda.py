"""The CUDA platform against a stand-in driver that keeps device memory in a bytearray and runs kernels as Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hlo_run.artifact import (
    ArraySpec,
    BufferAllocation,
    BufferSlice,
    ConstantData,
    CopyThunk,
    Executable,
    Kernel,
    KernelArgument,
    KernelThunk,
)
from hlo_run.backends.cuda import device as cuda_device
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.errors import DeviceError, UsageError

_BASE = 0x1000


class _FakeError(Exception):
    pass


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

    def record(self) -> None:
        self._driver.log.append("record")

    def query(self) -> bool:
        return not self._driver.hangs

    def synchronize(self) -> None:
        self._driver.log.append("synchronize")


class _FakeDevice:
    def __init__(self, number: int) -> None:
        assert number == 0

    @staticmethod
    def count() -> int:
        return 1

    def name(self) -> str:
        return "Stand-in"

    def compute_capability(self) -> tuple[int, int]:
        return 8, 0

    def get_attribute(self, attribute: str) -> int:
        return {"CLOCK_RATE": 1410000}.get(attribute, 108)

    def total_memory(self) -> int:
        return 1 << 30

    def retain_primary_context(self) -> Any:
        return self

    def push(self) -> None:
        pass

    def pop(self) -> None:
        pass


class _Attributes:
    def __getattr__(self, name: str) -> str:
        return name


class FakeDriver:
    """As much of `pycuda.driver` as the backend uses; `kernels` maps a kernel's name to what it does to the memory."""

    Error = _FakeError
    Device = _FakeDevice

    def __init__(self, kernels: dict[str, Callable[..., None]]) -> None:
        self.memory = bytearray(1 << 16)
        self.live: list[int] = []
        self.log: list[str] = []
        self.hangs = False
        self.kernels = kernels
        self._next = itertools.count(_BASE, 4096)
        self.device_attribute = _Attributes()

    def init(self) -> None:
        pass

    def Event(self) -> _Event:
        return _Event(self)

    def mem_alloc(self, size: int) -> _Block:
        assert 0 < size <= 4096
        address = next(self._next)
        self.live.append(address)
        return _Block(self, address)

    def memset_d8(self, address: int, value: int, size: int) -> None:
        self.memory[address : address + size] = bytes([value]) * size

    def memcpy_htod(self, address: int, data: np.ndarray[Any, Any]) -> None:
        self.memory[address : address + data.nbytes] = data.tobytes()

    def memcpy_dtoh(self, data: np.ndarray[Any, Any], address: int) -> None:
        data[...] = np.frombuffer(bytes(self.memory[address : address + data.nbytes]), np.uint8)

    def memcpy_dtod(self, destination: int, source: int, size: int) -> None:
        self.memory[destination : destination + size] = self.memory[source : source + size]

    def module_from_buffer(self, image: bytes) -> Any:
        assert image.endswith(b"\0"), "the driver wants a terminated text"
        self.log.append("load")
        return self

    def get_function(self, name: str) -> Callable[..., None]:
        return self.kernels[name]

    def floats(self, address: int, count: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(memoryview(self.memory)[address : address + 4 * count], np.float32)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver({})
    launches: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = []

    def combine(x: np.uint64, c: np.uint64, out: np.uint64, *, grid: Any, block: Any) -> None:
        launches.append((grid, block))
        fake.floats(int(out), 6)[:] = fake.floats(int(x), 6) * 2 + fake.floats(int(c), 6)

    fake.kernels["combine"] = combine
    fake.kernels["launches"] = launches  # pyright: ignore[reportArgumentType] - handed to the tests
    monkeypatch.setattr(cuda_device, "device_problem", lambda: "")
    monkeypatch.setattr(cuda_device, "load_driver", lambda: fake)
    yield fake
    assert not fake.live, "device memory leaked"


def _executable(constant: np.ndarray[Any, Any]) -> Executable:
    """out0 = 2 x + c, out1 = a copy of out0; x is stored column by column."""
    x, c, out, copy = (BufferSlice(n, 0, 24) for n in range(4))
    data = ConstantData("f32", (2, 3), (1, 0), constant.tobytes())
    return Executable(
        name="m",
        target="a100",
        kernels=(Kernel("combine", ".version 8.6", (1, 1, 1), (6, 1, 1)),),
        thunks=(
            KernelThunk("f", "combine", (KernelArgument(x, False), KernelArgument(c, False), KernelArgument(out, True))),
            CopyThunk("copy", out, copy),
        ),
        allocations=(
            BufferAllocation(0, 24, parameter_number=0),
            BufferAllocation(1, 24, constant=data),
            BufferAllocation(2, 24, is_output=True),
            BufferAllocation(3, 24, is_output=True),
        ),
        parameters=(ArraySpec("f32", (2, 3), (0, 1), x),),
        result=(ArraySpec("f32", (2, 3), (0, 1), out), ArraySpec("f32", (6,), (0,), copy)),
    )


def test_runs_kernels_and_copies_in_physical_order(driver: FakeDriver) -> None:
    rng = np.random.default_rng(7)
    x, c = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
    backend = CudaBackend()
    result = backend.run(_executable(c), [x])
    assert isinstance(result, tuple)
    flat = 2 * x.T.reshape(-1) + c.reshape(-1)
    np.testing.assert_array_equal(result[0], flat.reshape(3, 2).T)
    np.testing.assert_array_equal(result[1], flat)
    assert driver.kernels["launches"] == [((1, 1, 1), (6, 1, 1))]


def test_equal_kernels_are_loaded_once(driver: FakeDriver) -> None:
    backend = CudaBackend()
    executable = _executable(np.ones((2, 3), np.float32))
    for _ in range(2):
        backend.run(executable, [np.ones((2, 3), np.float32)])
    assert driver.log.count("load") == 1


def test_driver_errors_become_device_errors(driver: FakeDriver) -> None:
    def broken(*pointers: Any, grid: Any, block: Any) -> None:
        raise _FakeError("an illegal memory access was encountered")

    driver.kernels["combine"] = broken
    with pytest.raises(DeviceError, match="illegal memory access"):
        CudaBackend().run(_executable(np.ones((2, 3), np.float32)), [np.ones((2, 3), np.float32)])


def test_a_kernel_that_hangs_times_out(driver: FakeDriver) -> None:
    driver.hangs = True
    with pytest.raises(DeviceError, match="longer than"):
        CudaBackend(timeout_seconds=0.01).run(_executable(np.ones((2, 3), np.float32)), [np.ones((2, 3), np.float32)])


def test_wrong_arguments_are_refused(driver: FakeDriver) -> None:
    executable = _executable(np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match="takes 1 arguments"):
        CudaBackend().run(executable, [])
    with pytest.raises(UsageError, match=r"must be f32\[2, 3\]"):
        CudaBackend().run(executable, [np.ones((3, 2), np.float32)])


def test_the_device_is_a_target(driver: FakeDriver) -> None:
    target = CudaBackend().target
    assert (target.sm_name, target.core_count, target.clock_rate_ghz) == ("sm_80", 108, 1.41)
    assert driver.log == []


def test_no_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "device_problem", lambda: "pycuda is not installed")
    with pytest.raises(DeviceError) as raised:
        CudaBackend()
    assert "--platform=Host" in raised.value.hint
