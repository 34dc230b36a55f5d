"""HostBackend: buffers, layouts, tuples, constants, copies, timeouts; checks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_kernels import kernel
from numpy.typing import NDArray

from hlo_run.artifact import (
    ArraySpec,
    ArrayTree,
    BufferAllocation,
    BufferSlice,
    ConstantData,
    CopyThunk,
    Executable,
    Kernel,
    KernelArgument,
    KernelThunk,
    Thunk,
)
from hlo_run.backends import BACKENDS, Backend, load_backend
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.jit import llvm
from hlo_run.backends.host.jit.engine import JitEngine, ReadyLaunch
from hlo_run.backends.host.ptx.control_flow import KernelGraph
from hlo_run.errors import DeviceError, OutOfTime, Unsupported, UsageError
from hlo_run.records import replace

DATA = Path(__file__).resolve().parents[2] / "data" / "ptx"
ADD_ONE = kernel(
    """
    add.s64 %d1, %p0, %w4; ld.global.nc.f32 %r1, [%d1];
    add.f32 %r1, %r1, 0f3F800000;
    add.s64 %d2, %p1, %w4; st.global.f32 [%d2], %r1;""",
    2,
)


def executable(
    ptx: str,
    thunks: Sequence[Thunk],
    allocations: Sequence[BufferAllocation],
    parameters: Sequence[ArrayTree],
    result: ArrayTree,
    threads: int,
) -> Executable:
    return Executable(
        "m", "h100", (Kernel("k", ptx, (1, 1, 1), (threads, 1, 1)),), tuple(thunks), tuple(allocations), tuple(parameters), result
    )


def launch(*arguments: tuple[BufferSlice, bool]) -> KernelThunk:
    return KernelThunk("fusion", "k", tuple(KernelArgument(piece, written) for piece, written in arguments))


def whole(allocation: int, size: int) -> BufferSlice:
    return BufferSlice(allocation, 0, size)


def add_one(dims: tuple[int, ...], parameter_layout: tuple[int, ...], result_layout: tuple[int, ...]) -> Executable:
    size = 4 * int(np.prod(dims))
    return executable(
        ADD_ONE,
        [launch((whole(0, size), False), (whole(1, size), True))],
        [BufferAllocation(0, size, 0), BufferAllocation(1, size, is_output=True)],
        [ArraySpec("f32", dims, parameter_layout, whole(0, size))],
        ArraySpec("f32", dims, result_layout, whole(1, size)),
        size // 4,
    )


def test_it_is_a_backend() -> None:
    backend: Backend = HostBackend()
    assert backend.name == "Host"
    assert "CPU" in backend.description
    assert load_backend("Host") is HostBackend
    assert sorted(BACKENDS) == ["CUDA", "Host"]


def test_layouts_are_physical_orders() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    before = x.copy()
    result = HostBackend().run(add_one((4, 6), (1, 0), (1, 0)), [x])
    assert isinstance(result, np.ndarray)
    assert (result == x + 1).all()
    # The kernel adds in physical order: another layout of the result is a transposition.
    moved = HostBackend().run(add_one((4, 6), (0, 1), (1, 0)), [x])
    assert isinstance(moved, np.ndarray)
    assert (moved == (x + 1).T.reshape(4, 6)).all()
    assert (x == before).all()


def test_tuples_copies_and_constants() -> None:
    spec = ArraySpec("f32", (8,), (0,), whole(0, 32))
    table = np.arange(8, dtype=np.float32)
    constant = ConstantData("f32", (2, 4), (0, 1), table.tobytes())
    program = executable(
        ADD_ONE,
        [launch((whole(1, 32), False), (whole(2, 32), True)), CopyThunk("copy", whole(0, 32), whole(3, 32))],
        [
            BufferAllocation(0, 32, 0),
            BufferAllocation(1, 32, constant=constant),
            BufferAllocation(2, 32, is_output=True),
            BufferAllocation(3, 32, is_output=True),
        ],
        [(spec,)],
        ((ArraySpec("f32", (8,), (0,), whole(2, 32)),), ArraySpec("f32", (8,), (0,), whole(3, 32)), spec),
        8,
    )
    x = np.random.default_rng(1).standard_normal(8).astype(np.float32)
    result: Any = HostBackend().run(program, [(x,)])
    assert (result[0][0] == table.reshape(2, 4).T.reshape(-1) + 1).all()
    assert (result[1] == x).all()
    assert (result[2] == x).all()
    assert not np.shares_memory(result[2], x)


def test_memory_that_nothing_wrote_is_poison() -> None:
    program = executable(
        kernel("", 1),
        [launch((whole(0, 16), True))],
        [BufferAllocation(0, 16, is_output=True)],
        [],
        tuple(
            ArraySpec(dtype, (2,), (0,), BufferSlice(0, offset, size))
            for dtype, offset, size in (("f32", 0, 8), ("bf16", 8, 4), ("s32", 8, 8))
        ),
        1,
    )
    floats, halves, integers = (np.asarray(item) for item in HostBackend().run(program, []))
    assert np.isnan(floats).all()
    assert np.isnan(halves.astype(np.float32)).all()
    assert (integers < 0).all()


def test_slices_of_one_allocation() -> None:
    # Input and output share an allocation. An access beyond the slice is a fault, even inside the allocation.
    pieces = BufferSlice(0, 0, 64), BufferSlice(0, 64, 64)
    allocations = [BufferAllocation(0, 128, 0)]
    parameter, result = ArraySpec("f32", (16,), (0,), pieces[0]), ArraySpec("f32", (16,), (0,), pieces[1])
    x = np.arange(16, dtype=np.float32)
    program = executable(ADD_ONE, [launch((pieces[0], False), (pieces[1], True))], allocations, [parameter], result, 16)
    assert (np.asarray(HostBackend().run(program, [x])) == x + 1).all()
    program = executable(ADD_ONE, [launch((pieces[0], False), (pieces[1], True))], allocations, [parameter], result, 17)
    with pytest.raises(DeviceError, match=r"offset 64 of argument 0 \(allocation 0\)"):
        HostBackend().run(program, [x])


def test_read_only_arguments_stay_whole() -> None:
    program = executable(
        kernel("st.global.u32 [%p0], 5;", 1),
        [launch((whole(0, 32), False))],
        [BufferAllocation(0, 32, 0)],
        [ArraySpec("f32", (8,), (0,), whole(0, 32))],
        ArraySpec("f32", (8,), (0,), whole(0, 32)),
        1,
    )
    with pytest.raises(DeviceError, match="forbidden global store") as caught:
        HostBackend().run(program, [np.zeros(8, np.float32)])
    assert "read-only" in caught.value.notes[0]


def test_endless_kernels_time_out() -> None:
    program = executable(kernel("L: bra L;", 0), [launch()], [], [], (), 32)
    with pytest.raises(OutOfTime, match="ran out of time"):
        HostBackend(timeout_seconds=0.05).run(program, [])


# ---- engines --------------------------------------------------------------------------------------------------------


def test_engines_give_the_same() -> None:
    x = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    for engine in ("auto", "emulator", "jit"):
        backend = HostBackend(engine=engine)
        for _ in range(2):
            assert (np.asarray(backend.run(add_one((4, 6), (1, 0), (1, 0)), [x])) == x + 1).all()
        assert "CPU" in backend.description
    with pytest.raises(UsageError, match="unknown host engine 'gpu'"):
        HostBackend(engine="gpu")
    with pytest.raises(UsageError, match="needs the emulator"):
        HostBackend(engine="jit", checks=("race",))


def test_auto_compiles_long_launches_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    ready = JitEngine.ready

    def spy(self: JitEngine, graph: KernelGraph, launch: Launch, deadline: float | None = None) -> ReadyLaunch:
        ran.append(launch.grid_blocks)
        return ready(self, graph, launch, deadline)

    monkeypatch.setattr(JitEngine, "ready", spy)
    program = add_one((64,), (0,), (0,))
    HostBackend().run(program, [np.zeros(64, np.float32)])
    assert not ran
    HostBackend(engine="jit").run(program, [np.zeros(64, np.float32)])
    long = replace(program, kernels=(replace(program.kernels[0], grid=(100_000, 1, 1)),))
    with pytest.raises(DeviceError, match="out-of-bounds"):  # all blocks but the first
        HostBackend().run(long, [np.zeros(64, np.float32)])
    assert ran == [1, 100_000]


def test_auto_compiles_what_runs_and_devices_together_launch_often() -> None:
    program = add_one((64,), (0,), (0,))
    one = [np.zeros(64, np.float32)]
    alone, team = HostBackend(), HostBackend()

    def runs_until_native(backend: HostBackend, run: Callable[[], object]) -> int:
        runs = 0
        while not backend.native_kernels:
            assert np.all(np.asarray(run()) == 1)
            runs += 1
        assert np.all(np.asarray(run()) == 1)
        return runs

    many = runs_until_native(alone, lambda: alone.run(program, one))
    few = runs_until_native(team, lambda: team.run_devices(program, [one] * 64, 64, 1))
    assert few == -(-many // 64) > 1


def test_what_the_jit_cannot_do_the_emulator_does() -> None:
    # A named barrier for all threads, their number in a register that only the launch knows.
    body = """
    add.s64 %d1, %p0, %w4; ld.global.u32 %r1, [%d1]; add.u32 %r1, %r1, 64; sub.u32 %r1, %r1, %i;
    bar.sync 1, %r1;
    add.s64 %d2, %p1, %w4; st.global.u32 [%d2], %r1;"""
    spec = ArraySpec("u32", (64,), (0,), whole(0, 256))
    program = executable(
        kernel(body, 2),
        [launch((whole(0, 256), False), (whole(1, 256), True))],
        [BufferAllocation(0, 256, 0), BufferAllocation(1, 256, is_output=True)],
        [spec],
        replace(spec, slice=whole(1, 256)),
        64,
    )
    arguments = [np.arange(64, dtype=np.uint32)]
    with pytest.raises(Unsupported, match=r"bar\.sync"):
        HostBackend(engine="jit").run(program, arguments)
    long = replace(program, kernels=(replace(program.kernels[0], grid=(1, 1, 1)),))
    assert (np.asarray(HostBackend().run(long, arguments)) == 64).all()


def test_faults_of_native_code_name_the_thread() -> None:
    pieces = BufferSlice(0, 0, 64), BufferSlice(0, 64, 64)
    parameter, result = ArraySpec("f32", (16,), (0,), pieces[0]), ArraySpec("f32", (16,), (0,), pieces[1])
    threads = [launch((pieces[0], False), (pieces[1], True))]
    program = executable(ADD_ONE, threads, [BufferAllocation(0, 128, 0)], [parameter], result, 17)
    with pytest.raises(DeviceError, match=r"out-of-bounds global load .* argument 0 .*thread \(16, 0, 0\) of block \(0, 0, 0\)"):
        HostBackend(engine="jit").run(program, [np.zeros(16, np.float32)])


@pytest.mark.parametrize("body", ["L: bra L;", "L: bar.sync 0; bra L;", "L: add.u32 %r1, %r1, 1; bra L;"])
def test_endless_native_code_times_out(body: str) -> None:
    program = executable(kernel(body, 0), [launch()], [], [], (), 32)
    with pytest.raises(OutOfTime, match="ran out of time"):
        HostBackend(engine="jit", timeout_seconds=0.05).run(program, [])


def test_object_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(8, dtype=np.float32)
    # Compile the player of all executables first.
    HostBackend(engine="jit").run(add_one((8,), (0,), (0,)), [x])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[str] = []
    compile_object = llvm.compile_object
    monkeypatch.setattr(llvm, "compile_object", lambda text, name: made.append(text) or compile_object(text, name))  # type: ignore[misc]
    for turn in range(3):
        got = HostBackend(engine="jit").run(add_one((8,), (0,), (0,)), [x])
        assert (np.asarray(got) == x + 1).all()
        (file,) = (tmp_path / "hlo-run" / "host-jit").iterdir()
        if turn == 1:
            file.write_bytes(file.read_bytes()[:-9])  # cut short: made again
    assert len(made) == 2


def chain(count: int) -> Executable:
    """Kernels that add one to a buffer in place: 1 and 3, 5, .. differ in names, the others in how many threads they have."""
    program = add_one((64,), (0,), (0,))
    (first,) = program.kernels
    kernels: list[Kernel] = []
    for number in range(count):
        block = (64 if number % 2 else 64 - number, 1, 1)
        kernels.append(replace(first, name=f"k{number}", ptx=first.ptx.replace(" k(", f" k{number}("), block=block))
    both = (KernelArgument(whole(1, 256), False), KernelArgument(whole(1, 256), True))
    thunks = [CopyThunk("copy", whole(0, 256), whole(1, 256)), *(KernelThunk(k.name, k.name, both) for k in kernels)]
    return replace(program, kernels=tuple(kernels), thunks=tuple(thunks))


# Other tests of the process import JAX, which warns about forks. This test forks on purpose.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("cores", [1, 2])
def test_code_of_many_kernels_is_made_at_once(cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(llvm, "available_cores", lambda: cores)
    monkeypatch.setattr(llvm, "can_fork", lambda: True)
    x = np.arange(64, dtype=np.float32)
    warm = HostBackend(engine="jit")
    for _ in range(2):
        warm.run(chain(1), [x])  # the list of calls has code of its own, made once in a process
    for file in (tmp_path / "hlo-run" / "host-jit").iterdir():
        file.unlink()
    batches: list[list[str]] = []
    compile_objects = llvm.compile_objects

    def compile_batch(texts: list[str], kernels: list[str]) -> list[bytes]:
        batches.append(texts)
        return compile_objects(texts, kernels)

    monkeypatch.setattr(llvm, "compile_objects", compile_batch)
    backend = HostBackend(engine="jit")
    for _ in range(2):
        got = np.asarray(backend.run(chain(9), [x]))
        # Kernel 2n adds to the first 64 - 2n elements only.
        assert (got == x + 4 + np.sum(np.arange(64)[:, None] < 64 - np.arange(0, 9, 2), axis=1)).all()
    assert [len(set(batch)) for batch in batches if batch] == [5]
    assert len(list((tmp_path / "hlo-run" / "host-jit").iterdir())) == 5


def test_wrong_arguments_are_refused() -> None:
    program = add_one((4,), (0,), (0,))
    with pytest.raises(UsageError, match="takes 1 arguments, got 0"):
        HostBackend().run(program, [])
    for wrong in (np.zeros(5, np.float32), np.zeros(4, np.float64), (np.zeros(4, np.float32),)):
        with pytest.raises(UsageError, match=r"argument 0 must be f32\[4\]"):
            HostBackend().run(program, [wrong])
    with pytest.raises(UsageError, match="unknown host check 'memory'"):
        HostBackend(checks=("memory",))


def test_unknown_kernels_and_instructions() -> None:
    thunk = KernelThunk("t", "k", ())
    missing = Executable(
        "m", "h100", (Kernel("k", kernel("", 0).replace(" k(", " other("), (1, 1, 1), (1, 1, 1)),), (thunk,), (), (), ()
    )
    with pytest.raises(DeviceError, match="no kernel 'k'"):
        HostBackend().run(missing, [])
    unknown = executable(kernel("wgmma.fence.sync.aligned;", 0), [thunk], [], [], (), 1)
    with pytest.raises(Unsupported, match="wgmma"):
        HostBackend().run(unknown, [])


def test_statistics_are_kept_on_request() -> None:
    backend = HostBackend(checks=("race", "statistics"))
    backend.run(add_one((64,), (0,), (0,)), [np.zeros(64, np.float32)])
    (statistics,) = backend.statistics
    assert statistics.kernel == "k"
    assert [(item.kind, item.requests, item.transactions) for item in statistics.of("global")] == [
        ("load", 2, 8),
        ("store", 2, 8),
    ]
    assert backend.report().startswith("k")
    silent = HostBackend()
    silent.run(add_one((64,), (0,), (0,)), [np.zeros(64, np.float32)])
    assert (silent.statistics, silent.report()) == ((), "")


def gelu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The example's formula, every operation rounded to bf16."""

    def bf16(y: NDArray[Any]) -> NDArray[np.float32]:
        return y.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)

    cube = bf16(x * bf16(x * x))
    inner = bf16(bf16(x + bf16(cube * bf16(np.array(0.044715)))) * bf16(np.array(0.7978845608)))
    return bf16(x * bf16(bf16(bf16(np.tanh(inner.astype(np.float64))) + 1) * 0.5))


