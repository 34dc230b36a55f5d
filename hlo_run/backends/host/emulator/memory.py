"""Device memory: regions of bytes.

A global address carries a buffer's number in its upper bits (`NUMBER_SHIFT`), so that it says by itself which buffer it
was made from: an access outside is a fault even where other memory lies there (offsets are signed, so one below a buffer still
counts as that buffer's). Shared and local memory have numbers of their own for generic addresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Offsets = NDArray[np.int64]

NUMBER_SHIFT = 40
VARIABLE_NUMBER = 0x6000
"""The first number of the regions in which a module's own global and constant variables lie."""
SHARED_NUMBER = 0x7000
LOCAL_NUMBER = 0x7001
POISON = np.uint16(0xFFC1)
"""What memory holds before anything was written: a NaN in every floating-point format, a negative integer."""

# An item of 16 bytes moves as one complex number: numpy has no wider integer.
ITEM_TYPES: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def poisoned(size_bytes: int) -> NDArray[np.uint8]:
    """Return that many bytes of uninitialised memory, which is never zero."""
    return np.full((size_bytes + 1) // 2, POISON).view(np.uint8)[:size_bytes]


class Region:
    """A piece of memory that one kind of pointer reaches.

    `low` and `high` bound the offsets that may be accessed. Loads, and atomics of a word, may reach over them to the end of
    the word: three 16-bit elements are loaded as two words, smaller atomics are made of 32-bit ones, and no GPU minds.
    `copy_bytes` is the distance between the copies that blocks (shared memory) or threads (local memory) have, 0 for
    memory that all see. `written` says of each byte of `data` whether anything was ever written there; None where
    everything was, or where nobody keeps account.
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
        """Return what an access must lie within."""
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
        """Forget what was written to copies."""
        self.data.view(np.uint16)[:] = POISON
        if self.written is not None:
            self.written[:] = False
