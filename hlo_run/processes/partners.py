"""The other processes of a run: connections to them, their messages, and whether they are alive.

Two threads serve each connection, so that neither sending nor receiving holds up the work of this process. A third one sends
signs of life to all.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from hlo_run.errors import (
    DeviceError,
    HloRunError,
    Mismatch,
    ParseError,
    Unsupported,
    UsageError,
    Vacuous,
    known_error,
)
from hlo_run.processes.launcher import Launch
from hlo_run.processes.messages import BadMessage, Beat, Closed, Farewell, Message, Parcel, receive, send

BEAT_SECONDS = 0.5
# Headers name the members of a group, of which there may be some thousand.
_MOST_HEADER_BYTES = 1 << 24
_GOODBYE_SECONDS = 5.0
_SEE_HINT = "see what that process prints, or what has ended it"
_ERRORS = {error.exit_code: error for error in (Mismatch, UsageError, ParseError, Unsupported, DeviceError, Vacuous)}

# Gets every parcel as it arrives, in the thread of its connection. Returns False to leave it for `take`.
Receiver: TypeAlias = "Callable[[Parcel, list[bytearray]], bool]"


class _Partner(Struct):
    """A process: its connection, the bytes to send to it, when it was last heard of, and how it ended."""

    number: int
    connection: socket.socket
    outgoing: queue.SimpleQueue[tuple[Message, Sequence[memoryview]] | None]
    heard: float
    computed: float
    farewell: Farewell | None = None


class Partners:
    """The processes of a run, of which this one is `launch.number`.

    `most_bytes` is the most that one message may hold. A partner of which nothing was heard for `silence_seconds` counts as
    dead (0: never). `is_computing` says whether a device of this process works.
    """

    def __init__(
        self, launch: Launch, connections: dict[int, socket.socket], most_bytes: int, silence_seconds: float = 0.0
    ) -> None:
        self.launch = launch
        self.is_computing: Callable[[], bool] = lambda: True
        self._receiver: Receiver | None = None
        self._cause: Farewell | None = None
        self._most_bytes = most_bytes
        self._silence_seconds = silence_seconds
        self._condition = threading.Condition()
        self._parcels: dict[Parcel, deque[list[bytearray]]] = {}
        self._failure: HloRunError | None = None
        self._failed = -1
        self._ending = threading.Event()
        now = time.monotonic()
        self._partners = {
            number: _Partner(number, connection, queue.SimpleQueue(), now, now) for number, connection in connections.items()
        }
        partners = self._partners.values()
        self._senders = [threading.Thread(target=self._send, args=(partner,), daemon=True) for partner in partners]
        self._receivers = [threading.Thread(target=self._receive, args=(partner,), daemon=True) for partner in partners]
        self._pulse = threading.Thread(target=self._beat, daemon=True)

    def start(self, receiver: Receiver | None = None) -> None:
        """Begin to send and to receive. `receiver` gets every parcel as it arrives."""
        self._receiver = receiver
        for thread in (*self._senders, *self._receivers, self._pulse):
            thread.start()

    @property
    def cause(self) -> Farewell | None:
        """The farewell of the first process that failed; None: none did."""
        return self._cause

    @property
    def culprit(self) -> int:
        """The number of the first process that failed or died; -1: none did."""
        return self._cause.origin if self._cause is not None else self._failed

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other processes."""
        return tuple(sorted(self._partners))

    def post(self, number: int, parcel: Parcel, arrays: Sequence[memoryview] = ()) -> None:
        """Send arrays (contiguous bytes, which must not change any more) to a process. Returns at once."""
        self._partners[number].outgoing.put((parcel, arrays))

    def take(self, number: int, parcel: Parcel, deadline: float | None = None) -> list[bytearray]:
        """Wait for arrays that a process sends with this label. Raises DeviceError after the deadline or if the process ends."""
        with self._condition:
            while not self._parcels.get(parcel):
                self._check(number)
                if deadline is not None and time.monotonic() > deadline:
                    raise DeviceError(f"process {number} did not send its {parcel.kind} in time")
                self._condition.wait(BEAT_SECONDS)
            waiting = self._parcels[parcel]
            found = waiting.popleft()
            if not waiting:
                del self._parcels[parcel]
            return found

    def take_any(self, number: int, kinds: Sequence[str]) -> tuple[Parcel, list[bytearray]] | Farewell:
        """Wait for arrays of one of these kinds, or for the farewell of a process. Raises DeviceError if it dies."""
        with self._condition:
            while True:
                found = next((parcel for parcel in self._parcels if parcel.kind in kinds), None)
                if found is not None:
                    return found, self._parcels.pop(found).popleft()
                farewell = self._partners[number].farewell
                if farewell is not None:
                    return farewell
                self._check(number)
                self._condition.wait(BEAT_SECONDS)

    def problem(self, number: int) -> HloRunError | None:
        """Return why a process sends nothing more; None if it is alive."""
        partner = self._partners[number]
        if self._cause is not None:
            return farewell_error(self._cause)
        if partner.farewell is not None:
            return DeviceError(f"process {number} has ended", hint=_SEE_HINT)
        if self._failure is not None:
            return self._failure
        silent = time.monotonic() - partner.heard
        if self._silence_seconds and silent > self._silence_seconds:
            hint = "see whether it is stopped; --xla_gpu_executable_terminate_timeout_seconds sets the time"
            return DeviceError(f"process {number} is silent: nothing was heard of it for {silent:.0f} s", hint=hint)
        return None

    def computed(self, number: int) -> float:
        """Return the time (of `time.monotonic`) at which a process last said that one of its devices works."""
        return self._partners[number].computed

    def close(self, error: BaseException | None = None) -> None:
        """Say farewell to all, which learn of `error`, and close the connections. Earlier posts are sent first.

        A connection is closed when its partner has said farewell or sends no more: to close it with messages unread
        resets it, and the partner loses what it has not read yet.
        """
        farewell = farewell_of_error(error, self.launch.number, self._cause)
        self._ending.set()
        for partner in self._partners.values():
            partner.outgoing.put((farewell, ()))
            partner.outgoing.put(None)
        end = time.monotonic() + _GOODBYE_SECONDS
        for thread in (*self._senders, *self._receivers):
            thread.join(max(0.0, end - time.monotonic()))
        for partner in self._partners.values():
            partner.connection.close()

    # ---- threads ------------------------------------------------------------------------------------------------

    def _receive(self, partner: _Partner) -> None:
        error: HloRunError

        def progress() -> None:  # signs of life wait until a long message has gone
            partner.heard = partner.computed = time.monotonic()

        try:
            while partner.farewell is None:
                message = receive(partner.connection, _MOST_HEADER_BYTES, self._most_bytes, progress=progress)
                self._arrived(partner, *message)
            return
        except Closed:
            error = DeviceError(f"process {partner.number} ended without a word: its connection is closed", hint=_SEE_HINT)
        except BadMessage as bad:
            error = DeviceError(f"process {partner.number} sent something that is not a message: {bad}")
        except OSError as bad:
            error = _broken(partner.number, bad)
        except ValueError as bad:  # labels with other numbers
            error = DeviceError(f"process {partner.number} sends what nothing here awaits: {bad}")
        if not self._ending.is_set():
            self._fail(partner.number, error)

    def _arrived(self, partner: _Partner, message: Message, arrays: list[bytearray]) -> None:
        partner.heard = time.monotonic()
        match message:
            case Beat():
                if message.computing:
                    partner.computed = partner.heard
            case Parcel():
                partner.computed = partner.heard
                if self._receiver is not None and self._receiver(message, arrays):
                    return
                with self._condition:
                    self._parcels.setdefault(message, deque()).append(arrays)
                    self._condition.notify_all()
            case Farewell():
                with self._condition:
                    partner.farewell = message
                    if message.code and self._cause is None:
                        self._cause = message
                    self._condition.notify_all()
                partner.outgoing.put(None)  # the other process reads no more messages
            case _:
                raise BadMessage(f"a {type(message).__name__} after the beginning")

    def _send(self, partner: _Partner) -> None:
        try:
            while (item := partner.outgoing.get()) is not None:
                send(partner.connection, *item)
            partner.connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the thread that receives learns why: a farewell may have come before the end

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            beat = Beat(self.is_computing())
            for partner in self._partners.values():
                partner.outgoing.put((beat, ()))

    def _fail(self, number: int, error: HloRunError) -> None:
        with self._condition:
            if self._failure is None:
                self._failure, self._failed = error, number
            self._condition.notify_all()

    def _check(self, number: int) -> None:
        problem = self.problem(number)
        if problem is not None:
            raise problem


def _broken(number: int, error: OSError) -> DeviceError:
    return DeviceError(f"the connection to process {number} broke: {error.strerror or error}", hint=_SEE_HINT)


def farewell_of_error(error: BaseException | None, number: int, cause: Farewell | None = None) -> Farewell:
    """Return the farewell of process `number`, which raised `error` (None: it ended well).

    `cause` are those of another process, because of which this one ends.
    """
    if error is None:
        return Farewell(0, number)
    if cause is not None:
        return cause
    if not isinstance(error, Exception):
        return Farewell(130, number, "interrupted")
    known = known_error(error)
    where = f"{known.where}: " if known.where is not None else ""
    return Farewell(known.exit_code, number, where + known.message, known.notes)


def farewell_error(farewell: Farewell) -> HloRunError:
    """Return the error for a process that did not end well."""
    error = _ERRORS.get(farewell.code, DeviceError)
    name = f"process {farewell.origin}" if farewell.origin >= 0 else "a process without number"
    return error(f"{name}: {farewell.message}", notes=farewell.notes, hint=f"see what {name} prints")
