"""Collectives on CUDA: plans of NCCL's calls, and shared runs on stand-ins for NCCL and the driver.

The stand-in has the names and parameters of nccl4py 0.6.0, and does what NCCL's documentation says. No GPU has seen the plans.
"""

from __future__ import annotations

import itertools
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from clocks import TickingClock, use_clock
from cuda_bench import array, values
from fake_cuda import FakeDriver
from fake_nccl import SIGNATURES, FakeNccl, Network, Result
from fake_streams import QueuedDriver

from hlo_run.artifact import (
    ArraySpec,
    BufferAllocation,
    BufferSlice,
    CollectiveThunk,
    Executable,
    MemsetThunk,
    RecvThunk,
    SendThunk,
    Thunk,
)
from hlo_run.backends.cuda import device as cuda_device
from hlo_run.backends.cuda import nccl as nccl_module
from hlo_run.backends.cuda import shared_device
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.backends.cuda.collectives import NcclCall, NcclPlan, plan_collective
from hlo_run.backends.cuda.nccl import Nccl
from hlo_run.backends.cuda.streams import Streams
from hlo_run.backends.library.arrays import store, view
from hlo_run.backends.library.collectives import combine
from hlo_run.backends.shared import SharedBackend, serve
from hlo_run.errors import DeviceError, HloRunError, Unsupported
from hlo_run.processes.launcher import Launch
from hlo_run.processes.messages import Parcel
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
        ("f8e5m2", "add", "no add of f8e5m2"),
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


class _Post:
    """Stands in for the partners of a process: what one posts, all others take."""

    def __init__(self, launch: Launch, posted: dict[tuple[int, ...], bytes]) -> None:
        self.launch, self._posted = launch, posted

    def post(self, number: int, parcel: Parcel, arrays: Sequence[memoryview]) -> None:
        self._posted[parcel.numbers] = bytes(arrays[0])

    def take(self, number: int, parcel: Parcel, deadline: float | None) -> list[bytearray]:
        return [bytearray(self._posted[parcel.numbers])]


def _cases() -> Iterator[tuple[CollectiveThunk, int]]:
    """Yield a collective of every kind that NCCL does, and the number of members."""
    for dtype, reduction in (
        ("f32", "add"),
        ("bf16", "maximum"),
        ("pred", "multiply"),
        ("c64", "add"),
        ("u64", "minimum"),
        ("s8", "add"),
        ("f8e4m3fn", "add"),
        ("f8e5m2", "maximum"),
    ):
        one, other = array(0, dtype, (4, 2)), array(1, dtype, (4, 2))
        yield _thunk("kAllReduce", one, other, reduction=reduction), 3
        yield _thunk("kReduceScatter", array(0, dtype, (6, 2)), array(1, dtype, (2, 2)), dim=0, reduction=reduction), 3
    for dtype in ("f16", "s16", "f8e4m3fn"):
        yield _thunk("kAllGather", array(0, dtype, (2, 3)), array(1, dtype, (6, 3)), dim=0), 3
        yield _thunk("kAllToAll", array(0, dtype, (3, 6), (0, 1)), array(1, dtype, (3, 6), (0, 1)), dim=1), 3
        one, other = array(0, dtype, (4, 2)), array(1, dtype, (4, 2))
        yield _thunk("kCollectiveBroadcast", one, other), 2
        yield _thunk("kCollectivePermute", one, other, groups=((0, 2), (2, 1))), 3
    operands, results = [tuple(array(n, "f32", (2,)) for n in numbers) for numbers in ((0, 1, 2), (3, 4, 5))]
    yield CollectiveThunk("c", "kAllToAll", "c", operands, results, "kFlattenedID"), 3


