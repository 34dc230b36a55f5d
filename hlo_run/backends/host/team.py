"""Run the devices of a run as threads, one at a time, so that every run is deterministic.

A device gives up its turn only when it waits for others. The turn then passes to the next device in order that can continue. If
none can, the devices are in a deadlock, which is a DeviceError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from hlo_run.errors import DeviceError

ResultT = TypeVar("ResultT")


class _Stopped(Exception):
    """Unwinds a device after another one failed."""


class _Wait(Struct):
    """A device waits until `ready`. `reason` describes the wait in the error of a deadlock."""

    ready: Callable[[], bool]
    reason: Callable[[], str]


class Team(Generic[ResultT]):
    """Runs one function per device."""

    def __init__(self, count: int) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._waits: dict[int, _Wait] = {}
        self._left = set(range(count))
        self._results: dict[int, ResultT] = {}
        self._failure: BaseException | None = None
        self._count = count

    def run(self, work: Sequence[Callable[[], ResultT]]) -> list[ResultT]:
        """Return the results of all devices. Raises the first failure of a device."""
        threads = [threading.Thread(target=self._device, args=(number, one), daemon=True) for number, one in enumerate(work)]
        for thread in threads:
            thread.start()
        with self._condition:
            try:
                while self._left and self._failure is None:
                    self._condition.wait()
            except KeyboardInterrupt as error:
                self._fail(error)
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return [self._results[number] for number in range(self._count)]

    def wait(self, number: int, ready: Callable[[], bool], reason: Callable[[], str]) -> None:
        """Let other devices run until `ready`. Only the device that has the turn may call this."""
        if ready():
            return
        with self._condition:
            self._waits[number] = _Wait(ready, reason)
            self._pass_on(number)
            self._await_turn(number)
            del self._waits[number]

    def _device(self, number: int, work: Callable[[], ResultT]) -> None:
        try:
            with self._condition:
                self._await_turn(number)
            result = work()
            with self._condition:
                self._results[number] = result
                self._left.discard(number)
                self._pass_on(number)
        except _Stopped:
            pass
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # a custom call may raise any; `run` raises it again
            with self._condition:
                self._fail(error)

    def _await_turn(self, number: int) -> None:
        while self._turn != number and self._failure is None:
            self._condition.wait()
        if self._failure is not None:
            raise _Stopped

    def _pass_on(self, number: int) -> None:
        """Pass the turn to the next device that can continue. Fail if all remaining devices wait."""
        for step in range(1, self._count + 1):
            other = (number + step) % self._count
            waiting = self._waits.get(other)
            if other in self._left and (waiting is None or waiting.ready()):
                self._turn = other
                self._condition.notify_all()
                return
        if self._left:
            reasons = tuple(f"device {other}: {self._waits[other].reason()}" for other in sorted(self._left))
            self._fail(DeviceError("deadlock: every device that still runs waits for another", notes=reasons))
        self._condition.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._condition.notify_all()
