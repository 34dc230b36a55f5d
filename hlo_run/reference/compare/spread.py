"""The scatter of an array's elements by rounding, estimated from a few samples with random roundings.

The root mean square of four samples is too small by chance now and then. So an element gets at least what most of its
neighbours in the array have: their errors come from sums of the same length over terms of the same size.

Where a rounding turns a decision (a sign, a maximum, an index), samples do not scatter: most equal the precise value, and one
is far from it. Such a *jump* is judged by its size and by how many elements of one sample have one.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from hlo_run.reference.values import Array

# An element is near the precise value up to so many times its scale. Kernels stay below 2.5 times the root mean square of
# four samples in 30 models in f32, bf16 and f16.
NEAR = 4.0
# Neighbours are so many elements in row-major order; this part of them may scatter less than the element is said to.
_NEIGHBOURS = 64
_QUANTILE = 0.25
# A jump may be so much larger than those of the samples, and there may be so many more of them.
_LARGER_JUMP = 1.5
_MORE_JUMPS = 2


class Jumps(Struct, frozen=True):
    """The number of elements of an evaluation that may jump, and how far at most."""

    count: int = 0
    largest: float = 0.0


class Spread:
    """The samples of one array: `exact` are the precise values as [element, part], `count` is the number of samples."""

    def __init__(self, exact: Array) -> None:
        self.exact = exact
        self.count = 0
        self._squares = np.zeros_like(exact)
        self._largest = np.zeros_like(exact)
        self._owner = np.zeros(exact.shape, np.uint8)

    def add(self, sample: Array) -> None:
        """Add a sample, as [element, part]. One that is NaN where the precise value is none makes the spread infinite."""
        off = np.abs(sample - self.exact)
        off[np.isnan(off) & ~np.isnan(self.exact)] = np.inf
        self._squares += off * off
        is_larger = off > self._largest
        self._largest[is_larger] = off[is_larger]
        self._owner[is_larger] = self.count
        self.count += 1

    def scale(self) -> Array:
        """Return the scale of each element's rounding error."""
        return self._with_neighbours(np.sqrt(self._squares / self.count)) if self.count else self._squares

    def lost(self) -> int:
        """Return how many elements may be off by more than their size."""
        return int(np.count_nonzero(np.any(NEAR * self.scale() >= np.abs(self.exact), axis=1)))

    def jumps(self, last: Array) -> Jumps:
        """Return the jumps that an evaluation may have; an error up to `last` is none."""
        finite = np.isfinite(self._squares)
        others = np.sqrt(np.maximum(self._squares - self._largest**2, 0.0) / max(self.count - 1, 1))
        is_jump = finite & (self._largest > NEAR * self._with_neighbours(others) + last)
        if not is_jump.any():
            return Jumps()
        most = int(np.bincount(self._owner[is_jump]).max())
        return Jumps(_MORE_JUMPS * most, _LARGER_JUMP * float(np.max(self._largest[is_jump])))

    def _with_neighbours(self, own: Array) -> Array:
        """Return the larger of each element's scale and of what most of its neighbours have, relative to the values or not."""
        elements, parts = own.shape
        if elements < 2:
            return own
        size = np.abs(self.exact)
        relative = np.where(size > 0, own / size, np.inf)
        found = np.empty_like(own)
        width = min(_NEIGHBOURS, elements)
        whole = elements // width * width
        # The elements after the last whole block have the neighbours before them.
        for start, end, first in ((0, whole, 0), (whole, elements, elements - width)):
            if start == end:
                continue
            blocks = slice(first, end)
            floors = [_low(values[blocks].reshape(-1, width, parts)) for values in (own, relative)]
            shape = (-1, width, parts)
            block = np.maximum(floors[0], np.minimum(floors[1], np.inf) * size[blocks].reshape(shape))
            block = np.where(np.isfinite(block), block, 0.0).reshape(-1, parts)
            found[start:end] = block[start - first :]
        return np.maximum(own, found)


def _low(blocks: Array) -> Array:
    """Return the quantile of each block, as [block, 1, part]."""
    place = int(blocks.shape[1] * _QUANTILE)
    return np.partition(blocks, place, axis=1)[:, place : place + 1]
