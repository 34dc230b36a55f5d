"""The meeting of processes, and messages from strangers. The processes are threads."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from clocks import Clock, use_clock

from hlo_run.errors import DeviceError, HloRunError, ParseError, UsageError
from hlo_run.processes import rendezvous
from hlo_run.processes.agreement import Met
from hlo_run.processes.launcher import Launch, split_address
from hlo_run.processes.messages import (
    MAGIC,
    BadMessage,
    Beat,
    Challenge,
    Closed,
    Farewell,
    Greeting,
    Hello,
    Introduction,
    Message,
    Parcel,
    Ready,
    Refusal,
    introduction_bytes,
    receive,
    send,
)
from hlo_run.processes.partners import Partners
from hlo_run.processes.rendezvous import Meeting, meet, tell_failure
from hlo_run.processes.secret import proof
from hlo_run.records import replace

_MANY = 1 << 20
_SECRET = b"known to all processes"
# Longer than any machine needs for what a test awaits.
_LONG = 5000.0


class Place:
    """Where process 0 listens, for those that call it."""

    def __init__(self) -> None:
        self._text = ""
        self._known = threading.Event()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)
        if not self._text:
            self._text = text.rsplit(" ", 1)[1]
            self._known.set()

    def address(self) -> str:
        assert self._known.wait(_LONG)
        return self._text


def _meet(place: Place, count: int, number: int, file: int = 0, seconds: float = _LONG, secret: bytes = _SECRET) -> Met:
    address = place.address() if number else "127.0.0.1:0"
    return meet(Meeting(Launch(count, number, address), seconds, secret, file), place.say)


def _met(*numbers: int) -> list[Met]:
    """Return processes that have met."""
    place = Place()
    return _together(*(lambda number=number: _meet(place, len(numbers), number) for number in numbers))


def _ready(**changes: Any) -> Ready:
    return replace(Ready("m.hlo", "module", "executable", 2, 1, ("--a=1",)), **changes)


def _together(*works: Callable[[], Any]) -> list[Any]:
    """Call functions at the same time; return what each returned or raised."""
    found: list[Any] = [None] * len(works)

    def call(number: int) -> None:
        try:
            found[number] = works[number]()
        except HloRunError as error:
            found[number] = error

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_processes_reach_each_other_and_strangers_are_left_out() -> None:
    place = Place()
    has_called = threading.Event()

    def stranger() -> str:
        with socket.create_connection(split_address(place.address())) as connection:
            has_called.set()
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            try:
                return "" if connection.recv(1) else "closed"
            except ConnectionError:  # it was closed before all was read
                return "closed"

    def partners(number: int) -> list[int]:
        assert not number or has_called.wait(_LONG), "process 0 listens until all have come"
        met = _meet(place, 3, number)
        met.agree(_ready(), _LONG)  # parcels come after it
        mine = Partners(Launch(3, number), met.connections, _MANY)
        mine.start()
        for other in mine.others:
            mine.post(other, Parcel("hail", number, "é", (other,)), [memoryview(bytes([number] * 3)), memoryview(b"")])
        heard = [mine.take(other, Parcel("hail", other, "é", (number,))) for other in mine.others]
        mine.close()
        assert heard == [[bytearray([other] * 3), bytearray()] for other in mine.others]
        return list(mine.others)

    found = _together(stranger, *(lambda number=number: partners(number) for number in range(3)))
    assert found[1:] == [[1, 2], [0, 2], [0, 1]]
    assert found[0] in ("", "closed")


def test_processes_at_other_files_are_refused() -> None:
    place = Place()
    first, second = _together(lambda: _meet(place, 2, 0), lambda: _meet(place, 2, 1, file=2))
    assert isinstance(first, UsageError)
    assert isinstance(second, UsageError)
    assert "process 1 (127.0.0.1) cannot take part: it is at file 3 of its command line" in first.message
    assert "refuses process 1: it is at file 3" in second.message


def test_processes_with_another_count_are_all_refused_at_once() -> None:
    """Process 2 calls after the meeting has failed, and is beyond the count of process 0."""
    place = Place()
    second_is_done = threading.Event()

    def second() -> Met:
        try:
            return _meet(place, 3, 1)
        finally:
            second_is_done.set()

    def third() -> Met:
        assert second_is_done.wait(_LONG)
        return _meet(place, 3, 2)

    found = _together(lambda: _meet(place, 2, 0), second, third)
    assert all(isinstance(error, UsageError) for error in found)
    assert "it is one of 3 processes, not of 2" in found[0].message
    assert found[2].message == f"process 0: {found[0].message}"


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_fails_before_the_meeting_tells_the_others(number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    meetings = [Meeting(Launch(3, each, address), _LONG, _SECRET) for each in range(3)]
    works: list[Callable[[], Any]] = [lambda meeting=meeting: meet(meeting, print) for meeting in meetings]
    works[number] = lambda: tell_failure(Launch(3, number, address), _SECRET, ParseError("no module"), print)
    found = _together(*works)
    assert found.pop(number) is None
    assert [type(error) for error in found] == [ParseError] * 2
    assert {error.message for error in found} == {f"process {number}: no module"}


def test_processes_agree() -> None:
    both = _met(0, 1)
    ready = [_ready(), _ready(file="./m.hlo", flags=("--b=1",))]
    found = _together(*(lambda met=met, own=own: met.agree(own, _LONG) for met, own in zip(both, ready, strict=True)))
    assert found == [None] * 2
    for met in both:
        met.close(None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 4}, "process 1 runs on 4 x 1 (replicas x partitions) devices, process 0 on 2 x 1"),
        ({"module": "o", "executable": "o", "file": "o.hlo"}, "process 1 runs another module than process 0: o.hlo, not m.hlo"),
        (
            {"executable": "o", "flags": ("--b=2",)},
            "process 1 compiles the module with other flags than process 0: --b=2, not --a=1",
        ),
        ({"executable": "o"}, "process 1 has compiled another executable than process 0"),
    ],
)
def test_processes_that_do_not_agree_end_with_the_same_words(changes: dict[str, Any], message: str) -> None:
    many = _met(0, 1, 2)
    ready = [_ready(), _ready(**changes), _ready()]
    found = _together(*(lambda met=met, own=own: met.agree(own, _LONG) for met, own in zip(many, ready, strict=True)))
    assert {type(error) for error in found} == {UsageError}
    assert {error.message.startswith(message) for error in found} == {True}, found[0].message
    for met in many:
        met.close(found[0])


def test_a_process_that_fails_or_ends_while_it_compiles_ends_the_others() -> None:
    first, second = _met(0, 1)
    second.close(MemoryError())
    with pytest.raises(DeviceError, match="process 1: out of memory"):
        first.agree(_ready(), _LONG)
    assert first.cause == Farewell(5, 1, "out of memory")
    first.close(None)
    first, second = _met(0, 1)
    second.connections[0].close()
    with pytest.raises(DeviceError, match=r"process 1 \(device 1\) ended before the run began"):
        first.agree(_ready(), _LONG)
    first.close(None)
    first, second = _met(0, 1)
    with pytest.raises(DeviceError, match=r"process 1 \(device 1\) did not compile the module within 0.1 s"):
        first.agree(_ready(), 0.1)
    first.close(None)
    second.close(None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a meeting, which does not say meanwhile whom it awaits. A test ends the meeting with `_too_late`."""
    clock = Clock()
    use_clock(monkeypatch, clock, "processes.rendezvous")
    monkeypatch.setattr(rendezvous, "_TELL_SECONDS", _LONG)
    return clock


