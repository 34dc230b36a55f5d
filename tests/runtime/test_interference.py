"""The tree over allocations finds those that a comparison of all pairs finds, in the same order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from hlo_run.runtime.interference import Occupancy


class _Sharing:
    """Lets a value take the place of another if their numbers are equal modulo 3."""

    def may_take_place(self, old: Any, new: Any) -> bool:
        return old % 3 == new % 3


def _is_free(value: int, held: list[int], ranges: dict[int, Any]) -> bool:
    mine = ranges[value]
    for other in held:
        its = ranges[other]
        if its.start > mine.end or its.end < mine.start:
            continue
        touches = its.start == mine.end or its.end == mine.start
        if not (touches and value % 3 == other % 3):
            return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_the_free_allocations_are_those_of_a_comparison_of_all(seed: int) -> None:
    rng = random.Random(seed)
    last = rng.choice([5, 40, 1000])
    ranges: dict[int, Any] = {}
    occupancy = Occupancy(SimpleNamespace(ranges=ranges), _Sharing())  # type: ignore[arg-type]
    held: dict[Any, list[int]] = {}
    numbers: Any = range(300)
    for value in numbers:
        start = rng.randrange(last)
        end = last if rng.random() < 0.6 else rng.randrange(start, last + 1)
        ranges[value] = SimpleNamespace(start=start, end=end)
        places = list(held)
        preferred = rng.sample(places, min(len(places), 2))
        expected = [p for p in (*preferred, *reversed(places)) if _is_free(value, held[p], ranges)]
        found: list[Any] = list(occupancy.free_for([value], preferred))
        assert found == expected
        if found and rng.random() < 0.8:
            place = rng.choice(found)
            occupancy.add_values(place, [value])  # type: ignore[list-item]
            held[place].append(value)
        else:
            place = SimpleNamespaceKey()
            occupancy.add_allocation(place, [value])  # type: ignore[arg-type]
            held[place] = [value]


class SimpleNamespaceKey:
    """An allocation; only its identity counts."""
