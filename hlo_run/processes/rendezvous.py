"""How processes find each other: all call process 0, which tells them where the others listen; each calls those before it."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable

from msgspec import Struct

from hlo_run.errors import DeviceError, UsageError
from hlo_run.processes.launcher import Launch, split_address
from hlo_run.processes.messages import (
    MAGIC,
    BadMessage,
    Closed,
    Hello,
    Message,
    Refusal,
    Welcome,
    receive,
    send,
)

# A process that is not one of ours may connect: what it sends before it has introduced itself is small.
_MOST_HEADER_BYTES = 1 << 20
_STRANGER_SECONDS = 10.0
_RETRY_SECONDS = 0.05
_TIMEOUT_FLAG = "--gpu_client_initialization_timeout_sec"


class Meeting(Struct, frozen=True):
    """What all processes must agree on. `digest` is that of what they will run. They meet for at most `timeout_seconds`."""

    launch: Launch
    digest: str
    timeout_seconds: float


def meet(meeting: Meeting, say: Callable[[str], None]) -> dict[int, socket.socket]:
    """Return a connection to every other process. `say` prints where process 0 listens if the address leaves the port open.

    Raises DeviceError if a process does not come in time, UsageError if one came to run something else.
    """
    deadline = time.monotonic() + meeting.timeout_seconds
    connections: dict[int, socket.socket] = {}
    try:
        if meeting.launch.number == 0:
            _gather(meeting, deadline, connections, say)
        else:
            _join(meeting, deadline, connections)
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    for connection in connections.values():
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connections


def _gather(meeting: Meeting, deadline: float, connections: dict[int, socket.socket], say: Callable[[str], None]) -> None:
    """Process 0: wait for all others, then tell them each other's addresses."""
    launch = meeting.launch
    host, port = split_address(launch.address)
    places = [("", 0)] * launch.count
    with _listening(host, port, deadline) as listener:
        if not port:
            say(f"process 0 listens at {_text(listener.getsockname())}")
        while len(connections) < launch.count - 1:
            connection, address = _accepted(
                listener, deadline, lambda: _late(meeting, connections, _text(listener.getsockname()))
            )
            hello = _greeting(connection)
            problem = _problem(meeting, hello, connections)
            if hello is None or problem:
                _refuse(connection, problem)
                if hello is not None and hello.magic == MAGIC and hello.number not in connections:
                    _refuse_all(connections, problem)
                    raise UsageError(
                        f"process {hello.number} ({address[0]}): {problem}", hint="start all with the same command line"
                    )
                continue
            connections[hello.number] = connection
            places[hello.number] = address[0], hello.port
    for connection in connections.values():
        send(connection, Welcome(tuple(places)))


def _join(meeting: Meeting, deadline: float, connections: dict[int, socket.socket]) -> None:
    """Introduce this process to process 0, then to those with smaller numbers; the others come to it."""
    launch = meeting.launch
    host, port = split_address(launch.address)
    first = connections[0] = _called(host, port, deadline, "process 0")
    with _listening(first.getsockname()[0], 0, deadline) as listener:
        hello = Hello(MAGIC, launch.count, launch.number, meeting.digest, listener.getsockname()[1])
        send(first, hello)
        places = _welcome(meeting, first, deadline).addresses
        for number in range(1, launch.number):
            other = connections[number] = _called(*places[number], deadline, f"process {number}")
            send(other, hello)
        while len(connections) < launch.count - 1:
            connection, _ = _accepted(listener, deadline, lambda: _late(meeting, connections, "its own port"))
            greeting = _greeting(connection)
            if greeting is None or _problem(meeting, greeting, connections):
                _refuse(connection, "not awaited")
                continue
            connections[greeting.number] = connection


