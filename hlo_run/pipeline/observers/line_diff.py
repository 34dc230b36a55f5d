"""Compares two texts by lines, fast also for long ones whose lines are mostly unique, as those of HLO are.

Lines that occur once in each text and in the same order are anchors. `difflib` compares only the short texts between anchors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

# The numbers of the first lines of both texts from 0, the lines before, and the lines after.
Change: TypeAlias = tuple[int, int, list[str], list[str]]
# A change and the equal lines above it.
ChangeInContext: TypeAlias = tuple[int, int, list[str], list[str], list[str]]
_MOST_COMPARED = 400


def changed_blocks(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """Return the blocks of lines that differ, in order."""
    changes: list[Change] = []
    old = new = 0
    for first, second in [*_anchors(before, after), (len(before), len(after))]:
        changes += _between(before[old:first], after[new:second], old, new)
        old, new = first + 1, second + 1
    return _joined(changes)


def in_context(changes: Sequence[Change], before: Sequence[str], most: int = 2) -> list[ChangeInContext]:
    """Return the changes of the text `before` with up to `most` of the equal lines above each."""
    found: list[ChangeInContext] = []
    free = 0
    for old, new, gone, come in changes:
        found.append((old, new, gone, come, list(before[max(free, old - most) : old])))
        free = old + len(gone)
    return found


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the longest increasing sequence of (line before, line after) of equal lines that are unique in both texts."""
    counts, others = Counter(before), Counter(after)
    places = {line: number for number, line in enumerate(after)}
    pairs = [(n, places[line]) for n, line in enumerate(before) if counts[line] == 1 and others[line] == 1]
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for number, (_, place) in enumerate(pairs):
        at = bisect_left(tails, place)
        previous.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [place]
        ends[at : at + 1] = [number]
    found: list[tuple[int, int]] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        found.append(pairs[number])
        number = previous[number]
    return found[::-1]


def _between(before: Sequence[str], after: Sequence[str], old: int, new: int) -> list[Change]:
    if not before and not after:
        return []
    if not before or not after or len(before) + len(after) > _MOST_COMPARED:
        return [(old, new, list(before), list(after))]
    return [
        (old + a, new + c, list(before[a:b]), list(after[c:d]))
        for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if tag != "equal"
    ]


def _joined(changes: Sequence[Change]) -> list[Change]:
    """Join blocks with no line between them."""
    joined: list[Change] = []
    for change in changes:
        if joined:
            old, new, gone, come = joined[-1]
            if old + len(gone) == change[0] and new + len(come) == change[1]:
                joined[-1] = (old, new, [*gone, *change[2]], [*come, *change[3]])
                continue
        joined.append(change)
    return joined
