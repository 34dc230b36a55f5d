"""Compares two texts by lines, fast also for long ones whose lines are mostly unique, such as HLO.

Lines that occur once in each text and in the same order are anchors. `difflib` compares only the short texts between anchors.
Kernel IR is compared without the names of values, whose numbers change from row to row; names must then correspond.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

# The numbers of the first lines of both texts from 0, the lines before, and the lines after.
Change: TypeAlias = tuple[int, int, list[str], list[str]]
# A change and the equal lines above it.
ChangeInContext: TypeAlias = tuple[int, int, list[str], list[str], list[str]]
# Above this product of line counts, lines between two anchors are not compared one by one.
_MOST_PRODUCT = 400_000
# The names that MLIR numbers: values, aliases of maps, and blocks.
_NAME = re.compile(r"%[\w$.-]+|#map\d*\b|\^bb\d+")


def changed_blocks(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """Return the blocks of lines that differ, in order."""
    return _blocks(align(before, after), before, after)


def changed_but_names(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """Return the blocks of lines of kernel IR that differ, where a value may have another name in each text."""
    blank, blank_two = ([_NAME.sub("%", line) for line in lines] for lines in (before, after))
    names: dict[str, str] = {}
    pairs: list[tuple[int | None, int | None]] = []
    for line, other in align(blank, blank_two):
        if line is not None and other is not None and not _correspond(before[line], after[other], names):
            pairs += ((line, None), (None, other))
        else:
            pairs.append((line, other))
    return _blocks(pairs, before, after)


def _correspond(line: str, other: str, names: dict[str, str]) -> bool:
    """True if the names of two lines correspond by `names`, to which names that are seen for the first time are added.

    The first name of an operation's line is that of its result, which has its name from here on.
    """
    ones, twos = _NAME.findall(line), _NAME.findall(other)
    is_definition = " = " in line and _NAME.match(line.lstrip()) is not None
    first = 1 if is_definition else 0
    same = all(names.setdefault(one, two) == two for one, two in zip(ones[first:], twos[first:], strict=True))
    if is_definition:
        names[ones[0]] = twos[0]
    return same


def _blocks(pairs: Sequence[tuple[int | None, int | None]], before: Sequence[str], after: Sequence[str]) -> list[Change]:
    changes: list[Change] = []
    old = new = 0
    joins = False
    for line, other in pairs:
        if line is not None and other is not None:
            joins = False
        else:
            if not joins:
                changes.append((old, new, [], []))
            joins = True
            if line is not None:
                changes[-1][2].append(before[line])
            if other is not None:
                changes[-1][3].append(after[other])
        old, new = old + (line is not None), new + (other is not None)
    return changes


def in_context(changes: Sequence[Change], before: Sequence[str], most: int = 2) -> list[ChangeInContext]:
    """Return the changes of the text `before` with up to `most` of the equal lines above each."""
    found: list[ChangeInContext] = []
    free = 0
    for old, new, gone, come in changes:
        found.append((old, new, gone, come, list(before[max(free, old - most) : old])))
        free = old + len(gone)
    return found


def align(one: Sequence[str], two: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Return pairs of line numbers from 0: equal lines together, others with None on the side that lacks them."""
    found: list[tuple[int | None, int | None]] = []
    waiting = [(0, len(one), 0, len(two))]
    while waiting:
        low, high, low_two, high_two = waiting.pop()
        while low < high and low_two < high_two and one[low] == two[low_two]:
            found.append((low, low_two))
            low, low_two = low + 1, low_two + 1
        end, end_two = high, high_two
        while end > low and end_two > low_two and one[end - 1] == two[end_two - 1]:
            end, end_two = end - 1, end_two - 1
        tail = (end, high, end_two, high_two)
        if low == end or low_two == end_two:
            found += [(line, None) for line in range(low, end)]
            found += [(None, line) for line in range(low_two, end_two)]
            found += zip(range(end, high), range(end_two, high_two), strict=True)
            continue
        waiting.append(tail)
        anchors = _anchors(one, two, low, end, low_two, end_two)
        if anchors:
            starts = [(low, low_two), *anchors]
            stops = [*anchors, (end, end_two)]
            parts = [(*pair, *stop) for pair, stop in zip(starts, stops, strict=True)]
            waiting += [(a, c, b, d) for a, b, c, d in reversed(parts)]
        else:
            found += _without_anchors(one, two, low, end, low_two, end_two)
    return found


def _anchors(one: Sequence[str], two: Sequence[str], low: int, high: int, low_two: int, high_two: int) -> list[tuple[int, int]]:
    """Return pairs of lines that both sides have once, in the order of both."""
    counts, counts_two = Counter(one[low:high]), Counter(two[low_two:high_two])
    places = {two[line]: line for line in range(low_two, high_two) if counts_two[two[line]] == 1}
    pairs = [(line, places[one[line]]) for line in range(low, high) if counts[one[line]] == 1 and one[line] in places]
    return [pairs[place] for place in longest_increasing([line for _, line in pairs])]


def _without_anchors(
    one: Sequence[str], two: Sequence[str], low: int, high: int, low_two: int, high_two: int
) -> Iterator[tuple[int | None, int | None]]:
    blocks = [(high - low, high_two - low_two, 0)]
    if (high - low) * (high_two - low_two) <= _MOST_PRODUCT:
        matcher = SequenceMatcher(None, one[low:high], two[low_two:high_two], autojunk=False)
        blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    at, at_two = low, low_two
    for start, start_two, size in blocks:
        yield from ((line, None) for line in range(at, low + start))
        yield from ((None, line) for line in range(at_two, low_two + start_two))
        yield from zip(
            range(low + start, low + start + size), range(low_two + start_two, low_two + start_two + size), strict=True
        )
        at, at_two = low + start + size, low_two + start_two + size


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