def _too_late(clock: Clock, place: Place) -> None:
    """Let the time of a meeting pass, and wake process 0, which then sees that it has."""
    clock.ahead += 2 * _LONG
    with pytest.raises(UsageError):
        _meet(place, 2, 1, secret=b"known to nobody else")


def test_a_process_with_another_secret_is_refused_and_refuses(clock: Clock) -> None:
    place = Place()

    def wrong() -> Any:
        try:
            return _meet(place, 2, 1, secret=b"known to nobody else")
        finally:
            _too_late(clock, place)

    first, second = _together(lambda: _meet(place, 2, 0), wrong)
    assert isinstance(second, UsageError)
    assert "does not know the secret of process 1" in second.message
    assert isinstance(first, DeviceError)
    assert first.notes == ("refused a connection from 127.0.0.1: it does not know the secret of this run",)
    assert "HLO_RUN_SECRET" in first.hint
    assert place.said[1:] == [f"process 0 {first.notes[0]}"]


def test_a_proof_does_not_serve_twice_nor_for_the_other_side(clock: Clock) -> None:
    """A stranger sends the proof of an earlier run, with its number, and the listener's own proof."""
    place = Place()
    introduction = Introduction(2, 1, 0, 1)
    overheard = proof(_SECRET, "caller", (b"a" * 32, b"b" * 32), introduction_bytes(introduction))

    def stranger() -> list[str]:
        reasons: list[str] = []
        for number in range(3):
            with socket.create_connection(split_address(place.address())) as connection:
                send(connection, Greeting(MAGIC, b"a" * 32))
                challenge = receive(connection, _MANY, 0)[0]
                assert isinstance(challenge, Challenge)
                send(connection, Hello(introduction, (overheard, challenge.proof, b"")[number]))
                answer = receive(connection, _MANY, 0)[0]
                assert isinstance(answer, Refusal)
                reasons.append(answer.reason)
        _too_late(clock, place)
        return reasons

    found = _together(stranger, lambda: _meet(place, 2, 0))
    assert found[0] == ["it does not know the secret of this run"] * 3
    assert isinstance(found[1], DeviceError)


