"""The messages between processes, as bytes: a header in MessagePack, then the bytes of arrays.

    8 bytes: size of the header | header: (message, sizes of the arrays) | array | array | ..

Headers are decoded to the records below and nothing else: a message can name no other type and run no code.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

MAGIC = "hlo-run processes 3"
_SIZE_BYTES = 8
_CHUNK_BYTES = 1 << 20


class Greeting(Struct, frozen=True, tag=True):
    """The first message of a process that connects. `nonce` is a random number."""

    magic: str
    nonce: bytes


class Challenge(Struct, frozen=True, tag=True):
    """The answer to a greeting: another random number, and the proof that the listener knows the secret."""

    nonce: bytes
    proof: bytes


class Farewell(Struct, frozen=True, tag=True):
    """A process ends the common work. `code` is its exit code.

    `message` and `notes` are its error, if there is one, or the error of the process `origin` that made it end. `origin` is -1
    for a process that does not know its number.
    """

    code: int
    origin: int = 0
    message: str = ""
    notes: tuple[str, ...] = ()


class Introduction(Struct, frozen=True):
    """The identity of a process. `file` is the number of its input file, `port` where it listens for the processes after it.

    A `file` of -1 stands for all. With a `failure` it only says why it will not take part.
    """

    count: int
    number: int
    file: int
    port: int
    failure: Farewell | None = None


class Hello(Struct, frozen=True, tag=True):
    """A process introduces itself. `proof` is made of the introduction too."""

    introduction: Introduction
    proof: bytes


class Welcome(Struct, frozen=True, tag=True):
    """The message that all processes have come; they listen at these hosts and ports, by number."""

    addresses: tuple[tuple[str, int], ...]


class Refusal(Struct, frozen=True, tag=True):
    """The process is not awaited, or the run does not take place because of a `failure`."""

    reason: str
    failure: Farewell | None = None


class Ready(Struct, frozen=True, tag=True):
    """A process has compiled: its file, the digests of module and executable, its replicas and partitions, and its flags."""

    file: str
    module: str
    executable: str
    replicas: int
    partitions: int
    flags: tuple[str, ...] = ()


class Beat(Struct, frozen=True, tag=True):
    """A sign of life. `computing`: one of the process's devices works rather than waits."""

    computing: bool


class Parcel(Struct, frozen=True, tag=True):
    """Arrays for the process that asks for this label, with their run and shapes."""

    kind: str
    run: int
    name: str = ""
    numbers: tuple[int, ...] = ()


Message: TypeAlias = Greeting | Challenge | Hello | Welcome | Refusal | Ready | Beat | Parcel | Farewell


class _Header(Struct, frozen=True, array_like=True):
    message: Message
    sizes: tuple[int, ...] = ()


class BadMessage(Exception):
    """The other side sends something other than messages, or too much."""


class Closed(Exception):
    """The other side has closed the connection."""


def introduction_bytes(introduction: Introduction) -> bytes:
    """Return an introduction as the bytes for its proof."""
    return _encoder.encode(introduction)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


def send(connection: socket.socket, message: Message, arrays: Sequence[memoryview] = ()) -> None:
    """Send a message with arrays (contiguous bytes). Raises OSError."""
    header = _encoder.encode(_Header(message, tuple(array.nbytes for array in arrays)))
    connection.sendall(len(header).to_bytes(_SIZE_BYTES, "little") + header)
    for array in arrays:
        connection.sendall(array)


def receive(
    connection: socket.socket,
    most_header_bytes: int,
    most_bytes: int,
    deadline: float | None = None,
    progress: Callable[[], None] | None = None,
) -> tuple[Message, list[bytearray]]:
    """Wait for a message. Returns it with its arrays. `progress` is called whenever a part of an array has come.

    Raises Closed, BadMessage and OSError; TimeoutError if the whole message has not come by the deadline (of `time.monotonic`).
    """
    size = int.from_bytes(_exactly(connection, _SIZE_BYTES, deadline), "little")
    if size > most_header_bytes:
        raise BadMessage(f"a header of {size} bytes")
    try:
        header = _decoder.decode(_exactly(connection, size, deadline))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is a DecodeError
        raise BadMessage(str(error)) from None
    if min(header.sizes, default=0) < 0 or sum(header.sizes) > most_bytes:
        raise BadMessage(f"arrays of {sum(header.sizes)} bytes, where at most {most_bytes} are expected")
    return header.message, [_exactly(connection, size, deadline, progress) for size in header.sizes]


def _exactly(
    connection: socket.socket, size: int, deadline: float | None, progress: Callable[[], None] | None = None
) -> bytearray:
    """Return the next `size` bytes. Memory grows with the data, not with what the other side announces."""
    data = bytearray()
    while len(data) < size:
        first = len(data)
        data.extend(bytes(min(size - first, max(_CHUNK_BYTES, first))))
        with memoryview(data) as view:
            while first < len(view):
                if deadline is not None:  # a time-out of the socket alone begins again with every byte
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError
                    connection.settimeout(left)
                count = connection.recv_into(view[first:])
                if not count:
                    raise Closed
                first += count
                if progress is not None:
                    progress()
    return data
