"""Device memory: regions of bytes.

The upper bits of a global address are the number of its buffer (from `NUMBER_SHIFT`). So an access outside the buffer is a fault,
even if other memory is there. Offsets are signed, so an address below a buffer still belongs to it. Shared and local memory
have their own numbers in generic addresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.arrays import Array

Offsets = NDArray[np.int64]

NUMBER_SHIFT = 40
VARIABLE_NUMBER = 0x6000
"""The first region number of a module's global and constant variables."""
SHARED_NUMBER = 0x7000
LOCAL_NUMBER = 0x7001
POISON = np.uint16(0xFFC1)
"""The contents of uninitialised memory: a NaN in every floating-point format, a negative integer."""

# A 16-byte item moves as one complex number, as numpy has no integer of that size.
ITEM_TYPES: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def poisoned(size_bytes: int) -> NDArray[np.uint8]:
    """Return `size_bytes` of uninitialised memory. It holds `POISON`, never zero."""
    return np.full((size_bytes + 1) // 2, POISON).view(np.uint8)[:size_bytes]


class Region:
    """A piece of memory that one kind of pointer reaches.

    `low` and `high` bound the accessible offsets. Loads, and atomics of up to a word, may extend to the bounds of the word: three
    16-bit elements are loaded as two words, and small atomics are emulated by 32-bit ones, which GPUs allow. `copy_bytes` is the
    distance between the copies per block (shared memory) or per thread (local memory); it is 0 for memory that all threads share.
    `written` marks the bytes of `data` that were ever written; None if all were, or if no check records it.
    """

    def __init__(
        self,
        name: str,
        space: str,
        data: NDArray[np.uint8],
        low: int,
        high: int,
        *,
        writable: bool = True,
        copy_bytes: int = 0,
        written: NDArray[np.bool_] | None = None,
    ) -> None:
        self.name = name
        self.space = space
        self.low = low
        self.high = high
        self.writable = writable
        self.copy_bytes = copy_bytes
        self.data = data
        self.written = written
        self.word_low = low // 4 * 4
        self.word_high = max(high, min(-(-high // 4) * 4, data.size)) if high > low else high
        self._views: dict[int, Array] = {}

    def bounds(self, kind: str, size_bytes: int) -> tuple[int, int]:
        """Return the offsets [low, high) that an access must lie in."""
        by_word = kind == "load" or (kind != "store" and size_bytes <= 4)
        return (self.word_low, self.word_high) if by_word else (self.low, self.high)

    def view(self, item_bytes: int) -> Array:
        """Return the memory as items of 1 to 16 bytes."""
        view = self._views.get(item_bytes)
        if view is None:
            usable = self.data.size // item_bytes * item_bytes
            view = self._views[item_bytes] = self.data[:usable].view(ITEM_TYPES[item_bytes])
        return view

    @staticmethod
    def copies(name: str, space: str, size_bytes: int, count: int) -> Region:
        """Return poisoned memory for `count` blocks or threads, each with its own `size_bytes`."""
        stride = -(-size_bytes // 128) * 128 if space == "shared" else -(-size_bytes // 16) * 16
        return Region(name, space, poisoned(stride * count), 0, size_bytes, copy_bytes=stride)

    def reset(self) -> None:
        """Poison all copies and mark them as unwritten."""
        self.data.view(np.uint16)[:] = POISON
        if self.written is not None:
            self.written[:] = False
