"""`--profile`: record the time of every thunk, and print it as a table or a Chrome trace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from hlo_run.artifact import BufferSlice, Thunk, accesses, nested_sequences
from hlo_run.backends.literals import Bytes
from hlo_run.columns import aligned


class Event(Struct, frozen=True):
    """One execution of a thunk. Times are in seconds since the profile began; `run` counts from 1."""

    thunk: Thunk
    run: int
    begin: float
    seconds: float


class ThunkObserver(Protocol):
    """Observes every thunk that ran."""

    def begin_run(self) -> None:
        """Begin the next run."""
        ...

    def add(self, thunk: Thunk, begin: float, read: Callable[[BufferSlice], Bytes]) -> None:
        """Take note that a thunk ended now and began at `begin` (time.perf_counter). `read` returns the bytes of a slice."""
        ...

    def end_run(self) -> None:
        """End the run. May raise DeviceError."""
        ...


class ThunkObservers(Struct, frozen=True):
    """Several observers as one."""

    each: tuple[ThunkObserver, ...]

    def begin_run(self) -> None:
        """Begin the next run."""
        for observer in self.each:
            observer.begin_run()

    def add(self, thunk: Thunk, begin: float, read: Callable[[BufferSlice], Bytes]) -> None:
        """Tell all that a thunk ended."""
        for observer in self.each:
            observer.add(thunk, begin, read)

    def end_run(self) -> None:
        """End the run."""
        for observer in self.each:
            observer.end_run()


def together(*observers: ThunkObserver | None) -> ThunkObserver | None:
    """Return the observers that are not None as one; None without any."""
    given = tuple(observer for observer in observers if observer is not None)
    return ThunkObservers(given) if len(given) > 1 else given[0] if given else None


class Profile(Struct):
    """Collects the events of all runs. The event of a thunk covers the events of its nested thunks."""

    events: list[Event] = field(default_factory=list[Event])
    runs: int = 0
    _start: float = field(default_factory=time.perf_counter)

    def begin_run(self) -> None:
        """Begin the next run."""
        self.runs += 1

    def add(self, thunk: Thunk, begin: float, read: Callable[[BufferSlice], Bytes]) -> None:
        """Record that a thunk ended now and began at `begin` (time.perf_counter)."""
        del read
        now = time.perf_counter()
        self.events.append(Event(thunk, self.runs, begin - self._start, now - begin))

    def end_run(self) -> None:
        """Do nothing."""

    def last_run_seconds(self) -> float:
        """Return the seconds in thunks of the last run, of all devices together. Thunks with nested ones do not count twice."""
        return sum(event.seconds for event in self.events if event.run == self.runs and not nested_sequences(event.thunk))

    def table(self) -> str:
        """Return one line per thunk, the longest first: kind, name, runs, median milliseconds, share, bytes, GB/s."""
        totals: dict[int, list[Event]] = {}
        for event in self.events:
            totals.setdefault(id(event.thunk), []).append(event)
        from statistics import median  # only profiled runs need it

        # The first run of a kernel also compiles it, so the median describes the others.
        medians = {number: median(event.seconds for event in events) for number, events in totals.items()}
        groups = sorted(totals.values(), key=lambda events: -medians[id(events[0].thunk)] * len(events))
        leaves = [events for events in groups if not nested_sequences(events[0].thunk)]
        whole = sum(medians[id(events[0].thunk)] * len(events) for events in leaves) or 1.0
        rows = [("kind", "thunk", "runs", "median ms", "share", "bytes", "GB/s")]
        for events in groups:
            thunk = events[0].thunk
            size, each = touched_bytes(thunk), medians[id(thunk)]
            # The time of a thunk with nested thunks includes theirs, so its share would count twice.
            share = "" if nested_sequences(thunk) else f"{each * len(events) / whole:.1%}"
            rate = f"{size / each / 1e9:.2f}" if each and not nested_sequences(thunk) else ""
            rows.append((thunk.kind, thunk.name, str(len(events)), f"{each * 1e3:.3f}", share, str(size), rate))
        count = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return "\n".join([*aligned(rows, right=range(2, 7)), f"{count}, {whole * 1e3 / max(self.runs, 1):.3f} ms each in thunks"])

    def chrome_trace(self) -> str:
        """Return the events in Chrome's trace format (chrome://tracing, Perfetto)."""
        events: list[dict[str, object]] = [
            {
                "name": event.thunk.name,
                "cat": event.thunk.kind,
                "ph": "X",
                "ts": round(event.begin * 1e6, 3),
                "dur": round(event.seconds * 1e6, 3),
                "pid": 1,
                "tid": 1,
                "args": {"run": event.run, "bytes": touched_bytes(event.thunk)},
            }
            for event in sorted(self.events, key=lambda event: event.begin)
        ]
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def touched_bytes(thunk: Thunk) -> int:
    """Return the total size of all slices that a thunk reads or writes. Each slice counts once."""
    found = accesses(thunk)
    return sum(piece.size_bytes for piece in dict.fromkeys((*found.reads, *found.writes)))
