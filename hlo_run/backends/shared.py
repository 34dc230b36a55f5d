"""A run that several processes share. Process 0 has all arguments and gets all results; the others serve it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hlo_run.artifact import ArrayTree, Executable
from hlo_run.artifact.file import save
from hlo_run.backends import Backend
from hlo_run.backends.literals import Literal
from hlo_run.backends.profile import Profile
from hlo_run.backends.run_watch import RunWatch
from hlo_run.backends.transfer import argument_bytes, literal_of
from hlo_run.errors import DeviceError
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.processes.messages import Farewell, Parcel
from hlo_run.processes.partners import Partners, farewell_error
from hlo_run.records import replace
from hlo_run.target import TargetSpec

_RUN, _RESULT = "run", "result"
# Labels, and what arrays of dynamic size need besides their elements.
_SPARE_BYTES = 1 << 20


@runtime_checkable
class JoiningBackend(Backend, Protocol):
    """A backend that can have some of a run's devices."""

    def join(self, partners: Partners, devices: int) -> None:
        """Share `devices` with other processes, each the same number in order: later runs use this process's devices."""
        ...

    def leave(self, *, failed: bool) -> None:
        """End what `join` began; `failed`: without waiting for the others."""
        ...


def executable_digest(executable: Executable) -> str:
    """Return a digest that is equal for executables that do the same, whatever processor compiled them."""
    return hashlib.sha256(save(replace(executable, machine_code=None, module_text="", source_text=""))).hexdigest()


def most_bytes(executable: Executable, devices: int) -> int:
    """Return the most that one message of a run of these devices may hold."""
    return devices * (2 * sum(allocation.size_bytes for allocation in executable.allocations) + _SPARE_BYTES)


class SharedBackend:
    """Process 0's side: runs `backend` on the devices of this process, and lets the other processes run theirs."""

    def __init__(self, backend: JoiningBackend, partners: Partners, devices: int) -> None:
        self._backend, self._partners = backend, partners
        self._each = devices // partners.launch.count
        self._runs = 0
        backend.join(partners, devices)

    @property
    def name(self) -> str:
        """The platform's name."""
        return self._backend.name

    def watch_next_run(self, watch: RunWatch) -> None:
        """Call `watch` around the thunks of this process in the next run."""
        self._backend.watch_next_run(watch)

    def run_aside(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42) -> Literal:
        """Run another executable on its own memory. Raises as `run` does."""
        return self._backend.run_aside(executable, arguments, seed)

    @property
    def description(self) -> str:
        """The name of the engine that runs the kernels, and the number of processes."""
        return f"{self._backend.description}, {self._partners.launch.count} processes"

    @property
    def target(self) -> TargetSpec | None:
        """The target of this process's devices."""
        return self._backend.target

    @property
    def profile(self) -> Profile | None:
        """The times of the thunks of this process."""
        return self._backend.profile

    @property
    def outfeed(self) -> list[list[Literal]]:
        """The literals of outfeeds of this process's devices."""
        return self._backend.outfeed

    def run(self, executable: Executable, arguments: Sequence[Literal], seed: int = 42, feeds: Feeds = NO_FEEDS) -> Literal:
        """Run on one device, which is not shared."""
        return self._backend.run(executable, arguments, seed, feeds)

    def run_devices(
        self,
        executable: Executable,
        arguments: Sequence[Sequence[Literal]],
        replicas: int,
        partitions: int,
        seed: int = 42,
        feeds: Feeds = NO_FEEDS,
    ) -> list[Literal]:
        """Run on replicas x partitions devices of all processes, with a list of arguments per device. Return their results.

        Raises as the backend does, and the error of another process.
        """
        partners, each = self._partners, self._each
        self._runs += 1
        for process in partners.others:
            mine = arguments[process * each : (process + 1) * each]
            data = [part for values in mine for part in _bytes_of(executable.parameters, values)]
            partners.post(process, Parcel(_RUN, self._runs, "", (seed, replicas, partitions)), data)
        results = self._backend.run_devices(executable, arguments[:each], replicas, partitions, seed, feeds)
        for process in partners.others:
            sent = partners.take(process, Parcel(_RESULT, self._runs, "", (process,)))
            results += [value for (value,) in _literals_of((executable.result,), sent, each)]
        return results

    def report(self) -> str:
        """Return the backend's remarks on the devices of this process."""
        return self._backend.report()

    def launch_records(self) -> list[dict[str, object]]:
        """Return the records of the launches of this process."""
        return self._backend.launch_records()


def serve(backend: JoiningBackend, executable: Executable, partners: Partners, devices: int) -> None:
    """Run this process's devices whenever process 0 asks for it, until it says farewell. Raises its error, if it had one."""
    each = devices // partners.launch.count
    backend.join(partners, devices)
    while True:
        asked = partners.take_any(0, (_RUN,))
        if isinstance(asked, Farewell):
            if asked.code:
                raise farewell_error(asked)
            return
        parcel, sent = asked
        if len(parcel.numbers) != 3:
            raise DeviceError("process 0 asks for a run without seed and numbers of devices")
        seed, replicas, partitions = parcel.numbers
        if replicas * partitions != devices:
            raise DeviceError(f"process 0 asks for {replicas} x {partitions} devices, but {devices} were agreed on")
        arguments = _literals_of(executable.parameters, sent, each)
        results = backend.run_devices(executable, arguments, replicas, partitions, seed)
        data = [part for result in results for part in _bytes_of((executable.result,), (result,))]
        partners.post(0, Parcel(_RESULT, parcel.run, "", (partners.launch.number,)), data)


def _bytes_of(trees: Sequence[ArrayTree], values: Sequence[Literal]) -> list[memoryview]:
    """Return the bytes of every array of some values, in the order of leaves."""
    pieces = [piece for number, pair in enumerate(zip(trees, values, strict=True)) for piece in argument_bytes(*pair, number)]
    return [np.ascontiguousarray(data).data for _, data in pieces]


def _literals_of(trees: Sequence[ArrayTree], sent: Iterable[bytearray], count: int) -> list[list[Literal]]:
    """Return `count` lists of values, one per tree, from the bytes of their arrays. Raises DeviceError for other bytes."""
    parts = iter(sent)

    def value(tree: ArrayTree) -> Literal:
        return literal_of(tree, lambda piece: _checked(next(parts, bytearray()), piece.size_bytes))

    found = [[value(tree) for tree in trees] for _ in range(count)]
    if next(parts, None) is not None:
        raise DeviceError("another process sent more arrays than the module has")
    return found


def _checked(data: bytearray, size_bytes: int) -> Any:
    if len(data) != size_bytes:
        raise DeviceError(f"another process sent {len(data)} bytes for an array of {size_bytes}")
    return np.frombuffer(data, np.uint8)
