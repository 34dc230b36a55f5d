"""The memory of an interpreted launch: one array of bytes. Addresses are positions in it, one per lane."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from hlo_run.arrays import NumpyType
from hlo_run.interpret.scalars import Array, BadAccess

_ALIGNMENT = 256


class Memory:
    """Bytes that grow by allocation."""

    def __init__(self) -> None:
        self.data = np.zeros(_ALIGNMENT, np.uint8)  # no address is 0

    def allocate(self, size_bytes: int, content: bytes | Array = b"") -> int:
        """Return the address of new memory that begins with `content`."""
        start = self.data.size
        room = -(-max(size_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
        piece = np.full(room, 0xA5, np.uint8)
        given = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
        piece[: given.size] = given
        self.data = np.concatenate((self.data, piece))
        return start

    def load(self, address: Array, dtype: NumpyType, mask: Array) -> Array:
        """Return one element per lane; lanes outside of the mask get zeros."""
        places = self._places(address, dtype, mask)
        result = np.zeros(mask.shape, dtype)
        result[mask] = (
            self.data.view(_storage(dtype))[places].astype(np.bool_) if dtype == np.bool_ else self.data.view(dtype)[places]
        )
        return result

    def store(self, address: Array, value: Array, mask: Array) -> None:
        """Write one element per lane of the mask."""
        places = self._places(address, value.dtype, mask)
        self.data.view(_storage(value.dtype))[places] = np.broadcast_to(value, mask.shape)[mask]

    def _places(self, address: Array, dtype: NumpyType, mask: Array) -> Array:
        at = np.broadcast_to(address, mask.shape)[mask]
        size = dtype.itemsize
        if at.size and (at.min() < _ALIGNMENT or at.max() + size > self.data.size or (at % size).any()):
            raise BadAccess("an access outside of the memory or without alignment")
        return at // size


def _storage(dtype: NumpyType) -> NumpyType:
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


class Tensor(Struct, frozen=True):
    """A tensor in memory: one address per lane (shared memory) or one for all, and its elements in row-major order."""

    address: Array
    dtype: NumpyType
    dims: tuple[int, ...]

    def place(self, index: list[Array]) -> Array:
        """Return the addresses of the elements at an index."""
        linear = np.int64(0)
        for at, size in zip(index, self.dims, strict=True):
            linear = linear * size + np.asarray(at, np.int64)
        return self.address + linear * self.dtype.itemsize

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)
