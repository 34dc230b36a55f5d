"""The devices of a run and their shared state: collectives in progress and messages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
from msgspec import Struct, field

from hlo_run.artifact import CollectiveThunk
from hlo_run.backends.exchange.team import Team
from hlo_run.backends.library.arrays import Array
from hlo_run.backends.library.collectives import combine
from hlo_run.backends.literals import Bytes

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


WORTH_A_THREAD_BYTES = 1 << 20
"""An asynchronous collective of fewer bytes, of all members together, takes no longer than to hand it to another thread."""


class MeetingKey(Struct, frozen=True):
    """A collective of a group: the thunk's key, the devices in order, and how often they have met for it in this run."""

    name: str
    members: tuple[int, ...]
    round: int


class Meeting:
    """A collective that some members of the group have reached, with its results once all members have.

    `operands` are those of devices of this process, `sent` those that arrived as bytes from other processes. Once the meeting
    `is_complete`, its results are computed, or another thread computes them.
    """

    def __init__(self) -> None:
        self.operands: dict[int, list[Array]] = {}
        self.sent: dict[int, list[bytearray]] = {}
        self.thunk: CollectiveThunk | None = None
        self.results: Callable[[], dict[int, list[Array]]] | None = None
        self.is_claimed = False

    @property
    def is_complete(self) -> bool:
        """True if all members have arrived."""
        return self.results is not None

    def take(self, device: int) -> list[Array]:
        """Return the results of a member. Waits for the thread that computes them, and raises its error."""
        assert self.results is not None, "the meeting is complete"
        return self.results()[device]

    def has(self, member: int) -> bool:
        """True if the device has arrived."""
        return member in self.operands or member in self.sent


class Link(Protocol):
    """The way to the devices of other processes."""

    def owns(self, device: int) -> bool:
        """True for a device of this process."""
        ...

    def post(self, key: MeetingKey, thunk: CollectiveThunk, device: int, operands: Sequence[Array]) -> None:
        """Send the operands of a device of this process to the processes of the other members. Returns at once."""
        ...

    def send(self, channel: int, source: int, target: int, data: Sequence[Bytes]) -> None:
        """Send a message to a device of another process. Returns at once."""
        ...

    def arrays(self, thunk: CollectiveThunk, sent: Sequence[bytearray]) -> list[Array]:
        """Return the operands that `post` has sent; none if they are not needed here. Raises DeviceError for other sizes."""
        ...


class World(Struct):
    """The devices of a run, replica-major, their meetings, and the messages that were sent but not received yet.

    With a `link` some of the devices are in other processes. Results of long asynchronous collectives are computed by `workers`,
    which the first of them makes.
    """

    replicas: int = 1
    partitions: int = 1
    team: Team[Any] | None = None
    link: Link | None = None
    # By channel, source and target.
    messages: dict[tuple[int, int, int], deque[list[Bytes]]] = field(default_factory=dict[Any, "deque[list[Bytes]]"])
    meetings: dict[MeetingKey, Meeting] = field(default_factory=dict[MeetingKey, Meeting])
    rounds: dict[tuple[int, str, tuple[int, ...]], int] = field(default_factory=dict[Any, int])
    workers: ThreadPoolExecutor | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, team: Team[Any] | None) -> None:
        """Forget meetings and messages of the last run, and begin one of this team."""
        self.team = team
        with self.lock:
            self.meetings, self.messages, self.rounds = {}, {}, {}

    def owns(self, device: int) -> bool:
        """True for a device of this process."""
        return self.link is None or self.link.owns(device)

    def arrive(
        self, thunk: CollectiveThunk, members: tuple[int, ...], device: int, operands: list[Array], *, at_once: bool
    ) -> Meeting:
        """Bring a device's operands to the meeting of its group. With the last of them its results are computed.

        `at_once`: by this call. Otherwise in another thread if it takes long, so that the device can work on.
        """
        place = (device, thunk.key, members)
        number = self.rounds[place] = self.rounds.get(place, -1) + 1
        key = MeetingKey(thunk.key, members, number)
        with self.lock:
            meeting = self.meetings.setdefault(key, Meeting())
            meeting.thunk = thunk
            meeting.operands[device] = operands
        if self.link is not None:
            self.link.post(key, thunk, device, operands)
        self._compute_if_complete(key, meeting, at_once=at_once)
        return meeting

    def deliver(self, key: MeetingKey, device: int, sent: list[bytearray]) -> None:
        """Bring the operands of another process's device to a meeting. Called by the threads of connections."""
        with self.lock:
            meeting = self.meetings.setdefault(key, Meeting())
            meeting.sent[device] = sent
        self._compute_if_complete(key, meeting, at_once=False)
        if self.team is not None:
            self.team.wake()

    def box(self, channel: int, source: int, target: int) -> deque[list[Bytes]]:
        """Return the messages that were sent but not received yet."""
        with self.lock:
            return self.messages.setdefault((channel, source, target), deque())

    def send(self, channel: int, source: int, target: int, data: list[Bytes]) -> None:
        """Send a message of a device of this process."""
        if self.link is not None and not self.link.owns(target):
            self.link.send(channel, source, target, data)
        else:
            self.box(channel, source, target).append(data)

    def deliver_message(self, channel: int, source: int, target: int, data: list[Bytes]) -> None:
        """Bring a message of another process's device. Called by the threads of connections."""
        self.box(channel, source, target).append(data)
        if self.team is not None:
            self.team.wake()

    def _compute_if_complete(self, key: MeetingKey, meeting: Meeting, *, at_once: bool) -> None:
        with self.lock:
            if meeting.is_claimed or meeting.thunk is None or not all(map(meeting.has, key.members)):
                return
            meeting.is_claimed = True
            del self.meetings[key]
        thunk = meeting.thunk
        sent_bytes = len(key.members) * sum(spec.slice.size_bytes for spec in thunk.operands)
        if at_once or sent_bytes < WORTH_A_THREAD_BYTES:
            try:
                results = self._compute(thunk, key.members, meeting)
            except Exception as error:
                meeting.results = partial(_fail, error)  # every member raises it
            else:
                meeting.results = lambda: results
        else:
            meeting.results = self._pool().submit(self._compute, thunk, key.members, meeting).result

    def _pool(self) -> ThreadPoolExecutor:
        with self.lock:  # the threads of connections need it too
            if self.workers is None:
                from concurrent.futures import ThreadPoolExecutor

                self.workers = ThreadPoolExecutor(thread_name_prefix="collective")
            return self.workers

    def _compute(self, thunk: CollectiveThunk, members: tuple[int, ...], meeting: Meeting) -> dict[int, list[Array]]:
        link = self.link
        for member, sent in meeting.sent.items():
            assert link is not None, "only another process sends"
            meeting.operands[member] = link.arrays(thunk, sent)
        with np.errstate(all="ignore"):  # numpy keeps this setting per thread
            made = combine(thunk, [meeting.operands[member] for member in members])
        return dict(zip(members, made, strict=True))


def _fail(error: Exception) -> NoReturn:
    raise error
