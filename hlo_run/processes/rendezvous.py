"""How processes find each other: all call process 0, which tells them where the others listen; each calls those before it.

    caller: Greeting | listener: Challenge | caller: Hello | process 0, once all are there: Welcome

Challenge and Hello prove that the sender knows the secret of the run. The caller looks at the listener's proof before it says
anything about itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable

from msgspec import Struct

from hlo_run.errors import DeviceError, UsageError
from hlo_run.processes.launcher import Launch, device_names, split_address
from hlo_run.processes.messages import (
    MAGIC,
    BadMessage,
    Challenge,
    Closed,
    Greeting,
    Hello,
    Introduction,
    Message,
    Refusal,
    Welcome,
    introduction_bytes,
    receive,
    send,
)
from hlo_run.processes.secret import NONCE_BYTES, VARIABLE, is_proof, nonce, proof

# A process that is not one of ours may connect: what it sends before it has introduced itself is small.
_MOST_HEADER_BYTES = 1 << 20
_STRANGER_SECONDS = 10.0
_RETRY_SECONDS = 0.05
_BUSY_SECONDS = 5.0
_TELL_SECONDS = 5.0
# The parts in the talk, of which proofs are made, so that no side can send the proof of the other back to it.
_CALLER, _LISTENER = "caller", "listener"
_NO_SECRET = "it does not know the secret of this run"
_MOST_NAMED = 8
_SECRET_HINT = f"give all processes the same --secret_file=FILE or {VARIABLE}; without, each has the key of its user's home"
_SEE_HINT = "see what that process prints"
_PORT_HINT = "another program listens there: choose another port in --address"
_TIMEOUT_FLAG = "--gpu_client_initialization_timeout_sec"


class Meeting(Struct, frozen=True):
    """What all processes must agree on. `digest` is that of what they will run. They meet for at most `timeout_seconds`.

    Each has `each` devices of the run.
    """

    launch: Launch
    digest: str
    timeout_seconds: float
    secret: bytes
    each: int = 1


class _Stranger(Exception):
    """Whoever has connected is not one of the processes. The text is the reason."""


def meet(meeting: Meeting, say: Callable[[str], None]) -> dict[int, socket.socket]:
    """Return a connection to every other process.

    `say` prints where process 0 listens if the address leaves the port open, who was refused, and what hinders the meeting.

    Raises DeviceError if a process does not come in time, UsageError if one came to run something else.
    """
    deadline = time.monotonic() + meeting.timeout_seconds
    connections: dict[int, socket.socket] = {}
    try:
        if meeting.launch.number == 0:
            _gather(meeting, deadline, connections, say)
        else:
            _join(meeting, deadline, connections, say)
    except BaseException as error:  # an interrupt too leaves no open connection
        for connection in connections.values():
            connection.close()
        if isinstance(error, OSError):
            message = f"a connection broke while the processes met: {error.strerror or error}"
            raise DeviceError(message, hint="see what the other processes print") from None
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
    strangers: dict[str, None] = {}
    with _listening(host, port, deadline) as listener:
        if not port:
            say(f"process 0 listens at {_text(listener.getsockname())}")

        def late() -> DeviceError:
            return _late(meeting, connections, _text(listener.getsockname()), tuple(strangers))

        while len(connections) < launch.count - 1:
            _await_any(meeting, listener, connections, deadline)
            connection, address = _accepted(listener, deadline, late)
            try:
                introduction = _greeting(meeting, connection, deadline)
            except _Stranger as stranger:
                _refuse(connection, str(stranger))
                words = f"refused a connection from {address[0]}: {stranger}"
                if words not in strangers and len(strangers) < _MOST_NAMED:
                    strangers[words] = None
                    say(f"process 0 {words}")
                continue
            number = introduction.number
            problem = _problem(meeting, introduction, connections)
            if problem:
                _refuse(connection, problem)
                for other in connections.values():
                    _refuse(other, f"process {number} ({address[0]}) cannot take part: {problem}")
                raise UsageError(f"process {number} ({address[0]}): {problem}", hint="start all with the same command line")
            connections[number] = connection
            places[number] = address[0], introduction.port
    for number, connection in connections.items():
        try:
            send(connection, Welcome(tuple(places)))
        except OSError:
            raise _gone(meeting, number) from None


def _join(meeting: Meeting, deadline: float, connections: dict[int, socket.socket], say: Callable[[str], None]) -> None:
    """Introduce this process to process 0, then to those with smaller numbers; the others come to it."""
    launch = meeting.launch
    host, port = split_address(launch.address)
    first = connections[0] = _called(host, port, deadline, "process 0", say)
    with _listening(first.getsockname()[0], 0, deadline) as listener:
        introduction = Introduction(launch.count, launch.number, meeting.digest, listener.getsockname()[1])
        _introduce(meeting, first, introduction, deadline, f"process 0 at {launch.address}")
        places = _welcome(meeting, first, deadline).addresses
        for number in range(1, launch.number):
            other = connections[number] = _called(*places[number], deadline, f"process {number}", say)
            _introduce(meeting, other, introduction, deadline, f"process {number} at {_text(places[number])}")
        while len(connections) < launch.count - 1:
            connection, _ = _accepted(listener, deadline, lambda: _late(meeting, connections, "its own port"))
            try:
                greeting = _greeting(meeting, connection, deadline)
            except _Stranger as stranger:
                _refuse(connection, str(stranger))
                continue
            if _problem(meeting, greeting, connections):
                _refuse(connection, "not awaited")
                continue
            connections[greeting.number] = connection


def _introduce(meeting: Meeting, connection: socket.socket, introduction: Introduction, deadline: float, name: str) -> None:
    """Prove to a listener that this process knows the secret, and say who it is. Raises UsageError if it does not know it."""
    own = nonce()
    send(connection, Greeting(MAGIC, own))
    answer = _answer(
        meeting, connection, deadline, name, "it says nothing, so it may be another program, or process 0 of another run"
    )
    if not isinstance(answer, Challenge) or len(answer.nonce) != NONCE_BYTES:
        raise DeviceError(f"{name} is no process of this version of hlo-run", hint=_PORT_HINT)
    nonces = own, answer.nonce
    if not is_proof(answer.proof, meeting.secret, _LISTENER, nonces):
        raise UsageError(f"{name} does not know the secret of process {meeting.launch.number}", hint=_SECRET_HINT)
    said = introduction_bytes(introduction)
    send(connection, Hello(introduction, proof(meeting.secret, _CALLER, nonces, said)))


def _welcome(meeting: Meeting, connection: socket.socket, deadline: float) -> Welcome:
    """Wait until process 0 says that all are there."""
    message = _answer(meeting, connection, deadline, f"process 0 at {meeting.launch.address}", "it waits for others")
    if not isinstance(message, Welcome) or len(message.addresses) != meeting.launch.count:
        raise DeviceError(f"{meeting.launch.address} is no process of hlo-run that awaits this one", hint=_PORT_HINT)
    return message


def _answer(meeting: Meeting, connection: socket.socket, deadline: float, name: str, reason: str) -> Message:
    """Wait for what the listener `name` answers. Raises UsageError if it refuses this process.

    Raises DeviceError if it says nothing, for which `reason` is the likely reason.
    """
    deadline = max(deadline, time.monotonic() + _RETRY_SECONDS)
    try:
        message: Message = receive(connection, _MOST_HEADER_BYTES, 0, deadline)[0]
    except TimeoutError:
        message_text = f"{name} did not answer within {meeting.timeout_seconds:g} s: {reason}"
        raise DeviceError(message_text, hint=f"see what it prints; {_TIMEOUT_FLAG} sets the time") from None
    except (Closed, ConnectionError):
        raise DeviceError(f"{name} ended before all processes had come", hint=_SEE_HINT) from None
    except BadMessage as error:
        raise DeviceError(f"{name} is no process of hlo-run: {error}", hint=_PORT_HINT) from None
    if isinstance(message, Refusal):
        raise UsageError(f"{name} refuses process {meeting.launch.number}: {message.reason}")
    return message


def _problem(meeting: Meeting, introduction: Introduction, known: dict[int, socket.socket]) -> str:
    """Return why a process, which knows the secret, is not one of those that are awaited; empty: it is."""
    launch, number = meeting.launch, introduction.number
    if introduction.count != launch.count:
        return f"it is one of {introduction.count} processes, not of {launch.count}"
    if not 0 <= number < launch.count:
        return f"there is no process {number}"
    if number == launch.number or number in known:
        return f"there is a process {number} already"
    if introduction.digest != meeting.digest:
        return "it runs another module, or the same module with other flags"
    return ""


def _greeting(meeting: Meeting, connection: socket.socket, deadline: float) -> Introduction:
    """Return how a new connection introduces itself, once it has proved that it knows the secret. Raises _Stranger."""
    begin = time.monotonic()
    deadline = max(begin + _RETRY_SECONDS, min(begin + _STRANGER_SECONDS, deadline))
    try:
        greeting = receive(connection, _MOST_HEADER_BYTES, 0, deadline)[0]
        if not isinstance(greeting, Greeting) or greeting.magic != MAGIC or len(greeting.nonce) != NONCE_BYTES:
            raise _Stranger("it is no process of this version of hlo-run")
        nonces = greeting.nonce, nonce()
        send(connection, Challenge(nonces[1], proof(meeting.secret, _LISTENER, nonces)))
        try:
            hello = receive(connection, _MOST_HEADER_BYTES, 0, deadline)[0]
        except (Closed, ConnectionError):
            raise _Stranger(_NO_SECRET) from None
    except TimeoutError:
        raise _Stranger("it says nothing") from None
    except (OSError, Closed, BadMessage):
        raise _Stranger("it is no process of hlo-run") from None
    if not isinstance(hello, Hello):
        raise _Stranger("it is no process of this version of hlo-run")
    if not is_proof(hello.proof, meeting.secret, _CALLER, nonces, introduction_bytes(hello.introduction)):
        raise _Stranger(_NO_SECRET)
    return hello.introduction


def _refuse(connection: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError):
        send(connection, Refusal(reason))
    connection.close()


def _late(meeting: Meeting, connections: dict[int, socket.socket], place: str, strangers: tuple[str, ...] = ()) -> DeviceError:
    launch = meeting.launch
    missing = [number for number in range(launch.count) if number != launch.number and number not in connections]
    names = ", ".join(f"{number} ({device_names(number, meeting.each)})" for number in missing)
    noun = "process" if len(missing) == 1 else "processes"
    message = f"{noun} {names} of {launch.count} did not come to {place} within {meeting.timeout_seconds:g} s"
    hint = f"start every process with the same --address; {_TIMEOUT_FLAG} sets the time"
    return DeviceError(message, hint=_SECRET_HINT if any(_NO_SECRET in each for each in strangers) else hint, notes=strangers)


def _listening(host: str, port: int, deadline: float) -> socket.socket:
    """Return a socket that listens. A port that is in use is tried again for some seconds."""
    deadline = min(deadline, time.monotonic() + _BUSY_SECONDS)
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
            place, reason = _text((host, port)), error.strerror or str(error)
            busy = "another program, or process 0 of another run, listens there: choose another port in --address"
            hint = busy if error.errno == errno.EADDRINUSE else "process 0 must run on the host of --address"
            raise DeviceError(f"process 0 cannot listen at {place}: {reason}", hint=hint) from None
        return listener


def _await_any(meeting: Meeting, listener: socket.socket, connections: dict[int, socket.socket], deadline: float) -> None:
    """Wait until a process calls, or until the deadline. Raises DeviceError if one of those that have come ends meanwhile."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, -1)
        for number, connection in connections.items():
            selector.register(connection, selectors.EVENT_READ, number)
        for key, _ in selector.select(max(_RETRY_SECONDS, deadline - time.monotonic())):
            if key.data >= 0:  # nothing is to be read before the welcome
                raise _gone(meeting, key.data)


