"""One process's device in a run that several processes share: collectives by NCCL, or by numpy on copies that go over sockets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from hlo_run.artifact import CollectiveThunk, Executable, RecvThunk, SendThunk, every_thunk, tree_slices
from hlo_run.backends.cuda.collectives import NcclPlan, plan_collective
from hlo_run.backends.cuda.memory import DeviceMemory
from hlo_run.backends.cuda.nccl import Nccl, load_nccl
from hlo_run.backends.cuda.streams import Streams
from hlo_run.backends.exchange.link import ProcessLink
from hlo_run.backends.exchange.patience import Patience
from hlo_run.backends.exchange.team import Wait
from hlo_run.backends.exchange.world import World
from hlo_run.backends.library.arrays import store, view
from hlo_run.backends.library.collectives import members_of
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.processes.partners import Partners

_POLL_SECONDS = 0.0002


class _Pending(Struct, frozen=True):
    """A collective on a stream: its name, its group, and events before and after its work."""

    name: str
    members: tuple[int, ...]
    reached: Any
    done: Any


class SharedDevice:
    """The device of this process among `devices`, of which every process has one.

    Collectives of NCCL are on a stream, and the host goes on; `settle` waits for them. `reduces_narrow`: NCCL computes with
    floats of 8 bits on this GPU. Raises Unsupported for several devices in a process.
    """

    def __init__(
        self, partners: Partners, devices: int, wait_seconds: float, streams: Streams, *, reduces_narrow: bool = False
    ) -> None:
        if devices != partners.launch.count:
            hint = f"--num_nodes={devices} starts a process for each; --platform=Host simulates several in one"
            raise Unsupported(f"CUDA has one device per process, but {partners.launch.count} share {devices}", hint=hint)
        self.number = partners.launch.number
        self._partners = partners
        self._link = ProcessLink(partners, devices)
        self._patience = Patience(wait_seconds, partners, self._link)
        self._world = World()
        self._runs = 0
        self._is_waiting = False
        self._streams = streams
        self._reduces_narrow = reduces_narrow
        self._pending: deque[_Pending] = deque()
        # The ends of asynchronous collectives by the keys of their thunks.
        self._started: dict[str, Any] = {}
        partners.is_computing = lambda: not self._is_waiting
        self._nccl: Nccl | str = _nccl(partners)

    @property
    def place(self) -> tuple[int, int]:
        """The numbers of the device's replica and partition."""
        return divmod(self.number, self._world.partitions)

    def begin(self, executable: Executable, replicas: int, partitions: int) -> None:
        """Begin a run on replicas x partitions devices, and open the groups that it needs. Raises DeviceError."""
        self._world = World(replicas, partitions, link=self._link)
        self._runs += 1
        self._link.begin(self._runs, self._world)
        self._pending.clear()
        self._started.clear()
        if isinstance(self._nccl, Nccl):
            limit = self._patience.limit_seconds
            deadline = time.monotonic() + limit if limit > 0 else None
            self._nccl.open(self._groups(executable), deadline, partial(self._wait_for_group, "NCCL opens a group"))

    def collective(self, thunk: CollectiveThunk, memory: DeviceMemory) -> str:
        """Run this device's part of a collective. Returns "" if NCCL does, else the reason why numpy did. Raises DeviceError."""
        members, plan = self._plan(thunk)
        if isinstance(plan, str):
            self._by_numpy(thunk, members, memory)
            return plan
        self._enqueue(thunk.name, members, plan, memory, self._streams.main)
        return ""

    def start(self, key: str, number: int, thunks: Sequence[CollectiveThunk], memory: DeviceMemory) -> bool:
        """Begin collectives on the communication stream of this number, after the work on the main stream so far.

        Returns False if NCCL does not do them all; then nothing has begun. Raises DeviceError.
        """
        planned = [(thunk.name, *self._plan(thunk)) for thunk in thunks]
        plans = [(name, members, plan) for name, members, plan in planned if not isinstance(plan, str)]
        if len(plans) != len(planned):
            return False
        streams = self._streams
        stream = streams.communication(number)
        streams.follow(stream, streams.mark(streams.main))
        for name, members, plan in plans:
            self._enqueue(name, members, plan, memory, stream)
        self._started[key] = streams.mark(stream)
        return True

    def finish(self, key: str) -> None:
        """Let later work on the main stream wait for what `start` began with this key. The host does not wait."""
        event = self._started.pop(key, None)
        if event is not None:
            self._streams.follow(self._streams.main, event)

    def settle(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the work on the main stream so far is done. `check` is called meanwhile, and may raise.

        Raises DeviceError if a partner of a collective does not come in time or dies, or if NCCL reports an error.
        """
        is_done = self._streams.mark(self._streams.main).query
        awaited: _Pending | None = None
        wait = Wait(is_done, str, tuple, 0.0)
        try:
            while not is_done():
                check()
                found = self._awaited()
                if found is not None and found is not awaited:
                    wait = self._wait_of(f"%{found.name}", found.members, found.done.query)
                awaited = found
                self._is_waiting = found is not None
                if found is not None:
                    self._is_nccl_ready(found.members)
                    self._look(wait)
                time.sleep(_POLL_SECONDS)
        finally:
            self._is_waiting = False

    def send(self, thunk: SendThunk, memory: DeviceMemory) -> None:
        """Send a message to the devices that the thunk names."""
        sent = [memory.read(piece) for piece in tree_slices(thunk.source)]
        for source, target in self._pairs(thunk):
            if source == self.number:
                self._world.send(thunk.channel, source, target, sent)

    def receive(self, thunk: RecvThunk, memory: DeviceMemory) -> None:
        """Wait for the message of the device that the thunk names; zeros if it names none. Raises DeviceError."""
        source = next((source for source, target in self._pairs(thunk) if target == self.number), -1)
        pieces = list(tree_slices(thunk.result))
        data = [np.zeros(piece.size_bytes, np.uint8) for piece in pieces]
        if source >= 0:
            box = self._world.box(thunk.channel, source, self.number)
            reason = f"%{thunk.name}: device {source} sends nothing on channel {thunk.channel}"
            self._wait(Wait(lambda: bool(box), lambda: reason, lambda: (source,), time.monotonic()))
            data = box.popleft()
        for piece, part in zip(pieces, data, strict=True):
            memory.write(piece, part)

    def leave(self, *, failed: bool) -> None:
        """Release what NCCL holds: at once if something failed, else after its work."""
        if isinstance(self._nccl, Nccl):
            with suppress(DeviceError):  # an earlier error is the one to report
                (self._nccl.abort if failed else self._nccl.close)()

    def _groups(self, executable: Executable) -> list[tuple[int, ...]]:
        """Return the groups, with the members of each, of the collectives that NCCL does."""
        world = self._world
        groups: list[tuple[int, ...]] = []
        for thunk in every_thunk(executable.thunks):
            if isinstance(thunk, CollectiveThunk):
                members = members_of(thunk, self.number, world.replicas, world.partitions)
                if members and not isinstance(self._plan(thunk)[1], str):
                    groups.append(members)
        return groups

    def _plan(self, thunk: CollectiveThunk) -> tuple[tuple[int, ...], NcclPlan | str]:
        """Return the group of this device and what NCCL does, or the reason why numpy does it. Raises DeviceError."""
        members = members_of(thunk, self.number, self._world.replicas, self._world.partitions)
        if not members:
            if thunk.kind != "kCollectiveBroadcast":
                raise DeviceError(f"device {self.number} is in no group of %{thunk.name}")
            return (), NcclPlan((), tuple(spec.slice for spec in thunk.results))
        if isinstance(self._nccl, str):
            return members, self._nccl
        return members, plan_collective(thunk, members, self.number, reduces_narrow=self._reduces_narrow)

    def _enqueue(self, name: str, members: tuple[int, ...], plan: NcclPlan, memory: DeviceMemory, stream: Any) -> None:
        """Put a collective on a stream. The host waits until NCCL has taken the calls, not for their work."""
        reached = self._streams.mark(stream)
        for piece in plan.cleared:
            memory.fill(memory.address(piece), 0, piece.size_bytes, stream)
        if not members:
            return
        assert isinstance(self._nccl, Nccl), "it has a plan"
        self._nccl.run(plan, members, memory.address, int(stream.handle))
        self._wait_for_group(f"%{name}", members, lambda: self._is_nccl_ready(members))
        self._awaited()
        self._pending.append(_Pending(name, members, reached, self._streams.mark(stream)))

    def _awaited(self) -> _Pending | None:
        """Return the first collective whose turn on its stream has come. Forgets those that are done."""
        self._pending = deque(each for each in self._pending if not each.done.query())
        return next((each for each in self._pending if each.reached.query()), None)

    def _is_nccl_ready(self, members: tuple[int, ...]) -> bool:
        assert isinstance(self._nccl, Nccl), "only NCCL has groups"
        return self._nccl.is_ready(members)

    def _wait_for_group(self, what: str, members: tuple[int, ...], ready: Callable[[], bool]) -> None:
        self._wait(self._wait_of(what, members, ready))

    def _wait_of(self, what: str, members: tuple[int, ...], ready: Callable[[], bool]) -> Wait:
        others = tuple(member for member in members if member != self.number)
        reason = f"{what}: NCCL does not say which of its group {{{','.join(map(str, members))}}} did not arrive"
        return Wait(ready, lambda: reason, lambda: others, time.monotonic())

    def _by_numpy(self, thunk: CollectiveThunk, members: tuple[int, ...], memory: DeviceMemory) -> None:
        operands = [np.array(view(spec, memory.read(spec.slice))) for spec in thunk.operands]
        meeting = self._world.arrive(thunk, members, self.number, operands, at_once=True)

        def missing() -> tuple[int, ...]:
            return tuple(member for member in members if not meeting.has(member))

        def reason() -> str:
            names = ", ".join(map(str, missing()))
            return f"%{thunk.name}: of its group {{{','.join(map(str, members))}}}, {names} did not arrive"

        self._wait(Wait(lambda: meeting.is_complete, reason, missing, time.monotonic()))
        for spec, result in zip(thunk.results, meeting.take(self.number), strict=True):
            data = np.empty(spec.slice.size_bytes, np.uint8)
            store(spec, data, result.astype(DTYPES[spec.dtype].numpy, copy=False))
            memory.write(spec.slice, data)

    def _pairs(self, thunk: SendThunk | RecvThunk) -> Sequence[tuple[int, int]]:
        if not thunk.pairs:
            hint = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}'
            raise DeviceError(f"%{thunk.name} has no source-target pairs", hint=hint)
        return thunk.pairs

    def _wait(self, wait: Wait) -> None:
        """Wait until the wait is ready. Raises DeviceError if that takes too long or a process dies."""
        self._is_waiting = True
        try:
            while not wait.ready():
                self._look(wait)
                time.sleep(_POLL_SECONDS)
        finally:
            self._is_waiting = False

    def _look(self, wait: Wait) -> None:
        """Raise DeviceError if a wait takes too long or a process has died."""
        error = self._patience({self.number: wait}, -1)
        if error is not None:
            error.notes += (f"device {self.number}: {wait.reason()}",)
            raise error


def _nccl(partners: Partners) -> Nccl | str:
    """Return NCCL, or the reason why it cannot be used."""
    try:
        return Nccl(load_nccl(), partners)
    except ImportError as error:
        return f"NCCL cannot be loaded (pip install 'hlo-run[nccl]' nvidia-nccl-cu12): {error}"
