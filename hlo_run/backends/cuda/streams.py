"""The streams of a device and the events between them: one for all work, and streams for asynchronous collectives beside it."""

from __future__ import annotations

from typing import Any

# CU_STREAM_NON_BLOCKING: a copy from the host, which is on the default stream, does not wait for the collectives.
_NON_BLOCKING = 1


class Streams:
    """The streams of this process's device. pycuda has no types: streams and events are its objects."""

    def __init__(self, driver: Any, main: Any) -> None:
        self.main = main
        self._driver = driver
        self._communication: dict[int, Any] = {}

    def communication(self, number: int) -> Any:
        """Return the stream of collectives with this number, which the first call makes."""
        if number not in self._communication:
            self._communication[number] = self._driver.Stream(_NON_BLOCKING)
        return self._communication[number]

    def mark(self, stream: Any) -> Any:
        """Return an event whose `query` is true once the work on a stream so far is done."""
        event = self._driver.Event()
        event.record(stream)
        return event

    def follow(self, stream: Any, event: Any) -> None:
        """Let later work on a stream wait for an event. The host does not wait."""
        stream.wait_for_event(event)
