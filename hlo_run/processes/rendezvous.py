"""Lets processes find each other: all call process 0, which tells where the others listen; each calls the processes before it.

    caller: Greeting | listener: Challenge | caller: Hello | process 0, once all are there: Welcome

A process that fails before it could meet the others calls process 0 too, and says why: so all end at once.

Challenge and Hello prove that the sender knows the secret of the run. The caller looks at the listener's proof before it says
anything about itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from hlo_run.errors import DeviceError, HloRunError, UsageError
from hlo_run.processes.agreement import TIMEOUT_FLAG, Met
from hlo_run.processes.launcher import Launch, split_address
from hlo_run.processes.messages import (
    MAGIC,
    BadMessage,
    Challenge,
    Closed,
    Farewell,
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
from hlo_run.processes.partners import farewell_error, farewell_of_error
from hlo_run.processes.secret import NONCE_BYTES, VARIABLE, is_proof, nonce, proof

# A process that is not one of ours may connect: what it sends before it has introduced itself is small.
_MOST_HEADER_BYTES = 1 << 20
_STRANGER_SECONDS = 10.0
_RETRY_SECONDS = 0.05
_BUSY_SECONDS = 5.0
_TELL_SECONDS = 5.0
# A process that fails tells those that it has not met yet, which start at about the same time.
_FAREWELL_SECONDS = 10.0
_PATIENT_SECONDS = 1.0
# All listen before the welcome, so they are reached at once or have ended.
_LINK_SECONDS = 20.0
# A process that fails tells all. One that ends because of it may do so before process 0 is heard.
_CAUSE_SECONDS = 1.0
# The parts in the talk, of which proofs are made, so that no side can send the proof of the other back to it.
_CALLER, _LISTENER = "caller", "listener"
_NO_SECRET = "it does not know the secret of this run"
_MOST_NAMED = 8
_SECRET_HINT = f"give all processes the same --secret_file=FILE or {VARIABLE}; without, each has the key of its user's home"
_SEE_HINT = "see what that process prints"
_PORT_HINT = "another program listens there: choose another port in --address"


class Meeting(Struct, frozen=True):
    """The facts on which processes must agree: `file` is the number of the input file. They meet for at most `timeout_seconds`.

    Each has `each` devices of the run.
    """

    launch: Launch
    timeout_seconds: float
    secret: bytes
    file: int = 0
    each: int = 1


class _Roll(Struct):
    """The number of processes that should call process 0, and of those that did, refused ones included."""

    expected: int
    called: int = 0

    @property
    def is_open(self) -> bool:
        """True if more calls should come."""
        return self.called < self.expected


class _Stranger(Exception):
    """Whoever has connected is not one of the processes. The text is the reason."""


def meet(meeting: Meeting, say: Callable[[str], None]) -> Met:
    """Return the connections to all other processes.

    `say` prints where process 0 listens if the address leaves the port open, who was refused, and what hinders the meeting.

    Raises DeviceError if a process does not come in time or ends, its error if it fails before the meeting, and UsageError if one
    came to something else.
    """
    deadline = time.monotonic() + meeting.timeout_seconds
    met = Met(meeting.launch, meeting.each)
    try:
        if meeting.launch.number == 0:
            _gather(meeting, deadline, met, say)
        else:
            _join(meeting, deadline, met, say)
    except BaseException as error:  # an interrupt too leaves no open connection
        for connection in met.connections.values():
            connection.close()
        if isinstance(error, OSError):
            message = f"a connection broke while the processes met: {error.strerror or error}"
            raise DeviceError(message, hint="see what the other processes print") from None
        raise
    for connection in met.connections.values():
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return met


def tell_failure(launch: Launch, secret: bytes, error: HloRunError, say: Callable[[str], None], file: int = -1) -> None:
    """Tell the other processes that this one has failed before it could meet them. Gives up after some seconds.

    `say` prints what it waits for, if they do not come at once.

    `file` is the number of the input file (-1: all of them fail). A process whose number is below 0 does not know it. Does
    nothing if the others cannot know where process 0 listens.
    """
    meeting = Meeting(launch, _FAREWELL_SECONDS, secret)
    deadline = time.monotonic() + _FAREWELL_SECONDS
    host, port = split_address(launch.address)
    if not port:
        return
    failure = farewell_of_error(error, launch.number)
    with contextlib.suppress(HloRunError, OSError):  # the others are not there: the error itself is printed
        if launch.number == 0:
            with _listening(host, port, deadline) as listener:
                _turn_away(meeting, listener, _Roll(launch.count - 1), failure, say)
            return
        with _called(host, port, deadline, "process 0", say) as first:
            introduction = Introduction(launch.count, launch.number, file, 0, failure)
            _introduce(meeting, first, introduction, deadline, "process 0")
            _answer(meeting, first, deadline, "process 0", "")


def _gather(meeting: Meeting, deadline: float, met: Met, say: Callable[[str], None]) -> None:
    """Process 0: wait for all others, then tell them each other's addresses."""
    host, port = split_address(meeting.launch.address)
    with _listening(host, port, deadline) as listener:
        if not port:
            say(f"process 0 listens at {_text(listener.getsockname())}")
        roll = _Roll(meeting.launch.count - 1)
        try:
            places = _callers(meeting, listener, deadline, met, roll, say)
        except HloRunError as error:
            failure = met.cause or farewell_of_error(error, 0)
            for connection in met.connections.values():
                _refuse(connection, failure.message, failure)
            if roll.is_open and time.monotonic() < deadline:
                _turn_away(meeting, listener, roll, failure, say)
            raise
    for number, connection in met.connections.items():
        try:
            send(connection, Welcome(tuple(places)))
        except OSError:
            raise _gone(met, number) from None


