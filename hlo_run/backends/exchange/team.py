"""Run the devices of a run as threads, one at a time, so that every run is deterministic.

A device gives up its turn only when it waits for others. The turn then passes to the next device in order that can continue. If
none can, the devices are in a deadlock, which is a DeviceError; unless other processes have devices that may still come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from hlo_run.errors import DeviceError

ResultT = TypeVar("ResultT")
# The turn of none of the devices: all wait for other processes.
_NONE = -1
_WATCH_SECONDS = 0.1
# A device that is stopped ends at its next thunk. A kernel that does not end keeps its thread.
_STOP_SECONDS = 5.0


class _Stopped(Exception):
    """Unwinds a device after another one failed."""


class Wait(Struct):
    """A device waits until `ready`, since the time `began`. `reason` describes the wait in errors, for the devices `missing`."""

    ready: Callable[[], bool]
    reason: Callable[[], str]
    missing: Callable[[], tuple[int, ...]]
    began: float


# Takes the waits by device, and the device that works (-1: none). Returns the reason to stop; None: go on.
Watch = Callable[[dict[int, Wait], int], "Exception | None"]


class Team(Generic[ResultT]):
    """Runs one function per device.

    `watch` is asked now and then whether the devices should go on. With `has_others`, other processes have
    devices too, which may end the waits: they call `wake`.
    """

    def __init__(self, devices: Sequence[int], watch: Watch | None = None, *, has_others: bool = False) -> None:
        self._condition = threading.Condition()
        self._devices = tuple(devices)
        self._turn = devices[0]
        self._waits: dict[int, Wait] = {}
        self._left = set(devices)
        self._results: dict[int, ResultT] = {}
        self._failure: BaseException | None = None
        self._watch = watch
        self._has_others = has_others

    def run(self, work: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
        """Return the results of all devices. Raises the first failure of a device."""
        pairs = zip(self._devices, work, strict=True)
        threads = [threading.Thread(target=self._device, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        with self._condition:
            try:
                while self._left and self._failure is None:
                    self._condition.wait(None if self._watch is None else _WATCH_SECONDS)
                    self._look()
            except KeyboardInterrupt as error:
                self._fail(error)
        end = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(None if self._failure is None else max(0.0, end - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        return [self._results[device] for device in self._devices]

    @property
    def is_computing(self) -> bool:
        """True if one of the devices has the turn."""
        return self._turn != _NONE and bool(self._left) and self._failure is None

    def wait(
        self, device: int, ready: Callable[[], bool], reason: Callable[[], str], missing: Callable[[], tuple[int, ...]]
    ) -> None:
        """Let other devices run until `ready`. Only the device that has the turn may call this.

        `reason` describes the wait in an error, and `missing` returns the devices that are waited for.
        """
        if ready():
            return
        with self._condition:
            self._waits[device] = Wait(ready, reason, missing, time.monotonic())
            self._pass_on(device)
            self._await_turn(device)
            del self._waits[device]

    def wake(self) -> None:
        """Look again which device can continue: something came from another process."""
        with self._condition:
            if self._turn == _NONE and self._left and self._failure is None:
                self._pass_on(self._devices[-1])

    def check(self) -> None:
        """Stop the device that calls if another one has failed."""
        if self._failure is not None:
            raise _Stopped

    def _device(self, device: int, work: Callable[[], ResultT]) -> None:
        try:
            with self._condition:
                self._await_turn(device)
            result = work()
            with self._condition:
                self._results[device] = result
                self._left.discard(device)
                self._pass_on(device)
        except _Stopped:
            pass
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # a custom call may raise any; `run` raises it again
            with self._condition:
                if isinstance(error, DeviceError):
                    error.notes += self._reasons()
                self._fail(error)

    def _await_turn(self, device: int) -> None:
        while self._turn != device and self._failure is None:
            self._condition.wait()
        if self._failure is not None:
            raise _Stopped

    def _pass_on(self, device: int) -> None:
        """Pass the turn to the next device that can continue. Fail if all that remain wait and no other process can help."""
        place = self._devices.index(device)
        for step in range(1, len(self._devices) + 1):
            other = self._devices[(place + step) % len(self._devices)]
            waiting = self._waits.get(other)
            if other in self._left and (waiting is None or waiting.ready()):
                self._turn = other
                self._condition.notify_all()
                return
        self._turn = _NONE
        if self._left and not self._has_others:
            self._fail(DeviceError("deadlock: every device that still runs waits for another", notes=self._reasons()))
        self._condition.notify_all()

    def _reasons(self) -> tuple[str, ...]:
        """Return a line for each device that waits."""
        waits = sorted((device, wait) for device, wait in self._waits.items() if not wait.ready())
        return tuple(f"device {device}: {wait.reason()}" for device, wait in waits)

    def _look(self) -> None:
        if self._watch is None or self._failure is not None or not self._left:
            return
        waits = {device: wait for device, wait in self._waits.items() if not wait.ready()}
        error = self._watch(waits, self._turn)
        if error is not None:
            if isinstance(error, DeviceError):
                error.notes += self._reasons()
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._condition.notify_all()
