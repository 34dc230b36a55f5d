"""A stand-in for `pycuda.driver` that runs kernels: each launch goes through the Host platform, on memory of this process.

With it a whole run of the CUDA platform can be rehearsed; only the device itself is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from fake_bindings import FakeGraphs, FakeLt, fake_bindings, host_memory, number_kind
from fake_cuda import AttributeNames, StandInDevice
from fake_cudnn import FakeCudnn

from hlo_run.artifact import ArraySpec, BufferAllocation, BufferSlice, Executable, Kernel, KernelArgument, KernelThunk
from hlo_run.backends.cuda import device as cuda_device
from hlo_run.backends.cuda import graphs, libraries
from hlo_run.backends.host.backend import HostBackend

_FIRST_ADDRESS = 1 << 20
_ALIGNMENT = 1 << 12


class HostCudaError(Exception):
    """A fault of the device."""


class _Block:
    def __init__(self, driver: HostDriver, address: int, size: int) -> None:
        self._driver, self.address = driver, address
        self.data = np.zeros(size, np.uint8)

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        del self._driver.blocks[self.address]


class _Event:
    def __init__(self) -> None:
        self._time = 0.0

    def record(self, stream: Any) -> None:
        self._time = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def time_till(self, end: _Event) -> float:
        return 1e3 * (end._time - self._time)


class _Stream:
    handle = 77

    def synchronize(self) -> None:
        pass


class _Device(StandInDevice):
    title = "Host as a stand-in"
    capability = (9, 0)
    attributes: ClassVar[Mapping[str, int]] = {"CLOCK_RATE": 1980000, "L2_CACHE_SIZE": 1 << 16}
    other_attributes = 132
    memory_bytes = 1 << 34


class HostDriver:
    """As much of `pycuda.driver` as the CUDA platform uses."""

    Error = HostCudaError
    Device = _Device

    def __init__(self) -> None:
        self.blocks: dict[int, _Block] = {}
        self.device_attribute = AttributeNames()
        self.captures = False
        self.recorded: list[Callable[[], None]] = []
        self._next = _FIRST_ADDRESS
        self._host = HostBackend()
        self._stream = _Stream()

    def init(self) -> None:
        pass

    def Event(self) -> _Event:
        return _Event()

    def Stream(self) -> _Stream:
        return self._stream

    def mem_get_info(self) -> tuple[int, int]:
        return 1 << 29, 1 << 34

    def mem_alloc(self, size: int) -> _Block:
        block = _Block(self, self._next, size)
        self.blocks[self._next] = block
        self._next += -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        return block

    def view(self, address: int, size: int) -> np.ndarray[Any, Any]:
        """Return the bytes at an address; raises HostCudaError where no block holds them all."""
        block, offset = self._find(address)
        if offset + size > block.data.size:
            raise HostCudaError(f"an illegal access to {size} bytes at {address:#x}")
        return block.data[offset : offset + size]

    def _find(self, address: int) -> tuple[_Block, int]:
        for block in self.blocks.values():
            if 0 <= address - block.address <= block.data.size:
                return block, address - block.address
        raise HostCudaError(f"an illegal address {address:#x}")

    def enqueue(self, work: Callable[[], None]) -> None:
        """Do it now, or, while a graph is recorded, when the graph is launched."""
        if self.captures:
            self.recorded.append(work)
        else:
            work()

    def memset_d8_async(self, address: int, value: int, size: int, stream: Any) -> None:
        self.enqueue(lambda: self.view(address, size).fill(value))

    def memset_d32_async(self, address: int, value: int, count: int, stream: Any) -> None:
        self.enqueue(lambda: self.view(address, 4 * count).view(np.uint32).fill(value & 0xFFFFFFFF))

    def memcpy_htod(self, address: int, data: np.ndarray[Any, Any]) -> None:
        self.view(address, data.nbytes)[...] = np.frombuffer(data.tobytes(), np.uint8)

    def memcpy_dtoh(self, data: np.ndarray[Any, Any], address: int) -> None:
        data[...] = self.view(address, data.nbytes)

    def memcpy_dtod_async(self, destination: int, source: int, size: int, stream: Any) -> None:
        self.enqueue(lambda: np.copyto(self.view(destination, size), self.view(source, size).copy()))

    def module_from_buffer(self, image: bytes) -> _Module:
        assert image.endswith(b"\0"), "the driver wants a terminated text"
        return _Module(self, image[:-1].decode())

    def launch(self, ptx: str, name: str, *pointers: Any, grid: Any, block: Any, stream: Any) -> None:
        """Launch a kernel of a PTX text."""
        assert stream is self._stream
        self.enqueue(partial(self._run, ptx, name, pointers, grid, block))

    def _run(self, ptx: str, name: str, pointers: Sequence[Any], grid: Any, block: Any) -> None:
        """Run a kernel with the blocks of memory that its arguments point into."""
        places = [self._find(int(pointer)) for pointer in pointers]
        used = list({id(found): found for found, _ in places}.values())
        numbers = {id(found): number for number, found in enumerate(used)}
        specs = [
            ArraySpec("u8", (found.data.size,), (0,), BufferSlice(number, 0, found.data.size))
            for number, found in enumerate(used)
        ]
        slices = [BufferSlice(numbers[id(found)], offset, found.data.size - offset) for found, offset in places]
        program = Executable(
            name=name,
            target="h200",
            kernels=(Kernel(name, ptx, grid, block),),
            thunks=(KernelThunk(name, name, tuple(KernelArgument(place, True) for place in slices)),),
            allocations=tuple(
                BufferAllocation(number, found.data.size, number, is_output=True, alias="must-alias")
                for number, found in enumerate(used)
            ),
            parameters=tuple(specs),
            result=tuple(specs),
        )
        results = self._host.run(program, [found.data for found in used])
        assert isinstance(results, tuple)
        for found, result in zip(used, results, strict=True):
            assert isinstance(result, np.ndarray)
            found.data[...] = result


class _Module:
    def __init__(self, driver: HostDriver, ptx: str) -> None:
        self._driver, self._ptx = driver, ptx

    def get_function(self, name: str) -> Any:
        if f".entry {name}(" not in self._ptx:
            raise HostCudaError(f"named symbol not found: {name}")
        return partial(self._driver.launch, self._ptx, name)


class _Lt(FakeLt):
    """cuBLASLt whose products are recorded into graphs, as the real one's are."""

    def __init__(self, driver: HostDriver, log: list[str]) -> None:
        super().__init__(driver, log)
        self._host = driver

    def do_matmul(self, handle: int, descriptor: int, *rest: int) -> None:
        # The caller frees its descriptions and factors after the call.
        made = {key: dict(value) for key, value in self._made.items()}
        alpha, *middle, beta = rest[:6]
        factors = [np.array(host_memory(address, number_kind(made[descriptor]["scale"]))) for address in (alpha, beta)]
        others = rest[6:]

        def work() -> None:
            kept, self._made = self._made, made
            FakeLt.do_matmul(self, handle, descriptor, factors[0].ctypes.data, *middle, factors[1].ctypes.data, *others)
            self._made = kept

        self._host.enqueue(work)