def _callers(
    meeting: Meeting, listener: socket.socket, deadline: float, met: Met, roll: _Roll, say: Callable[[str], None]
) -> list[tuple[str, int]]:
    """Connect to all other processes as they call, and return where they listen, by number. Counts the calls in `roll`."""
    places = [("", 0)] * meeting.launch.count
    strangers: dict[str, None] = {}
    tell = time.monotonic() + _TELL_SECONDS

    def late() -> DeviceError:
        return _late(met, meeting, _text(listener.getsockname()), tuple(strangers))

    while roll.is_open:
        if not _has_caller(listener, met, min(deadline, tell)):
            if time.monotonic() > deadline:
                raise late()
            tell = deadline
            left = deadline - time.monotonic()
            say(f"process 0 waits for {_missing(met)} at {_text(listener.getsockname())}, for {left:.0f} s more")
            continue
        connection, address = _accepted(listener)
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
        if introduction.failure is not None and introduction.file not in (-1, meeting.file):
            _refuse(connection, "its file is done")
            continue
        roll.expected = max(roll.expected, introduction.count - 1)
        roll.called += 1
        if introduction.failure is not None:
            met.cause = introduction.failure
            _refuse(connection, "it has failed", met.cause)
            raise farewell_error(met.cause)
        problem = _problem(meeting, introduction, met)
        if problem:
            _refuse(connection, problem)
            hint = "start all with the same command line"
            raise UsageError(f"process {number} ({address[0]}) cannot take part: {problem}", hint=hint)
        met.connections[number] = connection
        places[number] = address[0], introduction.port
    return places


def _turn_away(meeting: Meeting, listener: socket.socket, roll: _Roll, failure: Farewell, say: Callable[[str], None]) -> None:
    """Tell those that have not called yet, as they do, that the run does not take place. Gives up after some seconds."""
    begin = time.monotonic()
    deadline, tell = begin + _FAREWELL_SECONDS, begin + _PATIENT_SECONDS
    while roll.is_open:
        if not _has_caller(listener, Met(meeting.launch, 1), tell):
            if tell == deadline:
                return
            tell = deadline
            say(f"process 0 waits up to {_FAREWELL_SECONDS:g} s for the others, to tell them: {failure.message}")
            continue
        connection, _ = _accepted(listener)
        try:
            introduction = _greeting(meeting, connection, deadline)
        except _Stranger as stranger:
            _refuse(connection, str(stranger))
        else:
            roll.expected = max(roll.expected, introduction.count - 1)
            roll.called += 1
            _refuse(connection, failure.message, failure)


def _join(meeting: Meeting, deadline: float, met: Met, say: Callable[[str], None]) -> None:
    """Introduce this process to process 0, then to those with smaller numbers; the others come to it."""
    launch, connections = meeting.launch, met.connections
    host, port = split_address(launch.address)
    first = connections[0] = _called(host, port, deadline, "process 0", say)
    with _listening(first.getsockname()[0], 0, deadline) as listener:
        introduction = Introduction(launch.count, launch.number, meeting.file, listener.getsockname()[1])
        _introduce(meeting, first, introduction, deadline, f"process 0 at {launch.address}")
        places = _welcome(meeting, first, deadline).addresses
        try:
            _link(meeting, listener, introduction, places, min(deadline, time.monotonic() + _LINK_SECONDS), met)
        except HloRunError:
            if met.cause is None and select.select([first], [], [], _CAUSE_SECONDS)[0]:
                met.hear(0)  # process 0 may know why
            raise


