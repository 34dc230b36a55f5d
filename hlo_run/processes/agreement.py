"""The processes of a run between their meeting and the run: all have compiled the same, or all end because one has failed.

No thread reads here, as the compiler forks. A process that has compiled sends `Ready` to all others and waits for theirs. What
the others send before that waits in its connections.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence

from msgspec import Struct, field

from hlo_run.errors import DeviceError, UsageError
from hlo_run.processes.launcher import Launch, device_names
from hlo_run.processes.messages import BadMessage, Closed, Farewell, Ready, receive, send
from hlo_run.processes.partners import farewell_error, farewell_of_error

_MOST_HEADER_BYTES = 1 << 20
# Time for the rest of a message that has begun to come.
_MESSAGE_SECONDS = 10.0
_SEE_HINT = "see what that process prints, or what has ended it"
_SAME_HINT = "start all with the same command line"
TIMEOUT_FLAG = "--gpu_client_initialization_timeout_sec"


class Met(Struct):
    """The processes that have met: a connection to each of the others, and their compilations as far as known.

    Each has `each` devices. `cause` are the words of the process that failed first, if one did.
    """

    launch: Launch
    each: int
    connections: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])
    ready: dict[int, Ready] = field(default_factory=dict[int, Ready])
    cause: Farewell | None = None

    def name(self, number: int) -> str:
        """Return the name of a process, with its devices."""
        return f"process {number} ({device_names(number, self.each)})"

    def hear(self, number: int) -> None:
        """Read from a process that it is ready. Raises the error with which it ends, if it does."""
        try:
            message = receive(self.connections[number], _MOST_HEADER_BYTES, 0, time.monotonic() + _MESSAGE_SECONDS)[0]
        except (OSError, Closed):
            raise DeviceError(f"{self.name(number)} ended before the run began", hint=_SEE_HINT) from None
        except BadMessage as error:
            raise DeviceError(f"{self.name(number)} sent something that is not a message: {error}") from None
        match message:
            case Ready():
                self.ready[number] = message
            case Farewell():
                self.cause = message
                raise farewell_error(message)
            case _:
                raise DeviceError(f"{self.name(number)} sends a {type(message).__name__} before the run")

    def agree(self, own: Ready, timeout_seconds: float) -> None:
        """Say that this process is ready, and wait until all others are. Raises the error of a process that failed.

        Raises UsageError if they have not compiled the same, and DeviceError if one is not ready in time.
        """
        number = self.launch.number
        for connection in self.connections.values():
            with contextlib.suppress(OSError):  # one that has ended has perhaps said why
                send(connection, own)
        self._await_ready(time.monotonic() + timeout_seconds, timeout_seconds)
        for connection in self.connections.values():
            connection.settimeout(None)
        every = {**self.ready, number: own}
        for other in range(1, self.launch.count):
            problem = _difference(every[0], every[other])
            if problem:
                raise UsageError(f"process {other} {problem}", hint=_SAME_HINT)

    def close(self, error: BaseException | None) -> None:
        """End the connections after `error`, of which the others learn."""
        words = farewell_of_error(error, self.launch.number, self.cause)
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.settimeout(_MESSAGE_SECONDS)
                send(connection, words)
            connection.close()

    def _await_ready(self, deadline: float, timeout_seconds: float) -> None:
        """Read until all are ready. One that was ready may still fail."""
        with selectors.DefaultSelector() as selector:
            for number, connection in self.connections.items():
                selector.register(connection, selectors.EVENT_READ, number)
            while missing := sorted(self.connections.keys() - self.ready.keys()):
                found = selector.select(max(0.0, deadline - time.monotonic()))
                if not found:
                    late = ", ".join(map(self.name, missing))
                    message = f"{late} did not compile the module within {timeout_seconds:g} s after this process"
                    raise DeviceError(message, hint=f"see whether it is stopped; {TIMEOUT_FLAG} sets the time")
                for key, _ in found:
                    number, connection = key.data, self.connections[key.data]
                    if number not in self.ready or not connection.recv(1, socket.MSG_PEEK):
                        self.hear(number)
                    else:  # it has heard of all others already, and the run begins
                        selector.unregister(connection)


def _difference(first: Ready, other: Ready) -> str:
    """Return what a process has compiled that is not what process 0 has; empty: nothing."""
    devices = [f"{each.replicas} x {each.partitions} (replicas x partitions)" for each in (other, first)]
    if devices[0] != devices[1]:
        return f"runs on {devices[0]} devices, process 0 on {devices[1]}"
    if other.executable == first.executable:
        return ""
    if other.module != first.module:
        names = "" if other.file == first.file else f": {other.file}, not {first.file}"
        return f"runs another module than process 0{names}"
    mine, theirs = _only(other.flags, first.flags), _only(first.flags, other.flags)
    if mine != theirs:
        return f"compiles the module with other flags than process 0: {mine}, not {theirs}"
    return "has compiled another executable than process 0: its GPU or its version of hlo-run is another"


def _only(flags: Sequence[str], others: Sequence[str]) -> str:
    """Return the flags that are not among others, as text."""
    return " ".join(sorted({*flags} - {*others})) or "no such flags"
