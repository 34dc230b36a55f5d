"""A stand-in for a driver whose streams do their work later: in order, an event or the other ranks of a collective at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from fake_cuda import FakeDriver


class QueuedEvent:
    def __init__(self, driver: QueuedDriver) -> None:
        self._driver = driver
        self.is_done = False

    def record(self, stream: QueuedStream) -> None:
        self.is_done = False
        stream.do(f"record {self._driver.name_of(self)}", self._finish)

    def query(self) -> bool:
        self._driver.work()
        return self.is_done

    def synchronize(self) -> None:
        assert self.query(), "the host would wait for ever"

    def _finish(self) -> bool:
        self.is_done = True
        return True


class QueuedStream:
    """A stream. `steps` are the names of all work in order; an item of `queue` returns True once it is done."""

    def __init__(self, driver: QueuedDriver, handle: int) -> None:
        self._driver, self.handle = driver, handle
        self.steps: list[str] = []
        self.queue: deque[Callable[[], bool]] = deque()

    def do(self, name: str, work: Callable[[], bool]) -> None:
        """Put work on the stream."""
        self.steps.append(name)
        self.queue.append(work)

    def wait_for_event(self, event: QueuedEvent) -> None:
        self.do(f"wait {self._driver.name_of(event)}", lambda: event.is_done)

    def synchronize(self) -> None:
        self._driver.work()
        assert not self.queue, "the host would wait for ever"


class QueuedDriver(FakeDriver):
    """Streams have the handles 77, 78, .. in the order in which they were made."""

    def __init__(self) -> None:
        super().__init__({})
        self.streams: list[QueuedStream] = []
        self._events: list[QueuedEvent] = []

    def Event(self) -> Any:
        event = QueuedEvent(self)
        self._events.append(event)
        return event

    def Stream(self, flags: int = 0) -> Any:
        assert bool(flags) == bool(self.streams), "copies from the host wait for the main stream only"
        self.streams.append(QueuedStream(self, 77 + len(self.streams)))
        return self.streams[-1]

    def name_of(self, event: QueuedEvent) -> str:
        """Return the name of an event: e0, e1, .. in the order of their making."""
        return f"e{self._events.index(event)}"

    def do(self, stream: int, name: str, work: Callable[[], bool]) -> None:
        """Put work on the stream of a handle."""
        self.streams[stream - 77].do(name, work)

    def work(self) -> None:
        """Do what the streams can do now."""
        before = -1
        while before != (left := sum(len(stream.queue) for stream in self.streams)):
            before = left
            for stream in self.streams:
                while stream.queue and stream.queue[0]():
                    stream.queue.popleft()

    def memset_d8_async(self, address: int, value: int, size: int, stream: Any) -> None:
        stream.do(f"fill {value}", lambda: self._set(address, bytes([value]) * size))

    def memset_d32_async(self, address: int, value: int, count: int, stream: Any) -> None:
        stream.do(f"words {value}", lambda: self._set(address, value.to_bytes(4, "little") * count))

    def memcpy_dtod_async(self, destination: int, source: int, size: int, stream: Any) -> None:
        stream.do("copy", lambda: self._set(destination, bytes(self.memory[source : source + size])))

    def _set(self, address: int, data: bytes) -> bool:
        self.memory[address : address + len(data)] = data
        return True
