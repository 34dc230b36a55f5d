"""One process's device in a run that several processes share: collectives by NCCL, or by numpy on copies that go over sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from hlo_run.artifact import CollectiveThunk, Executable, RecvThunk, SendThunk, every_thunk, tree_slices
from hlo_run.backends.cuda.collectives import plan_collective
from hlo_run.backends.cuda.memory import DeviceMemory
from hlo_run.backends.cuda.nccl import Nccl, load_nccl
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


class SharedDevice:
    """The device of this process among `devices`, of which every process has one.

    All NCCL work is on the stream of this handle. `mark` returns a function that is true once the work on the stream so far is
    done. Raises Unsupported for several devices in a process.
    """

    def __init__(
        self, partners: Partners, devices: int, wait_seconds: float, stream: int, mark: Callable[[], Callable[[], bool]]
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
        self._mark = mark
        partners.is_computing = lambda: not self._is_waiting
        self._nccl: Nccl | str = _nccl(partners, stream)

    @property
    def place(self) -> tuple[int, int]:
        """The numbers of the device's replica and partition."""
        return divmod(self.number, self._world.partitions)

    def begin(self, executable: Executable, replicas: int, partitions: int) -> None:
        """Begin a run on replicas x partitions devices, and open the groups that it needs. Raises DeviceError."""
        self._world = World(replicas, partitions, link=self._link)
        self._runs += 1
        self._link.begin(self._runs, self._world)
        if isinstance(self._nccl, Nccl):
            limit = self._patience.limit_seconds
            deadline = time.monotonic() + limit if limit > 0 else None
            self._nccl.open(self._groups(executable), deadline, partial(self._wait_for_group, "NCCL opens a group"))

    def collective(self, thunk: CollectiveThunk, memory: DeviceMemory) -> str:
        """Run this device's part of a collective. Returns "" if NCCL does, else the reason why numpy did. Raises DeviceError."""
        world = self._world
        members = members_of(thunk, self.number, world.replicas, world.partitions)
        if not members:
            if thunk.kind != "kCollectiveBroadcast":
                raise DeviceError(f"device {self.number} is in no group of %{thunk.name}")
            for spec in thunk.results:
                memory.fill(memory.address(spec.slice), 0, spec.slice.size_bytes)
            return ""
        plan = plan_collective(thunk, members, self.number) if isinstance(self._nccl, Nccl) else self._nccl
        if isinstance(plan, str) or not isinstance(self._nccl, Nccl):
            self._by_numpy(thunk, members, memory)
            return str(plan)
        for piece in plan.cleared:
            memory.fill(memory.address(piece), 0, piece.size_bytes)
        self._nccl.run(plan, members, memory.address)
        self._by_nccl(thunk.name, members, self._nccl)
        return ""

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
            self._wait(lambda: bool(box), lambda: reason, lambda: (source,))
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
                if members and not isinstance(plan_collective(thunk, members, self.number), str):
                    groups.append(members)
        return groups

    def _by_nccl(self, name: str, members: tuple[int, ...], nccl: Nccl) -> None:
        """Wait until the calls for a collective are on the stream, and their work is done.

        The host waits for each collective, so an error has its name, and the others know that this device does not compute.
        """
        self._wait_for_group(f"%{name}", members, lambda: nccl.is_ready(members))
        is_done = self._mark()
        self._wait_for_group(f"%{name}", members, lambda: nccl.is_ready(members) and is_done())

    def _wait_for_group(self, what: str, members: tuple[int, ...], ready: Callable[[], bool]) -> None:
        others = tuple(member for member in members if member != self.number)
        reason = f"{what}: NCCL does not say which of its group {{{','.join(map(str, members))}}} did not arrive"
        self._wait(ready, lambda: reason, lambda: others)

    def _by_numpy(self, thunk: CollectiveThunk, members: tuple[int, ...], memory: DeviceMemory) -> None:
        operands = [np.array(view(spec, memory.read(spec.slice))) for spec in thunk.operands]
        meeting = self._world.arrive(thunk, members, self.number, operands, at_once=True)

        def missing() -> tuple[int, ...]:
            return tuple(member for member in members if not meeting.has(member))

        def reason() -> str:
            names = ", ".join(map(str, missing()))
            return f"%{thunk.name}: of its group {{{','.join(map(str, members))}}}, {names} did not arrive"

        self._wait(lambda: meeting.is_complete, reason, missing)
        for spec, result in zip(thunk.results, meeting.results.result()[self.number], strict=True):
            data = np.empty(spec.slice.size_bytes, np.uint8)
            store(spec, data, result.astype(DTYPES[spec.dtype].numpy, copy=False))
            memory.write(spec.slice, data)

    def _pairs(self, thunk: SendThunk | RecvThunk) -> Sequence[tuple[int, int]]:
        if not thunk.pairs:
            hint = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}'
            raise DeviceError(f"%{thunk.name} has no source-target pairs", hint=hint)
        return thunk.pairs

    def _wait(self, ready: Callable[[], bool], reason: Callable[[], str], missing: Callable[[], tuple[int, ...]]) -> None:
        """Wait until `ready`. Raises DeviceError if that takes too long or a process dies."""
        wait = Wait(ready, reason, missing, time.monotonic())
        self._is_waiting = True
        try:
            while not ready():
                error = self._patience({self.number: wait}, -1)
                if error is not None:
                    error.notes += (f"device {self.number}: {reason()}",)
                    raise error
                time.sleep(_POLL_SECONDS)
        finally:
            self._is_waiting = False


def _nccl(partners: Partners, stream: int) -> Nccl | str:
    """Return NCCL, or the reason why it cannot be used."""
    try:
        return Nccl(load_nccl(), partners, stream)
    except ImportError as error:
        return f"NCCL cannot be loaded (pip install 'hlo-run[nccl]' nvidia-nccl-cu12): {error}"