def _welcome(meeting: Meeting, connection: socket.socket, deadline: float) -> Welcome:
    """Wait for the answer of process 0."""
    connection.settimeout(max(_RETRY_SECONDS, deadline - time.monotonic()))
    try:
        message: Message = receive(connection, _MOST_HEADER_BYTES, 0)[0]
    except TimeoutError:
        raise DeviceError(f"process 0 did not answer within {meeting.timeout_seconds:g} s: it waits for others") from None
    except (Closed, ConnectionError):
        raise DeviceError("process 0 ended before all processes had come") from None
    except BadMessage as error:
        raise DeviceError(f"{meeting.launch.address} is no process of hlo-run: {error}") from None
    if isinstance(message, Refusal):
        raise UsageError(f"process 0 refuses process {meeting.launch.number}: {message.reason}")
    if not isinstance(message, Welcome) or len(message.addresses) != meeting.launch.count:
        raise DeviceError(f"{meeting.launch.address} is no process of hlo-run that awaits this one")
    return message


def _problem(meeting: Meeting, hello: Hello | None, known: dict[int, socket.socket]) -> str:
    """Return why a process is not one of those that are awaited; empty: it is."""
    launch = meeting.launch
    if hello is None or hello.magic != MAGIC:
        return "it is no process of this version of hlo-run"
    if hello.count != launch.count:
        return f"it is one of {hello.count} processes, not of {launch.count}"
    if not 0 <= hello.number < launch.count or hello.number == launch.number or hello.number in known:
        return (
            f"there is a process {hello.number} already" if hello.number < launch.count else f"there is no process {hello.number}"
        )
    if hello.digest != meeting.digest:
        return "it runs another module, or the same module with other flags"
    return ""


def _greeting(connection: socket.socket) -> Hello | None:
    """Return how a new connection introduces itself; None if it does not."""
    connection.settimeout(_STRANGER_SECONDS)
    try:
        message = receive(connection, _MOST_HEADER_BYTES, 0)[0]
    except (OSError, Closed, BadMessage):
        return None
    return message if isinstance(message, Hello) else None


def _refuse(connection: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError):
        send(connection, Refusal(reason))
    connection.close()


def _refuse_all(connections: dict[int, socket.socket], reason: str) -> None:
    for connection in connections.values():
        _refuse(connection, f"another process cannot take part: {reason}")


def _late(meeting: Meeting, connections: dict[int, socket.socket], place: str) -> DeviceError:
    launch = meeting.launch
    missing = [number for number in range(launch.count) if number != launch.number and number not in connections]
    names = "process " + ", ".join(map(str, missing)) if len(missing) == 1 else "processes " + ", ".join(map(str, missing))
    message = f"{names} of {launch.count} did not come to {place} within {meeting.timeout_seconds:g} s"
    return DeviceError(message, hint=f"start every process with the same --address; {_TIMEOUT_FLAG} sets the time")


def _listening(host: str, port: int, deadline: float) -> socket.socket:
    """Return a socket that listens. A port that is still in use is tried again until the deadline."""
    while True:
        listener: socket.socket | None = None
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError as error:
            if listener is not None:
                listener.close()
            if port and time.monotonic() < deadline and listener is not None and error.errno == errno.EADDRINUSE:
                time.sleep(_RETRY_SECONDS)
                continue
            reason = error.strerror or str(error)
            raise DeviceError(f"cannot listen at {host}:{port}: {reason}", hint="process 0 must run at --address") from None
        return listener


def _accepted(listener: socket.socket, deadline: float, late: Callable[[], DeviceError]) -> tuple[socket.socket, tuple[str, int]]:
    """Wait for a connection and return it with where it comes from. After the deadline, raises the error of `late`."""
    listener.settimeout(max(_RETRY_SECONDS, deadline - time.monotonic()))
    try:
        connection, address = listener.accept()
    except TimeoutError:
        raise late() from None
    if time.monotonic() > deadline:
        connection.close()
        raise late()
    return connection, (str(address[0]), int(address[1]))


def _called(host: str, port: int, deadline: float, name: str) -> socket.socket:
    """Connect to a process, which may start later than this one. Raises DeviceError after the deadline."""
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection((host, port), timeout=max(_RETRY_SECONDS, left))
        except OSError as error:
            if left <= 0:
                reason = error.strerror or str(error)
                hint = f"start {name}; {_TIMEOUT_FLAG} sets the time to wait for it"
                raise DeviceError(f"{name} did not answer at {host}:{port}: {reason}", hint=hint) from None
            time.sleep(_RETRY_SECONDS)


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
