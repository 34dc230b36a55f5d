"""The devices of a run and their shared state: collectives in progress and messages."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Struct, field

from hlo_run.backends.host.team import Team
from hlo_run.backends.library.arrays import Array
from hlo_run.backends.literals import Bytes


class Meeting(Struct):
    """A collective that some members of the group have reached."""

    operands: dict[int, list[Array]] = field(default_factory=dict[int, "list[Array]"])
    results: dict[int, list[Array]] | None = None


class World(Struct):
    """The devices of a run, replica-major, and their meetings."""

    replicas: int = 1
    partitions: int = 1
    team: Team[Any] | None = None
    # Messages that were sent but not received yet, by channel, source and target.
    messages: dict[tuple[int, int, int], deque[list[Bytes]]] = field(default_factory=dict[Any, "deque[list[Bytes]]"])
    meetings: dict[tuple[str, tuple[int, ...]], Meeting] = field(default_factory=dict[Any, Meeting])
