"""The way between devices of several processes: operands of collectives and messages as parcels.

Every process computes the results of its own devices, from the operands of the whole group.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from hlo_run.artifact import CollectiveThunk
from hlo_run.backends.exchange.world import MeetingKey, World
from hlo_run.backends.library.arrays import Array
from hlo_run.backends.literals import Bytes
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.processes.launcher import device_names
from hlo_run.processes.messages import Parcel
from hlo_run.processes.partners import Partners

OPERANDS, MESSAGE = "operands", "message"


class ProcessLink:
    """Connects a `World` with the worlds of other processes. Each process has the same number of devices, in order."""

    def __init__(self, partners: Partners, devices: int) -> None:
        self._partners = partners
        self._each = devices // partners.launch.count
        first = partners.launch.number * self._each
        self.devices = range(first, first + self._each)
        self._run = 0
        self._world: World | None = None
        self._lock = threading.Lock()
        # What arrived for a run that has not begun here.
        self._early: list[tuple[Parcel, list[bytearray]]] = []
        partners.start(self._received)

    def begin(self, run: int, world: World) -> None:
        """Begin a run in this world. The number is the same in all processes, and higher than in earlier runs."""
        with self._lock:
            self._run, self._world = run, world
            early, self._early = self._early, []
            for parcel, data in early:
                self._take(parcel, data)

    def process_of(self, device: int) -> int:
        """Return the number of the process that has a device."""
        return device // self._each

    def devices_of(self, process: int) -> str:
        """Return the names of a process's devices: `device 3` or `devices 2 to 3`."""
        return device_names(process, self._each)

    # ---- World's side -------------------------------------------------------------------------------------------

    def owns(self, device: int) -> bool:
        """True for a device of this process."""
        return device in self.devices

    def post(self, key: MeetingKey, thunk: CollectiveThunk, device: int, operands: Sequence[Array]) -> None:
        """Send the operands of a device of this process to the processes of the other members. Returns at once."""
        processes = sorted({self.process_of(member) for member in key.members} - {self._partners.launch.number})
        if not processes:
            return
        parcel = Parcel(OPERANDS, self._run, key.name, (device, key.round, *key.members))
        data = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in operands]
        for process in processes:
            self._partners.post(process, parcel, data if self._is_needed(process, key, thunk, device) else ())

    def send(self, channel: int, source: int, target: int, data: Sequence[Bytes]) -> None:
        """Send a message to a device of another process. Returns at once."""
        parcel = Parcel(MESSAGE, self._run, "", (channel, source, target))
        self._partners.post(self.process_of(target), parcel, [np.ascontiguousarray(part).data for part in data])

    def arrays(self, thunk: CollectiveThunk, sent: Sequence[bytearray]) -> list[Array]:
        """Return the operands that `post` has sent; none if they are not needed here. Raises DeviceError for other sizes."""
        if not sent:
            return []
        arrays: list[Array] = []
        for spec, data in zip(thunk.operands, sent, strict=False):
            array = np.frombuffer(data, np.uint8)
            wanted = int(np.prod(spec.dims, dtype=np.int64)) * DTYPES[spec.dtype].numpy.itemsize
            if array.size != wanted:
                raise DeviceError(f"%{thunk.name}: another process sent {array.size} bytes for an operand of {wanted}")
            arrays.append(array.view(DTYPES[spec.dtype].numpy).reshape(spec.dims))
        if len(sent) != len(thunk.operands):
            raise DeviceError(f"%{thunk.name}: another process sent {len(sent)} operands, not {len(thunk.operands)}")
        return arrays

    def _is_needed(self, process: int, key: MeetingKey, thunk: CollectiveThunk, device: int) -> bool:
        """True if the results of a process's devices depend on this device's operands. Else it only learns of the arrival."""
        if thunk.kind == "kCollectiveBroadcast":
            return device == key.members[0]
        if thunk.kind != "kCollectivePermute" or thunk.slice_sizes:
            return True
        own = key.members.index(device)
        return any(source == own and self.process_of(key.members[target]) == process for source, target in thunk.groups)

    # ---- the partners' side -------------------------------------------------------------------------------------

    def _received(self, parcel: Parcel, data: list[bytearray]) -> bool:
        """Take a parcel in the thread of its connection. Returns False for one that is not for devices."""
        if parcel.kind not in (OPERANDS, MESSAGE):
            return False
        with self._lock:
            self._take(parcel, data)
        return True

    def _take(self, parcel: Parcel, data: list[bytearray]) -> None:
        world = self._world
        if world is None or parcel.run > self._run:
            self._early.append((parcel, data))
        elif parcel.run < self._run:
            pass  # of a run that failed
        elif parcel.kind == OPERANDS:
            device, number, *members = parcel.numbers
            world.deliver(MeetingKey(parcel.name, tuple(members), number), device, data)
        else:
            channel, source, target = parcel.numbers
            world.deliver_message(channel, source, target, [np.frombuffer(part, np.uint8) for part in data])
