"""Find error bounds with which a comparison would pass: the frontier of pairs (abs, rel), rounded up to one digit."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from msgspec import Struct, field

from hlo_run.reference.values import Array


@cache
def _all_bounds() -> Array:
    """Return 0 and all numbers of one significant digit, ascending; the index after the last one is infinity."""
    numbers = (float(f"{digit}e{power}") for power in range(-330, 308) for digit in range(1, 10))
    return np.array(list(dict.fromkeys((0.0, *numbers))))  # np.unique would import numpy.ma


class BoundFinder(Struct):
    """Collects errors. An element passes if its absolute error or its relative error is within the bound."""

    # For each index of an absolute error in the bounds, the largest index of a relative error, or -1.
    _worst_rel: Array = field(default_factory=lambda: np.full(len(_all_bounds()) + 1, -1, np.int64))

    def add(self, abs_errors: Array, rel_errors: Array) -> None:
        """Add the errors of more elements."""
        erring, bounds = abs_errors > 0, _all_bounds()
        abs_places = np.searchsorted(bounds, abs_errors[erring], side="left")
        rel_places = np.searchsorted(bounds, rel_errors[erring], side="left")
        np.maximum.at(self._worst_rel, abs_places, rel_places)

    def options(self) -> list[tuple[float, float]]:
        """Return the pairs (abs, rel) with which the comparison would pass and that no other pair improves, by ascending abs."""
        count = len(_all_bounds())
        # needed[p]: the index of the rel bound that covers every element whose absolute error exceeds bound p.
        needed = np.append(np.maximum.accumulate(self._worst_rel[::-1])[::-1][1:], -1)
        found: list[tuple[float, float]] = []
        previous = count
        for place in np.flatnonzero(np.diff(needed, prepend=count + 1)):
            rel_place = max(int(needed[place]), 0)
            if place < count and rel_place < previous:
                found.append((_finite(int(place)), _finite(rel_place)))
                previous = rel_place
        return found


def _finite(place: int) -> float:
    value = float(_all_bounds()[place])
    assert math.isfinite(value)
    return value