def _gone(meeting: Meeting, number: int) -> DeviceError:
    message = f"process {number} ({device_names(number, meeting.each)}) ended before all processes had come"
    return DeviceError(message, hint=_SEE_HINT)


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


def _called(host: str, port: int, deadline: float, name: str, say: Callable[[str], None]) -> socket.socket:
    """Connect to a process, which may start later than this one. Raises DeviceError after the deadline.

    `say` prints once what hinders it, if that takes longer.
    """
    tell = time.monotonic() + _TELL_SECONDS
    while True:
        left = deadline - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(_RETRY_SECONDS, left))
            if connection.getsockname() != connection.getpeername():
                return connection
            # While nothing listens at a port that the system also gives to callers, a caller may get and reach its own.
            connection.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:
            reason = error.strerror or str(error)
            if left <= 0:
                hint = f"start {name}; {_TIMEOUT_FLAG} sets the time to wait for it"
                raise DeviceError(f"{name} did not answer at {_text((host, port))}: {reason}", hint=hint) from None
            if time.monotonic() > tell:
                tell = deadline
                say(f"{name} does not answer at {_text((host, port))} ({reason}); trying for {left:.0f} s more")
            time.sleep(_RETRY_SECONDS)


def _text(address: tuple[str, int]) -> str:
    """Return HOST:PORT, in the form that `--address` takes."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
