"""How processes meet, and what they take from strangers. The processes are threads."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hlo_run.errors import DeviceError, UsageError
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
    Refusal,
    introduction_bytes,
    receive,
    send,
)
from hlo_run.processes.partners import Partners
from hlo_run.processes.rendezvous import Meeting, meet
from hlo_run.processes.secret import proof

_MANY = 1 << 20
_SECRET = b"known to all processes"


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
        assert self._known.wait(10)
        return self._text


def _meet(
    place: Place, count: int, number: int, digest: str = "d", seconds: float = 10.0, secret: bytes = _SECRET
) -> dict[int, socket.socket]:
    address = place.address() if number else "127.0.0.1:0"
    return meet(Meeting(Launch(count, number, address), digest, seconds, secret), place.say)


def _together(*works: Callable[[], Any]) -> list[Any]:
    """Call functions at the same time; return what each returned or raised."""
    found: list[Any] = [None] * len(works)

    def call(number: int) -> None:
        try:
            found[number] = works[number]()
        except (DeviceError, UsageError) as error:
            found[number] = error

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_all_processes_reach_each_other_and_strangers_are_left_out() -> None:
    place = Place()

    def stranger() -> str:
        with socket.create_connection(split_address(place.address()), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            try:
                return "" if connection.recv(1) else "closed"
            except ConnectionError:  # it was closed before all was read
                return "closed"

    def partners(number: int) -> list[int]:
        mine = Partners(Launch(3, number), _meet(place, 3, number), _MANY)
        mine.start()
        for other in mine.others:
            mine.post(other, Parcel("hail", number, "é", (other,)), [memoryview(bytes([number] * 3)), memoryview(b"")])
        heard = [mine.take(other, Parcel("hail", other, "é", (number,))) for other in mine.others]
        mine.close(Farewell(0, number))
        assert heard == [[bytearray([other] * 3), bytearray()] for other in mine.others]
        return list(mine.others)

    found = _together(stranger, *(lambda number=number: partners(number) for number in range(3)))
    assert found[1:] == [[1, 2], [0, 2], [0, 1]]
    assert found[0] in ("", "closed")


def test_processes_that_run_other_modules_are_refused() -> None:
    place = Place()
    first, second = _together(lambda: _meet(place, 2, 0), lambda: _meet(place, 2, 1, digest="other"))
    assert isinstance(first, UsageError)
    assert isinstance(second, UsageError)
    assert "it runs another module" in first.message
    assert "refuses process 1: it runs another module" in second.message


def test_a_process_with_another_secret_is_refused_and_refuses() -> None:
    place = Place()
    first, second = _together(lambda: _meet(place, 2, 0, seconds=0.5), lambda: _meet(place, 2, 1, secret=b"known to nobody else"))
    assert isinstance(second, UsageError)
    assert "does not know the secret of process 1" in second.message
    assert isinstance(first, DeviceError)
    assert first.notes == ("refused a connection from 127.0.0.1: it does not know the secret of this run",)
    assert "HLO_RUN_SECRET" in first.hint
    assert place.said[1:] == [f"process 0 {first.notes[0]}"]


def test_a_proof_does_not_serve_twice_nor_for_the_other_side() -> None:
    """A stranger sends the proof of an earlier run, with its number, and the listener's own proof."""
    place = Place()
    introduction = Introduction(2, 1, "d", 1)
    overheard = proof(_SECRET, "caller", (b"a" * 32, b"b" * 32), introduction_bytes(introduction))

    def stranger() -> list[str]:
        reasons: list[str] = []
        for number in range(3):
            with socket.create_connection(split_address(place.address()), timeout=10) as connection:
                send(connection, Greeting(MAGIC, b"a" * 32))
                challenge = receive(connection, _MANY, 0)[0]
                assert isinstance(challenge, Challenge)
                send(connection, Hello(introduction, (overheard, challenge.proof, b"")[number]))
                answer = receive(connection, _MANY, 0)[0]
                assert isinstance(answer, Refusal)
                reasons.append(answer.reason)
        return reasons

    found = _together(stranger, lambda: _meet(place, 2, 0, seconds=0.5))
    assert found[0] == ["it does not know the secret of this run"] * 3
    assert isinstance(found[1], DeviceError)


def test_a_process_that_ends_while_others_are_awaited_is_named() -> None:
    place = Place()

    def second() -> None:
        with socket.create_connection(split_address(place.address()), timeout=10) as connection:
            send(connection, Greeting(MAGIC, b"a" * 32))
            challenge = receive(connection, _MANY, 0)[0]
            assert isinstance(challenge, Challenge)
            introduction = Introduction(3, 1, "d", 1)
            nonces = b"a" * 32, challenge.nonce
            send(connection, Hello(introduction, proof(_SECRET, "caller", nonces, introduction_bytes(introduction))))

    first, _ = _together(lambda: _meet(place, 3, 0, seconds=20), second)
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
        meet(Meeting(Launch(2, 1, f"127.0.0.1:{port}"), "d", 0.1, _SECRET), print)


def test_a_process_that_ends_or_fails_is_an_error_of_those_that_wait() -> None:
    for farewell, message in (
        (Farewell(5, 1, "out of memory"), "process 1: out of memory"),
        (Farewell(0, 1), "process 1 has ended"),
        (None, "process 1 ended without a word|broke"),
        (b"\x05\0\0\0\0\0\0\0junk!", "process 1 sends what is no message"),
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
        partners.close(Farewell(0))
        there.close()


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
    for connections in _together(lambda: _meet(place, 2, 0), lambda: _meet(place, 2, 1)):
        (connection,) = connections.values()
        connection.close()
    assert calls[0].fileno() < 0, "it was closed"


def test_a_deadline_is_that_of_the_whole_message() -> None:
    """Who sends a byte now and then does not hold up the listener, and a long message that still comes is a sign of life."""
    here, there = socket.socketpair()
    send(here, Beat(True), [memoryview(b"abc")])
    with pytest.raises(TimeoutError):
        receive(there, _MANY, 3, deadline=time.monotonic())
    parts: list[None] = []
    receive(there, _MANY, 3, time.monotonic() + 20, lambda: parts.append(None))
    assert parts
    here.close()
    there.close()


def test_headers_are_decoded_to_messages_alone() -> None:
    here, there = socket.socketpair()
    hello = Hello(Introduction(2, 1, "d", 3), b"proof")
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