def _link(
    meeting: Meeting,
    listener: socket.socket,
    introduction: Introduction,
    places: Sequence[tuple[str, int]],
    deadline: float,
    met: Met,
) -> None:
    """Call the processes between process 0 and this one, and wait for those after it. `places` are where they listen."""
    launch, connections = meeting.launch, met.connections
    for number in range(1, launch.number):
        other = connections[number] = _called(*places[number], deadline, met.name(number), None)
        _introduce(meeting, other, introduction, deadline, f"process {number} at {_text(places[number])}")
    while len(connections) < launch.count - 1:
        if not _has_caller(listener, met, deadline):
            raise _late(met, meeting, "its own port")
        connection, _ = _accepted(listener)
        try:
            greeting = _greeting(meeting, connection, deadline)
        except _Stranger as stranger:
            _refuse(connection, str(stranger))
            continue
        if _problem(meeting, greeting, met):
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
    """Wait until process 0 says that all have come."""
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
        raise DeviceError(message_text, hint=f"see what it prints; {TIMEOUT_FLAG} sets the time") from None
    except (Closed, ConnectionError):
        raise DeviceError(f"{name} ended before all processes had come", hint=_SEE_HINT) from None
    except BadMessage as error:
        raise DeviceError(f"{name} is no process of hlo-run: {error}", hint=_PORT_HINT) from None
    if isinstance(message, Refusal) and message.failure is not None:
        raise farewell_error(message.failure)
    if isinstance(message, Refusal):
        raise UsageError(f"{name} refuses process {meeting.launch.number}: {message.reason}")
    return message


def _problem(meeting: Meeting, introduction: Introduction, met: Met) -> str:
    """Return why a process, which knows the secret, is not one of those that are awaited; empty: it is."""
    launch, number = meeting.launch, introduction.number
    if introduction.count != launch.count:
        return f"it is one of {introduction.count} processes, not of {launch.count}"
    if not 0 <= number < launch.count:
        return f"there is no process {number}"
    if number == launch.number or number in met.connections:
        return f"there is a process {number} already"
    if introduction.file != meeting.file:
        return f"it is at file {introduction.file + 1} of its command line, not at file {meeting.file + 1}"
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


def _refuse(connection: socket.socket, reason: str, failure: Farewell | None = None) -> None:
    with contextlib.suppress(OSError):
        send(connection, Refusal(reason, failure))
    connection.close()


def _missing(met: Met) -> str:
    """Return the names of the processes that have not come."""
    launch = met.launch
    missing = [number for number in range(launch.count) if number != launch.number and number not in met.connections]
    names = ", ".join(met.name(number).removeprefix("process ") for number in missing)
    return f"{'process' if len(missing) == 1 else 'processes'} {names} of {launch.count}"


def _late(met: Met, meeting: Meeting, place: str, strangers: tuple[str, ...] = ()) -> DeviceError:
    message = f"{_missing(met)} did not come to {place} within {meeting.timeout_seconds:g} s"
    hint = f"start every process with the same --address; {TIMEOUT_FLAG} sets the time"
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


def _has_caller(listener: socket.socket, met: Met, deadline: float) -> bool:
    """Wait until a process calls; False: none did until the deadline. Raises the error of one that has come and fails."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, -1)
        for number, connection in met.connections.items():
            if number not in met.ready:
                selector.register(connection, selectors.EVENT_READ, number)
        found = selector.select(max(_RETRY_SECONDS, deadline - time.monotonic()))
        for number in (key.data for key, _ in found if key.data >= 0):
            if met.launch.number == 0:  # nothing is to be read before the welcome
                raise _gone(met, number)
            met.hear(number)
        return any(key.data < 0 for key, _ in found) or (bool(found) and _has_caller(listener, met, deadline))


def _gone(met: Met, number: int) -> DeviceError:
    return DeviceError(f"{met.name(number)} ended before all processes had come", hint=_SEE_HINT)


def _accepted(listener: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
    """Accept a connection that waits, and return it with where it comes from."""
    connection, address = listener.accept()
    return connection, (str(address[0]), int(address[1]))


def _called(host: str, port: int, deadline: float, name: str, say: Callable[[str], None] | None) -> socket.socket:
    """Connect to a process, which may start later than this one. Raises DeviceError after the deadline.

    `say` prints once what hinders it, if that takes longer. None: the process listens already, or has ended.
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
            if say is None:
                raise DeviceError(f"{name} ended before all processes had come", hint=_SEE_HINT) from None
            if left <= 0:
                hint = f"start {name}; {TIMEOUT_FLAG} sets the time to wait for it"
                raise DeviceError(f"{name} did not answer at {_text((host, port))}: {reason}", hint=hint) from None
            if time.monotonic() > tell:
                tell = deadline
                say(f"{name} does not answer at {_text((host, port))} ({reason}); trying for {left:.0f} s more")
            time.sleep(_RETRY_SECONDS)


def _text(address: tuple[str, int]) -> str:
    """Return HOST:PORT, in the form that `--address` takes."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
