"""Collectives on CUDA: plans of NCCL's calls, the calls on a recorder, and shared runs without NCCL on stand-ins for the driver.

The recorder has the names and parameters of nccl4py 0.6.0. No test here shows that NCCL does what the plans say.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_bench import array
from fake_cuda import FakeDriver

from hlo_run.artifact import ArraySpec, BufferAllocation, CollectiveThunk, Executable, MemsetThunk, RecvThunk, SendThunk, Thunk
from hlo_run.backends.cuda import device as cuda_device
from hlo_run.backends.cuda import shared_device
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.backends.cuda.collectives import NcclCall, NcclPlan, plan_collective
from hlo_run.backends.cuda.nccl import Nccl
from hlo_run.backends.shared import SharedBackend, farewell_of, serve
from hlo_run.errors import DeviceError, HloRunError, Unsupported
from hlo_run.processes.launcher import Launch
from hlo_run.processes.messages import Farewell, Parcel
from hlo_run.processes.partners import Partners

X, Y = array(0, "f32", (4, 2)), array(1, "f32", (4, 2))


def _thunk(kind: Any, operand: ArraySpec = X, result: ArraySpec = Y, **fields: Any) -> CollectiveThunk:
    return CollectiveThunk("c", kind, "c", (operand,), (result,), "kFlattenedID", **fields)


def _calls(thunk: CollectiveThunk, members: tuple[int, ...] = (0, 1), device: int = 1) -> NcclPlan:
    plan = plan_collective(thunk, members, device)
    assert isinstance(plan, NcclPlan), plan
    return plan


def test_plans() -> None:
    half = array(1, "f32", (2, 2))
    double = array(1, "f32", (8, 2))
    x, y = X.slice, Y.slice
    plans = [
        (_thunk("kAllReduce", reduction="add"), NcclCall("all_reduce", x, y, 8, "Float32", "Sum")),
        (_thunk("kReduceScatter", result=half, dim=0, reduction="maximum"), ("reduce_scatter", 4, "Float32", "Max")),
        (_thunk("kAllGather", result=double, dim=0), ("all_gather", 32, "Uint8", "")),
        (_thunk("kAllToAll", dim=0), NcclCall("all_to_all", x, y, 16)),
        (_thunk("kCollectiveBroadcast"), NcclCall("broadcast", x, y, 32, peer=0)),
    ]
    for thunk, expected in plans:
        (call,) = _calls(thunk).calls
        found = call if isinstance(expected, NcclCall) else (call.function, call.count, call.type, call.operation)
        assert found == expected
    permute = _thunk("kCollectivePermute", groups=((0, 1), (1, 2)))
    assert _calls(permute, (0, 1, 2)).calls == (NcclCall("send", x, None, 32, peer=2), NcclCall("recv", None, y, 32, peer=0))
    assert _calls(permute, (0, 1, 2), 0) == NcclPlan((NcclCall("send", x, None, 32, peer=1),), (y,))
    pieces = CollectiveThunk("c", "kAllToAll", "c", (X, X), (Y, Y), "kFlattenedID")
    assert [(call.function, call.peer) for call in _calls(pieces).calls] == [("send", 0), ("recv", 0), ("send", 1), ("recv", 1)]


@pytest.mark.parametrize(
    ("dtype", "reduction", "expected"),
    [
        ("pred", "add", (8, "Uint8", "Max")),
        ("pred", "and", (8, "Uint8", "Min")),
        ("bf16", "minimum", (8, "Bfloat16", "Min")),
        ("c64", "add", (16, "Float32", "Sum")),
        ("c64", "multiply", "no multiply of c64"),
        ("s16", "add", "no add of s16"),
        ("s32", "xor", "no xor of s32"),
    ],
)
def test_reductions_of_all_types(dtype: str, reduction: str, expected: Any) -> None:
    operand, result = array(0, dtype, (4, 2)), array(1, dtype, (4, 2))
    plan = plan_collective(_thunk("kAllReduce", operand, result, reduction=reduction), (0, 1), 0)
    if isinstance(expected, str):
        assert isinstance(plan, str)
        assert expected in plan
    else:
        assert isinstance(plan, NcclPlan)
        assert [(call.count, call.type, call.operation) for call in plan.calls] == [expected]


def test_what_nccl_cannot_do() -> None:
    wide, by_columns = array(1, "f32", (4, 4)), array(1, "f32", (8, 2), (0, 1))
    flat = array(0, "f32", (1, 4))
    assert "major dimension" in str(plan_collective(_thunk("kAllGather", result=wide, dim=1), (0, 1), 0))
    assert "major dimension" in str(plan_collective(_thunk("kAllGather", result=by_columns, dim=0), (0, 1), 0))
    assert isinstance(plan_collective(_thunk("kAllGather", flat, array(1, "f32", (1, 8)), dim=1), (0, 1), 0), NcclPlan)
    assert "major dimension" in str(plan_collective(_thunk("kAllToAll", dim=1), (0, 1), 0))
    for thunk in (_thunk("kRaggedAllToAll"), _thunk("kCollectivePermute", slice_sizes=((1, 1),))):
        assert "on the device" in str(plan_collective(thunk, (0, 1), 0))


# ---- calls ----------------------------------------------------------------------------------------------------------


class _DataType(IntEnum):
    Uint8 = 1
    Float32 = 7


class _RedOp(IntEnum):
    Sum = 0


class _Error(Exception):
    pass


def _identity(data: bytearray) -> tuple[str, bytes]:
    return "id", bytes(data)


class Recorder:
    """A stand-in for `nccl.bindings.nccl`: notes calls, and gives communicators names."""

    NCCLError, DataType, RedOp = _Error, _DataType, _RedOp
    UniqueId = SimpleNamespace(from_buffer=_identity)

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.fails = ""

    def get_unique_id(self) -> bytes:
        return b"unique"

    def comm_init_rank(self, ranks: int, identity: Any, rank: int) -> str:
        self.log.append(("init", ranks, identity, rank))
        return f"communicator of {ranks}"

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            self.log.append((name, *arguments))
            if name == self.fails:
                raise _Error("unhandled cuda error")

        return call


@pytest.fixture
def pair() -> Any:
    here, there = socket.socketpair()
    made = [Partners(Launch(2, number), {1 - number: side}, 1 << 20) for number, side in enumerate((here, there))]
    for partners in made:
        partners.start()
    yield made
    for partners in made:
        partners.close(Farewell(0))


def test_groups_are_opened_in_order_and_calls_are_made_as_a_group(pair: list[Partners]) -> None:
    recorders = [Recorder(), Recorder()]
    both = [Nccl(recorder, partners, 77) for recorder, partners in zip(recorders, pair, strict=True)]
    # Process 1 leads a group of its own order, and joins that of process 0.
    pair[1].post(0, Parcel("group", 0, "", (1, 0)), [memoryview(b"other")])
    for nccl in both:
        nccl.open([(1, 0), (0, 1), (0, 1), (2, 3)], 10, time.monotonic)
    assert recorders[0].log == [("init", 2, ("id", b"unique"), 0), ("init", 2, ("id", b"other"), 1)]
    assert recorders[1].log == [("init", 2, ("id", b"unique"), 1), ("init", 2, ("id", b"unique"), 0)]
    recorders[0].log.clear()
    plan = _calls(_thunk("kAllReduce", reduction="add"), device=0)
    moves = _calls(_thunk("kCollectivePermute", groups=((0, 1), (1, 0))), device=0)
    both[0].run(NcclPlan((*plan.calls, *moves.calls)), (0, 1), lambda piece: 1000 * (piece.allocation + 1))
    of_two = "communicator of 2"
    assert recorders[0].log == [
        ("group_start",),
        ("all_reduce", 1000, 2000, 8, 7, 0, of_two, 77),
        ("send", 1000, 32, 1, 1, of_two, 77),
        ("recv", 2000, 32, 1, 1, of_two, 77),
        ("group_end",),
    ]
    recorders[0].fails = "all_reduce"
    with pytest.raises(DeviceError, match="NCCL failed in the group of devices 0, 1: unhandled cuda error"):
        both[0].run(plan, (0, 1), lambda piece: 0)
    assert recorders[0].log[-1] == ("group_end",)
    both[0].close()
    assert recorders[0].log[-2:] == [("comm_destroy", of_two)] * 2
    with pytest.raises(DeviceError, match="has ended"):
        both[0].run(plan, (0, 1), lambda piece: 0)


def test_nccl_ends_when_a_process_dies(pair: list[Partners], monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(shared_device, "load_nccl", lambda: recorder)
    monkeypatch.setattr(shared_device, "_WATCH_SECONDS", 0.01)
    pair[0] = partners = _fresh(pair)
    device = shared_device.SharedDevice(partners, 2, 30, 77)
    executable = _program((_thunk("kAllReduce", reduction="add", groups=((0, 1),)),))
    with device.running(executable, 2, 1):
        pair[1].close(Farewell(5, 1, "a fault in a kernel"))
        for _ in range(500):
            if device.problem is not None:
                break
            time.sleep(0.01)
    assert device.problem is not None
    assert device.problem.message == "process 1: a fault in a kernel"
    assert recorder.log[-1] == ("comm_abort", "communicator of 2")


def _fresh(pair: list[Partners]) -> Partners:
    """Replace both by partners that have not started; the second one starts."""
    for partners in pair:
        partners.close(Farewell(0))
    here, there = socket.socketpair()
    pair[1] = Partners(Launch(2, 1), {0: there}, 1 << 20)
    pair[1].start()
    return Partners(Launch(2, 0), {1: here}, 1 << 20)


# ---- shared runs ----------------------------------------------------------------------------------------------------


def _program(thunks: tuple[Thunk, ...]) -> Executable:
    sizes = [X.slice.size_bytes] * 5
    kinds = {0: 0}
    allocations = tuple(BufferAllocation(n, size, kinds.get(n), is_output=n > 0) for n, size in enumerate(sizes))
    results = (Y, array(2, "f32", (4, 2)), array(3, "u32", (8,)), array(4, "f32", (4, 2)))
    return Executable("m", "a100", (), thunks, allocations, (X,), results)


def test_a_shared_run_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy does the collectives, on copies that go over sockets; messages go the same way."""

    def no_nccl() -> None:
        raise ImportError("No module named 'nccl'")

    drivers = itertools.cycle([FakeDriver({}), FakeDriver({})])
    monkeypatch.setattr(cuda_device, "device_problem", lambda: "")
    monkeypatch.setattr(cuda_device, "load_driver", lambda: next(drivers))
    monkeypatch.setattr(shared_device, "load_nccl", no_nccl)
    moved, passed = array(2, "f32", (4, 2)), array(4, "f32", (4, 2))
    program = _program(
        (
            _thunk("kAllReduce", reduction="add", groups=((0, 1),)),
            _thunk("kCollectivePermute", result=moved, groups=((0, 1),)),
            MemsetThunk("r", array(3, "u32", (8,)).slice, 0, "kReplicaId"),
            SendThunk("s", 1, False, X, ((1, 0),)),
            RecvThunk("v", 1, passed, ((1, 0),)),
        )
    )
    here, there = socket.socketpair()
    backends = [CudaBackend(device=number, wait_seconds=20) for number in range(2)]
    errors: list[HloRunError] = []

    def process_1() -> None:
        partners = Partners(Launch(2, 1), {0: there}, 1 << 20)
        try:
            serve(backends[1], program, partners, 2)
        except HloRunError as error:
            errors.append(error)
        partners.close(farewell_of(errors[0] if errors else None, partners))
        backends[1].leave(failed=bool(errors))

    thread = threading.Thread(target=process_1, daemon=True)
    thread.start()
    partners = Partners(Launch(2, 0), {1: here}, 1 << 20)
    shared = SharedBackend(backends[0], partners, 2)
    values = [np.arange(8, dtype=np.float32).reshape(4, 2) * scale for scale in (1, 10)]
    first, second = shared.run_devices(program, [[value] for value in values], 2, 1)
    assert "nccl4py is not installed" in shared.report()
    partners.close(Farewell(0))
    thread.join(20)
    assert not errors
    for result, replica, given, passed_on in ((first, 0, 0 * X_ONES, values[1]), (second, 1, values[0], 0 * X_ONES)):
        assert isinstance(result, tuple)
        expected = (values[0] + values[1], given, np.full(8, replica, np.uint32), passed_on)
        for found, wanted in zip(result, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(found), wanted)
    for backend in backends:
        backend.close()


X_ONES = np.ones((4, 2), np.float32)


def test_a_process_has_one_device(pair: list[Partners]) -> None:
    with pytest.raises(Unsupported, match="CUDA has one device per process, but 2 share 4"):
        shared_device.SharedDevice(pair[0], 4, 30, 77)
