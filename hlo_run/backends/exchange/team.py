"""Run the devices of a run one at a time, so that every run is deterministic.

The work of a device is a generator that yields only when the device waits for others. Then the next device in order that can
continue goes on. So devices need no threads, and a change of turns costs little more than a call. If no device can continue, they
are in a deadlock, which is a DeviceError; unless other processes have devices that may still come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct

from hlo_run.errors import DeviceError

ResultT = TypeVar("ResultT")
# The turn of none of the devices: all wait for other processes.
_NONE = -1
_STOP_CHECK_SECONDS = 0.1
# Devices that are stopped end at the next thunk. A kernel that does not end keeps its thread.
_STOP_SECONDS = 5.0


class _Stopped(Exception):
    """Unwinds a device after another one failed."""


class Wait(Struct):
    """A wait of a device until `ready`, since the time `began`. `reason` describes it in errors, for the devices `missing`.

    The team sets the time.
    """

    ready: Callable[[], bool]
    reason: Callable[[], str]
    missing: Callable[[], tuple[int, ...]]
    began: float = 0.0


# The work of a device: yields when the device has to wait, and goes on once the wait is ready.
Work: TypeAlias = Generator[Wait, None, ResultT]


def run_alone(work: Work[ResultT]) -> ResultT:
    """Return the result of a device without others. Raises DeviceError if it waits."""
    while True:
        try:
            wait = next(work)
        except StopIteration as end:
            return end.value
        if not wait.ready():
            work.close()
            raise DeviceError(f"the device waits forever: {wait.reason()}")


# Takes the waits by device, and the device that works (-1: none). Returns the reason to stop; None: go on.
StopCheck = Callable[[dict[int, Wait], int], "Exception | None"]


class Team(Generic[ResultT]):
    """Runs the work of each device, in the calling thread.

    `stop_check` is asked now and then whether the devices should go on; then they run in another thread. With `has_others`, other
    processes have devices too, which may end the waits: they call `wake`.
    """

    def __init__(self, devices: Sequence[int], stop_check: StopCheck | None = None, *, has_others: bool = False) -> None:
        self._condition = threading.Condition()
        self._devices = tuple(devices)
        self._turn = devices[0]
        self._waits: dict[int, Wait] = {}
        self._left = set(devices)
        self._results: dict[int, ResultT] = {}
        self._failure: BaseException | None = None
        self._stop_check = stop_check
        self._has_others = has_others

    def run(self, work: Sequence[Work[ResultT]]) -> list[ResultT]:
        """Return the results of all devices. Raises the first failure of a device."""
        works = dict(zip(self._devices, work, strict=True))
        if self._stop_check is None:
            self._run_all(works)
        else:
            self._run_watched(works)
        if self._failure is not None:
            raise self._failure
        return [self._results[device] for device in self._devices]

    def _run_watched(self, works: dict[int, Work[ResultT]]) -> None:
        thread = threading.Thread(target=self._run_all, args=(works,), daemon=True)
        thread.start()
        with self._condition:
            try:
                while self._left and self._failure is None:
                    self._condition.wait(_STOP_CHECK_SECONDS)
                    self._look()
            except KeyboardInterrupt as error:
                self._fail(error)
        thread.join(None if self._failure is None else _STOP_SECONDS)

    @property
    def is_computing(self) -> bool:
        """True if one of the devices has the turn."""
        return self._turn != _NONE and bool(self._left) and self._failure is None

    def wake(self) -> None:
        """Look again which device can continue: something came from another process."""
        with self._condition:
            if self._turn == _NONE and self._left and self._failure is None:
                self._pass_on(self._devices[-1])

    def check(self) -> None:
        """Stop the device that calls if the devices should not go on."""
        if self._failure is not None:
            raise _Stopped

    def _run_all(self, works: dict[int, Work[ResultT]]) -> None:
        try:
            with np.errstate(all="ignore"):  # numpy keeps this setting per thread
                while self._left and self._failure is None:
                    self._go_on(works[self._turn])
        except _Stopped:
            pass
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # a custom call may raise any; `run` raises it again
            with self._condition:
                if isinstance(error, DeviceError):
                    error.notes += self._reasons()
                self._fail(error)
        finally:
            for work in works.values():
                work.close()

    def _go_on(self, work: Work[ResultT]) -> None:
        """Let the device that has the turn work until it waits or ends. Then wait until any can continue."""
        device = self._turn
        try:
            wait = next(work)
        except StopIteration as end:
            wait = None
            self._results[device] = end.value
        with self._condition:
            if wait is None:
                self._left.discard(device)
            else:
                wait.began = time.monotonic()
                self._waits[device] = wait
            self._pass_on(device)
            while self._turn == _NONE and self._left and self._failure is None:
                self._condition.wait()
            self._waits.pop(self._turn, None)

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
        if self._stop_check is None or self._failure is not None or not self._left:
            return
        waits = {device: wait for device, wait in self._waits.items() if not wait.ready()}
        error = self._stop_check(waits, self._turn)
        if error is not None:
            if isinstance(error, DeviceError):
                error.notes += self._reasons()
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._condition.notify_all()
