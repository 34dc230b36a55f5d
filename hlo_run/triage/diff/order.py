"""The longest increasing subsequence, which tells what stays in order and what moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def longest_increasing(values: Sequence[int]) -> list[int]:
    """Return the positions of a longest strictly increasing subsequence of distinct numbers, in n log n steps."""
    last: list[int] = []  # the smallest last value of a subsequence of each length
    places: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        length = bisect_left(last, value)
        before.append(places[length - 1] if length else -1)
        if length == len(last):
            last.append(value)
            places.append(place)
        else:
            last[length], places[length] = value, place
    found: list[int] = []
    place = places[-1] if places else -1
    while place >= 0:
        found.append(place)
        place = before[place]
    return found[::-1]
