"""A record of one value in memory: its place in an allocation, and the time in which it lives."""

from __future__ import annotations

from msgspec import Struct


class BufferLife(Struct, frozen=True):
    """A value that is in memory from time `first` to time `last`, both included.

    A time is the number of an instruction in the flat schedule. `name` is the instruction's name with the shape index of the
    part (`t{1}`). `kind` is `parameter`, `constant`, `output` or `temporary`.
    """

    name: str
    shape: str
    kind: str
    allocation: int
    offset_bytes: int
    size_bytes: int
    first: int
    last: int


class MemoryUse(Struct, frozen=True):
    """The values of a module in memory, the names of its instructions in execution order, and the bytes of all allocations."""

    lives: tuple[BufferLife, ...]
    schedule: tuple[str, ...]
    allocated_bytes: int