def test_a_process_that_ends_while_others_are_awaited_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_FAREWELL_SECONDS", 0.1)
    place = Place()

    def second() -> None:
        with socket.create_connection(split_address(place.address())) as connection:
            send(connection, Greeting(MAGIC, b"a" * 32))
            challenge = receive(connection, _MANY, 0)[0]
            assert isinstance(challenge, Challenge)
            introduction = Introduction(3, 1, 0, 1)
            nonces = b"a" * 32, challenge.nonce
            send(connection, Hello(introduction, proof(_SECRET, "caller", nonces, introduction_bytes(introduction))))

    first, _ = _together(lambda: _meet(place, 3, 0), second)
    assert isinstance(first, DeviceError)
    assert first.message == "process 1 (device 1) ended before all processes had come"


def test_processes_that_do_not_come_are_named() -> None:
    with pytest.raises(
        DeviceError, match=r"processes 1 \(device 1\), 2 \(device 2\) of 3 did not come to 127.0.0.1:\d+ within 0.1 s"
    ):
        _meet(Place(), 3, 0, seconds=0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(DeviceError, match="process 0 did not answer at "):
        meet(Meeting(Launch(2, 1, f"127.0.0.1:{port}"), 0.1, _SECRET), print)


def test_a_process_that_ends_or_fails_is_an_error_of_those_that_wait() -> None:
    for farewell, message in (
        (Farewell(5, 1, "out of memory"), "process 1: out of memory"),
        (Farewell(0, 1), "process 1 has ended"),
        (None, "process 1 ended without a word|broke"),
        (b"\x05\0\0\0\0\0\0\0junk!", "process 1 sent something that is not a message"),
        (b"\xff" * 8, "a header of"),
    ):
        here, there = socket.socketpair()
        partners = Partners(Launch(2, 0), {1: here}, _MANY)
        partners.start()
        if isinstance(farewell, Farewell):
            send(there, farewell)
        elif farewell is not None:
            there.sendall(farewell)
        else:
            there.close()
        with pytest.raises(DeviceError, match=message):
            partners.take(1, Parcel("result", 1))
        partners.close()
        there.close()


def test_a_process_that_ends_first_still_hears_the_others() -> None:
    """A connection that is closed with a sign of life unread is reset, and what the other side has not read is lost."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    ending = Partners(Launch(2, 0), {1: here}, _MANY)
    ending.start()
    ending.post(1, Parcel("result", 0), [memoryview(b"abc")])
    closing = threading.Thread(target=ending.close)
    closing.start()
    with there:
        while not isinstance(receive(there, _MANY, _MANY)[0], Farewell):
            pass
        assert there.recv(1) == b"", "it sends no more"
        send(there, Beat(computing=True))
        assert there.recv(1) == b"", "it has read the sign of life"
        send(there, Farewell(0, 1))
        closing.join()


def test_a_caller_that_reaches_itself_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give a caller the port that it calls, while nothing listens there."""
    calls: list[socket.socket] = []
    connect = socket.create_connection

    def reaches_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        if calls:
            return connect(address, timeout)
        caller = socket.socket()
        caller.bind(("127.0.0.1", 0))
        caller.connect(caller.getsockname())
        calls.append(caller)
        return caller

    monkeypatch.setattr(socket, "create_connection", reaches_itself)
    place = Place()
    for met in _together(lambda: _meet(place, 2, 0), lambda: _meet(place, 2, 1)):
        met.close(None)
    assert calls[0].fileno() < 0, "it was closed"


def test_a_deadline_is_that_of_the_whole_message() -> None:
    """Who sends a byte now and then does not hold up the listener, and a long message that still comes is a sign of life."""
    here, there = socket.socketpair()
    send(here, Beat(True), [memoryview(b"abc")])
    with pytest.raises(TimeoutError):
        receive(there, _MANY, 3, deadline=time.monotonic())
    parts: list[None] = []
    receive(there, _MANY, 3, time.monotonic() + _LONG, lambda: parts.append(None))
    assert parts
    here.close()
    there.close()


def test_headers_are_decoded_to_messages_alone() -> None:
    here, there = socket.socketpair()
    hello = Hello(Introduction(2, 1, 0, 3), b"proof")
    messages: tuple[Message, ...] = (Greeting(MAGIC, b"n"), Challenge(b"n", b"p"), hello, Refusal("no"), Beat(True))
    for message in (*messages, Parcel("operands", 1, "k", (0, -1))):
        send(here, message, [memoryview(b"abc")])
        assert receive(there, _MANY, 3) == (message, [bytearray(b"abc")])
    send(here, Beat(False), [memoryview(b"abcd")])
    with pytest.raises(BadMessage, match="at most 3"):
        receive(there, _MANY, 3)
    assert there.recv(4) == b"abcd"
    evil = pickle.dumps(print)
    here.sendall(len(evil).to_bytes(8, "little") + evil)
    with pytest.raises(BadMessage):
        receive(there, _MANY, 3)
    here.sendall(b"\x05")
    here.close()
    with pytest.raises(Closed):
        receive(there, _MANY, 3)
    there.close()