@pytest.mark.parametrize(
    ("thunk", "count"), [pytest.param(*case, id=f"{case[0].kind}-{case[0].operands[0].dtype}") for case in _cases()]
)
def test_calls_of_nccl_compute_what_numpy_does(thunk: CollectiveThunk, count: int) -> None:
    members = tuple(range(count))
    draw = partial(values, np.random.default_rng(1))
    network = Network()
    drivers = [FakeDriver({}) for _ in members]
    places = [
        {spec.slice.allocation: int(driver.mem_alloc(256)) for spec in (*thunk.operands, *thunk.results)} for driver in drivers
    ]
    # Whole numbers, so that no sum is rounded.
    everyones = [[np.rint(value) if value.dtype.kind in "fc" else value for value in map(draw, thunk.operands)] for _ in members]
    waiting: list[tuple[Nccl, NcclPlan, Any]] = []
    posted: dict[tuple[int, ...], bytes] = {}
    for member, driver in enumerate(drivers):
        binding = FakeNccl(network, driver.view)
        partners = cast("Any", _Post(Launch(count, member), posted))
        nccl = Nccl(binding, partners)
        nccl.open([members], None, lambda members, ready: None)

        def address(piece: BufferSlice, own: dict[int, int] = places[member]) -> int:
            return own[piece.allocation] + piece.offset_bytes

        for spec, value in zip(thunk.operands, everyones[member], strict=True):
            data = np.empty(spec.slice.size_bytes, np.uint8)
            store(spec, data, value)
            driver.memcpy_htod(address(spec.slice), data)
        plan = plan_collective(thunk, members, member, reduces_narrow=True)
        assert isinstance(plan, NcclPlan), plan
        waiting.append((nccl, plan, address))
    for nccl, plan, address in waiting:
        nccl.run(plan, members, address, 77)
    for member, expected in enumerate(combine(thunk, everyones)):
        for spec, wanted in zip(thunk.results, expected, strict=True):
            if waiting[member][1].cleared:
                continue  # the device fills it with zeros
            data = drivers[member].view(waiting[member][2](spec.slice), spec.slice.size_bytes)
            np.testing.assert_array_equal(np.array(view(spec, data)), wanted)


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_the_stand_in_has_the_signatures_of_the_binding() -> None:
    binding = pytest.importorskip("nccl.bindings.nccl", reason="nccl4py is not installed")
    for line in SIGNATURES:
        assert getattr(binding, line.partition("(")[0]).__doc__.partition("\n")[0] == line
    for name in ("DataType", "RedOp", "Result"):
        there = {member.name: member.value for member in getattr(binding, name)}
        assert there | {member.name: member.value for member in getattr(FakeNccl, name)} == there


@pytest.fixture
def pair() -> Any:
    here, there = socket.socketpair()
    made = [Partners(Launch(2, number), {1 - number: side}, 1 << 20) for number, side in enumerate((here, there))]
    for partners in made:
        partners.start()
    yield made
    for partners in made:
        partners.close()


def _no_memory(address: int, size: int) -> Any:
    raise AssertionError(f"{size} bytes at {address}")


def _poll(members: tuple[int, ...], ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.001)


def test_groups_are_opened_in_the_same_order_and_closed(pair: list[Partners]) -> None:
    network = Network()
    bindings = [FakeNccl(network, _no_memory) for _ in pair]
    both = [Nccl(binding, partners) for binding, partners in zip(bindings, pair, strict=True)]

    def process(number: int) -> None:
        both[number].open([(1, 0), (0, 1), (0, 1), (2, 3)], None, _poll)
        both[number].close()

    _at_once(process)
    assert network.ids == 2
    assert sorted(map(len, network.finalized.values())) == [2, 2]
    for binding in bindings:
        assert [name for name in binding.log if name in ("comm_init_rank_config", "comm_finalize", "comm_destroy")] == [
            *["comm_init_rank_config"] * 2,
            *["comm_finalize", "comm_destroy"] * 2,
        ]
    with pytest.raises(DeviceError, match="the group of devices 0, 1 has ended"):
        both[0].is_ready((0, 1))


def test_errors_of_nccl_name_the_group_and_say_what_nccl_said(pair: list[Partners]) -> None:
    binding = FakeNccl(Network(), _no_memory)
    nccl = Nccl(binding, pair[0])
    nccl.open([(0,)], None, _poll)
    plan = _calls(_thunk("kAllReduce", reduction="add"), (0,), 0)
    binding.failing = {"all_reduce": Result.InvalidUsage}
    with pytest.raises(DeviceError, match=r"NCCL failed in the group of devices 0: InvalidUsage \(5\)") as caught:
        nccl.run(plan, (0,), lambda piece: 0, 77)
    assert caught.value.notes == ("socketProgress: Connection closed by remote peer",)
    assert binding.log[-2:] == ["get_last_error", "group_end"], "a group that has begun ends"
    binding.failing = {"async": Result.RemoteError}
    with pytest.raises(DeviceError, match=r"RemoteError \(6\)"):
        nccl.is_ready((0,))
    nccl.abort()
    assert binding.log[-1] == "comm_abort"