def test_real_kernel_of_the_gelu_example() -> None:
    """XLA's own PTX for the example on all bf16 values, vectors of four and an approximate tanh in the middle."""
    text = (DATA / "gelu_h100.ptx").read_text()
    count = 1 << 16
    size = 2 * count
    x = np.arange(count, dtype=np.uint32).astype(np.uint16).view(ml_dtypes.bfloat16)
    program = Executable(
        "gelu",
        "h100",
        (Kernel("fusion", text, (count // 512, 1, 1), (128, 1, 1)),),
        (KernelThunk("fusion", "fusion", (KernelArgument(whole(0, size), False), KernelArgument(whole(1, size), True))),),
        (BufferAllocation(0, size, 0), BufferAllocation(1, size, is_output=True)),
        (ArraySpec("bf16", (count,), (0,), whole(0, size)),),
        ArraySpec("bf16", (count,), (0,), whole(1, size)),
    )
    got = np.asarray(HostBackend().run(program, [x])).astype(np.float32)
    with np.errstate(all="ignore"):
        want = gelu(x.astype(np.float32))
        close = np.abs(got - want) <= np.abs(want) * 2.0**-7 + 1e-38
    assert (close | (got == want) | (np.isnan(got) & np.isnan(want))).all()
    assert (got == want)[np.isfinite(want)].mean() > 0.99