class _Graphs(FakeGraphs):
    """Graphs that do on each launch what was recorded."""

    def __init__(self, driver: HostDriver, log: list[str]) -> None:
        super().__init__(driver, log)
        self._host = driver
        self._graphs: dict[int, list[Callable[[], None]]] = {}

    def do_cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        code, graph = super().do_cuStreamEndCapture(stream)
        self._graphs[graph], self._host.recorded = self._host.recorded, []
        return code, graph

    def do_cuGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        code, made = super().do_cuGraphInstantiate(graph, flags)
        self._graphs[made] = self._graphs[graph]
        return code, made

    def do_cuGraphLaunch(self, graph: int, stream: int) -> tuple[Any, ...]:
        for work in self._graphs[graph]:
            work()
        return super().do_cuGraphLaunch(graph, stream)


def install_stand_ins() -> HostDriver:
    """Put the stand-ins in the place of pycuda, nvmath, cuDNN's frontend and cuda-bindings for the rest of this process."""
    driver = HostDriver()
    log: list[str] = []
    bindings = fake_bindings(driver, log) | {"cublasLt": _Lt(driver, log), "driver": _Graphs(driver, log)}
    cuda_device.device_problem = lambda: ""  # pyright: ignore[reportAttributeAccessIssue] - replaced on purpose
    cuda_device.load_driver = lambda: driver
    libraries.load_binding = bindings.__getitem__
    libraries.load_cudnn = lambda: FakeCudnn(driver, log)
    graphs.load_cuda = lambda: bindings["driver"]
    return driver