def test_a_library_that_is_not_there_is_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise RuntimeError('Failure finding "libnccl.so.2"')

    monkeypatch.setitem(sys.modules, "nccl", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "nccl.bindings", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", SimpleNamespace(get_version=missing))
    with pytest.raises(ImportError, match="libnccl"):
        nccl_module.load_nccl()


@pytest.mark.parametrize("event", ["dies", "is late", "fails"])
def test_nccl_ends_when_another_process_does_not_do_its_part(
    event: str, pair: list[Partners], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 opens the group, but never comes to the collective."""
    network = Network()
    driver = QueuedDriver()
    streams = Streams(driver, driver.Stream())
    bindings = [FakeNccl(network, driver.view, driver.do) for _ in pair]
    thunk = _thunk("kAllReduce", reduction="add", groups=((0, 1),))
    partners = _fresh(pair)
    monkeypatch.setattr(shared_device, "load_nccl", lambda: bindings[0])
    device = shared_device.SharedDevice(partners, 2, 5000, streams)
    other = Nccl(bindings[1], pair[1])

    def process(number: int) -> None:
        if number:
            other.open([(0, 1)], None, _poll)
        else:
            device.begin(_program((thunk,)), 2, 1)

    _at_once(process)
    if event == "dies":
        pair[1].close(DeviceError("a fault in a kernel"))
    if event == "is late":
        use_clock(monkeypatch, TickingClock(1000), "backends.cuda.shared_device", "backends.exchange.patience")
    if event == "fails":
        bindings[0].failing = {"async": Result.RemoteError}
    message = {
        "dies": "process 1: a fault in a kernel",
        "is late": "device 0 waits for device 1, which did not arrive within 5000 s",
        "fails": "NCCL failed in the group of devices 0, 1: RemoteError",
    }
    memory = cast("Any", SimpleNamespace(address=_nowhere))

    def collective() -> None:
        assert not device.collective(thunk, memory), "the host goes on"
        device.settle()

    with pytest.raises(DeviceError, match=message[event]) as caught:
        collective()
    if event != "fails":
        assert "%c: NCCL does not say which of its group {0,1} did not arrive" in caught.value.notes[-1]
    device.leave(failed=True)
    assert bindings[0].log[-1] == "comm_abort"


def _nowhere(piece: BufferSlice) -> int:
    return 0 * piece.offset_bytes


def _at_once(process: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=process, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fresh(pair: list[Partners]) -> Partners:
    """Replace both by partners that have not started; the second one starts."""
    for partners in pair:
        partners.close()
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


@pytest.mark.parametrize("has_nccl", [True, False])
def test_a_shared_run(has_nccl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL does the collectives, or numpy on copies that go over sockets; messages go that way always."""
    drivers, network = [FakeDriver({}), FakeDriver({})], Network()
    bindings = {number: FakeNccl(network, driver.view) for number, driver in enumerate(drivers)}
    opened = itertools.cycle(drivers)
    local = threading.local()

    def load() -> FakeNccl:
        if not has_nccl:
            raise ImportError("No module named 'nccl'")
        return bindings[local.number]

    monkeypatch.setattr(cuda_device, "device_problem", lambda: "")
    monkeypatch.setattr(cuda_device, "load_driver", lambda: next(opened))
    monkeypatch.setattr(shared_device, "load_nccl", load)
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
    backends = [CudaBackend(device=number, wait_seconds=5000) for number in range(2)]
    errors: list[HloRunError] = []

    def process_1() -> None:
        local.number = 1
        partners = Partners(Launch(2, 1), {0: there}, 1 << 20)
        try:
            serve(backends[1], program, partners, 2)
        except HloRunError as error:
            errors.append(error)
        partners.close(errors[0] if errors else None)
        backends[1].leave(failed=bool(errors))

    thread = threading.Thread(target=process_1, daemon=True)
    thread.start()
    local.number = 0
    partners = Partners(Launch(2, 0), {1: here}, 1 << 20)
    shared = SharedBackend(backends[0], partners, 2)
    values = [np.arange(8, dtype=np.float32).reshape(4, 2) * scale for scale in (1, 10)]
    first, second = shared.run_devices(program, [[value] for value in values], 2, 1)
    assert ("NCCL cannot be loaded" in shared.report()) is not has_nccl
    partners.close()
    backends[0].leave(failed=False)
    thread.join()
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
        shared_device.SharedDevice(pair[0], 4, 30, cast("Any", None))
