"""Asynchronous collectives of NCCL on streams of their own, on stand-ins whose streams do their work in order and later."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from clocks import Clock, TickingClock, use_clock
from cuda_bench import array
from fake_nccl import FakeNccl, Network
from fake_streams import QueuedDriver

from hlo_run.artifact import (
    AsyncDoneThunk,
    AsyncStartThunk,
    BufferAllocation,
    CollectiveThunk,
    CopyThunk,
    Executable,
    MemsetThunk,
    Thunk,
)
from hlo_run.backends.cuda import shared_device
from hlo_run.backends.cuda.memory import DeviceMemory
from hlo_run.backends.cuda.run import CudaRun
from hlo_run.backends.cuda.shared_device import SharedDevice
from hlo_run.backends.cuda.streams import Streams
from hlo_run.errors import DeviceError
from hlo_run.processes.launcher import Launch
from hlo_run.processes.partners import Partners

X, SUM, WORK, OUT, MOVED = (array(number, "f32", (4, 2)) for number in range(5))
_REDUCE = CollectiveThunk("r", "kAllReduce", "r", (X,), (SUM,), "kFlattenedID", ((0, 1),), reduction="add")
_PERMUTE = CollectiveThunk("p", "kCollectivePermute", "p", (X,), (MOVED,), "kFlattenedID", ((0, 1),))


def _asynchronous(collective: CollectiveThunk, number: int) -> tuple[AsyncStartThunk, AsyncDoneThunk]:
    name = collective.name
    return AsyncStartThunk(f"{name}s", name, "communication", number, (collective,)), AsyncDoneThunk(f"{name}d", name)


_START, _DONE = _asynchronous(_REDUCE, 1)
_OTHER_START, _OTHER_DONE = _asynchronous(_PERMUTE, 2)
_THUNKS: tuple[Thunk, ...] = (
    *(_START, MemsetThunk("m", WORK.slice, 7), _OTHER_START, _DONE),
    *(CopyThunk("c", SUM.slice, OUT.slice), _OTHER_DONE),
)


class _Process:
    """A process of two with its device. `run` is the run of the thunks."""

    def __init__(
        self,
        number: int,
        driver: QueuedDriver,
        binding: FakeNccl,
        connection: socket.socket,
        thunks: tuple[Thunk, ...],
    ) -> None:
        self.driver, self.binding = driver, binding
        main = driver.Stream()
        self.partners = Partners(Launch(2, number), {1 - number: connection}, 1 << 20)
        self.device = SharedDevice(self.partners, 2, 5000, Streams(self.driver, main))
        self.memory = DeviceMemory(self.driver, main, "Stand-in")
        self.memory.settle = self.device.settle
        sizes = [BufferAllocation(place, X.slice.size_bytes, is_output=True) for place in range(5)]
        self.program = Executable("m", "a100", (), thunks, tuple(sizes), (), ())
        self.memory.hold(self.program)
        state = SimpleNamespace(driver=self.driver, memory=self.memory, stream=main, libraries=None, graphs=None, function=None)
        self.run = CudaRun(cast("Any", state), self.program, 42, shared=self.device)
        self.memory.write(X.slice, np.full(8, number + 1, np.float32).view(np.uint8))

    def floats(self, place: int) -> list[float]:
        """Return an allocation's elements as they are now."""
        return sorted({*self.driver.floats(self.memory.address(array(place, "f32", (4, 2)).slice), 8).tolist()})


_CLOCKS = ("backends.cuda.shared_device", "backends.exchange.patience")


def _processes(monkeypatch: pytest.MonkeyPatch, thunks: tuple[Thunk, ...]) -> list[_Process]:
    """Return two processes whose runs have begun, without their thunks."""
    network, made = Network(), list[_Process]()
    for number, connection in enumerate(socket.socketpair()):
        driver = QueuedDriver()
        binding = FakeNccl(network, driver.view, driver.do)
        monkeypatch.setattr(shared_device, "load_nccl", lambda binding=binding: binding)
        made.append(_Process(number, driver, binding, connection, thunks))
    threads = [threading.Thread(target=process.device.begin, args=(process.program, 2, 1)) for process in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in made:
        for stream in process.driver.streams:
            stream.steps.clear()
    return made


def test_collectives_run_beside_the_main_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 enqueues everything before process 1 begins: the host waits for no collective. Streams wait for events."""
    first, second = _processes(monkeypatch, _THUNKS)
    first.run.run()
    first.driver.work()
    assert first.driver.memory[first.memory.address(WORK.slice)] == 7, "work between start and done does not wait"
    assert np.isnan(first.floats(3)).all(), "work after the done waits"
    second.run.run()
    for process in (second, first, second):
        process.driver.work()
    assert (first.floats(3), second.floats(3)) == ([3.0], [3.0])
    assert (first.floats(4), second.floats(4)) == ([0.0], [1.0])
    main, reduction, permutation = (stream.steps for stream in first.driver.streams)
    begun, other = reduction[0].split()[1], permutation[0].split()[1]
    ended, other_ended = reduction[-1].split()[1], permutation[-1].split()[1]
    assert main == [f"record {begun}", "words 7", f"record {other}", f"wait {ended}", "copy", f"wait {other_ended}"]
    assert [step.split()[0] for step in reduction] == ["wait", "record", "nccl", "record", "record"]
    assert [step.split()[0] for step in permutation] == ["wait", "record", "fill", "nccl", "record", "record"]
    for process in (first, second):
        process.device.settle()
        process.partners.close()


def test_a_collective_without_asynchronous_thunks_is_on_the_main_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _processes(monkeypatch, (_REDUCE, CopyThunk("c", SUM.slice, OUT.slice)))
    for process in (first, second):
        process.run.run()
    assert [step.split()[0] for step in first.driver.streams[0].steps] == ["record", "nccl", "record", "copy"]
    for process in (first, second, first):
        process.driver.work()
    assert (first.floats(3), second.floats(3)) == ([3.0], [3.0])
    for process in (first, second):
        process.partners.close()


def test_a_partner_that_never_comes_is_found_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the collective, though the host went on after it."""
    first, second = _processes(monkeypatch, _THUNKS)
    first.run.run()
    use_clock(monkeypatch, TickingClock(1000), *_CLOCKS)
    with pytest.raises(DeviceError, match="device 0 waits for device 1, which did not arrive") as caught:
        first.device.settle()
    assert "%r: NCCL does not say which of its group {0,1} did not arrive" in caught.value.notes[-1]
    first.device.leave(failed=True)
    assert first.binding.log[-1] == "comm_abort"
    for process in (first, second):
        process.partners.close()


def test_time_until_the_own_stream_comes_to_a_collective_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before the collective takes long: this device still computes, so it does not wait for a partner."""
    first, second = _processes(monkeypatch, (_REDUCE,))
    clock = Clock()
    use_clock(monkeypatch, clock, *_CLOCKS)
    is_done = threading.Event()
    first.driver.do(77, "kernel", is_done.is_set)
    for process in (first, second):
        process.run.run()
    second.driver.work()
    checks = iter(range(40))

    def check() -> None:
        number = next(checks)
        assert first.partners.is_computing() or number > 20
        if number < 20:
            clock.ahead += 10000.0
        if number == 20:
            is_done.set()

    monkeypatch.setattr(shared_device, "_POLL_SECONDS", 0.0001)
    first.device.settle(check)
    assert first.floats(1) == [3.0]
    for process in (first, second):
        process.partners.close()
