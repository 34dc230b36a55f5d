"""The CUDA platform against a stand-in driver that keeps device memory in a bytearray and runs kernels as Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver, FakeError, FakeStream

from hlo_run.artifact import (
    ArraySpec,
    BufferAllocation,
    BufferSlice,
    ConditionalThunk,
    ConstantData,
    CopyThunk,
    DotNumbers,
    Executable,
    GemmThunk,
    Kernel,
    KernelArgument,
    KernelThunk,
    LoopOffset,
    MemsetThunk,
    SequentialThunk,
    SliceCopyThunk,
    WhileThunk,
)
from hlo_run.backends.cuda import device as cuda_device
from hlo_run.backends.cuda import libraries
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.errors import DeviceError, UsageError


def no_binding(name: str) -> Any:
    raise ImportError(f"no module {name}")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver({})
    launches: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = []

    def combine(x: np.uint64, c: np.uint64, out: np.uint64, *, grid: Any, block: Any, stream: FakeStream) -> None:
        assert stream.handle == FakeStream.handle
        launches.append((grid, block))
        fake.floats(int(out), 6)[:] = fake.floats(int(x), 6) * 2 + fake.floats(int(c), 6)

    fake.kernels["combine"] = combine
    fake.kernels["launches"] = launches  # pyright: ignore[reportArgumentType] - handed to the tests
    monkeypatch.setattr(cuda_device, "device_problem", lambda: "")
    monkeypatch.setattr(cuda_device, "load_driver", lambda: fake)
    monkeypatch.setattr(libraries, "load_binding", no_binding)
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
    backend.close()


def test_equal_kernels_are_loaded_once(driver: FakeDriver) -> None:
    backend = CudaBackend()
    executable = _executable(np.ones((2, 3), np.float32))
    for _ in range(2):
        backend.run(executable, [np.ones((2, 3), np.float32)])
    assert driver.log.count("load") == 1
    assert len(driver.live) == 4, "the second run has the memory of the first"
    backend.close()


def test_driver_errors_become_device_errors(driver: FakeDriver) -> None:
    def broken(*pointers: Any, **how: Any) -> None:
        raise FakeError("an illegal memory access was encountered")

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


def test_memory_that_there_is_not(driver: FakeDriver) -> None:
    executable, arguments = _executable(np.ones((2, 3), np.float32)), [np.ones((2, 3), np.float32)]
    driver.free_bytes = 95
    with pytest.raises(DeviceError, match="needs 96 bytes, 95 are free on Stand-in"):
        CudaBackend().run(executable, arguments)
    driver.free_bytes, driver.most_blocks = 96, 3
    with pytest.raises(DeviceError, match="out of memory"):
        CudaBackend().run(executable, arguments)  # the three blocks are freed: the fixture looks


@pytest.mark.parametrize("selector", [0, 1, 7])
def test_loops_branches_and_library_work(driver: FakeDriver, selector: int) -> None:
    """x := x . x twice, then nothing, a copy of 0 or a copy of 0 again by the selector."""
    x, y, chosen, zero = BufferSlice(0, 0, 16), BufferSlice(1, 0, 16), BufferSlice(2, 0, 4), BufferSlice(3, 0, 16)
    matrix, square = ArraySpec("f32", (2, 2), (1, 0), x), ArraySpec("f32", (2, 2), (1, 0), y)
    gemm = GemmThunk("g", matrix, matrix, square, DotNumbers((), (1,), (), (0,)))
    clear = CopyThunk("zero", zero, x)
    executable = Executable(
        "m",
        "a100",
        (),
        (
            MemsetThunk("z", zero, 0),
            WhileThunk("w", chosen, (), (SequentialThunk("s", (gemm, CopyThunk("c", y, x))),), trip_count=2),
            ConditionalThunk("c", chosen, False, ((), (clear,), (clear,))),
        ),
        (
            BufferAllocation(0, 16, parameter_number=0, is_output=True),
            BufferAllocation(1, 16),
            BufferAllocation(2, 4, parameter_number=1),
            BufferAllocation(3, 16),
        ),
        (matrix, ArraySpec("s32", (), (), chosen)),
        matrix,
    )
    value = np.random.default_rng(2).standard_normal((2, 2)).astype(np.float32)
    backend = CudaBackend(profile=True)
    result = backend.run(executable, [value, np.array(selector, np.int32)])
    expected = np.linalg.matrix_power(value, 4) if selector == 0 else np.zeros((2, 2))
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-4, atol=1e-5)
    assert backend.profile is not None
    assert [line.split()[0] for line in backend.profile.table().splitlines()[1:-1]].count("kCublasLtMatmul") == 1
    assert "%g (kCublasLtMatmul) ran by numpy on copies of its arrays: nvmath-python is not installed" in backend.report()
    backend.close()


def test_copies_at_places_that_loops_determine(driver: FakeDriver) -> None:
    """y[r, c] := x[n-1-r, c] for the 2 rows of the outer loop and 2 columns of the inner one; offsets outside move inside."""
    x, y, flag = BufferSlice(0, 0, 16), BufferSlice(1, 0, 16), BufferSlice(2, 0, 1)
    row = SliceCopyThunk("row", x, y, 8, LoopOffset(8, -8, 1), LoopOffset(0, 8, 1))
    last = SliceCopyThunk("last", x, y, 4, LoopOffset(-4, 0), LoopOffset(4, 8, 0))
    outer = WhileThunk("o", flag, (), (WhileThunk("i", flag, (), (row, last), trip_count=2),), trip_count=2)
    spec, other = ArraySpec("f32", (2, 2), (1, 0), x), ArraySpec("f32", (2, 2), (1, 0), y)
    allocations = (BufferAllocation(0, 16, parameter_number=0), BufferAllocation(1, 16, is_output=True), BufferAllocation(2, 1))
    executable = Executable("m", "a100", (), (outer,), allocations, (spec,), other)
    backend = CudaBackend()
    result = backend.run(executable, [np.array([[1, 2], [3, 4]], np.float32)])
    np.testing.assert_array_equal(np.asarray(result), [[3, 1], [1, 1]])
    backend.close()


def test_the_device_is_a_target(driver: FakeDriver) -> None:
    target = CudaBackend().target
    assert (target.sm_name, target.core_count, target.clock_rate_ghz) == ("sm_80", 108, 1.41)
    assert driver.log == []


def test_no_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "device_problem", lambda: "pycuda is not installed")
    with pytest.raises(DeviceError) as raised:
        CudaBackend()
    assert "--platform=Host" in raised.value.hint
