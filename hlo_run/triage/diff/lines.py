"""Aligns the lines of two texts: lines that are unique on both sides first, then what is between them."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hlo_run.triage.diff.order import longest_increasing

# Above this product of line counts, lines between two anchors are not compared one by one.
_MOST_PRODUCT = 400_000
_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A line of each side; None where the other side has one more. `same`: nothing differs but, in modules, names."""

    before: str | None
    after: str | None
    same: bool


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
        matcher = difflib.SequenceMatcher(None, one[low:high], two[low_two:high_two], autojunk=False)
        blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    at, at_two = low, low_two
    for start, start_two, size in blocks:
        yield from ((line, None) for line in range(at, low + start))
        yield from ((None, line) for line in range(at_two, low_two + start_two))
        yield from zip(
            range(low + start, low + start + size), range(low_two + start_two, low_two + start_two + size), strict=True
        )
        at, at_two = low + start + size, low_two + start_two + size


def rows_of(one: Sequence[str], two: Sequence[str], keys: Sequence[str], keys_two: Sequence[str]) -> list[Row]:
    """Return the lines side by side, aligned by their keys. Removed and added lines at one place share rows."""
    rows: list[Row] = []
    removed: list[str] = []
    added: list[str] = []

    def put_changes() -> None:
        for place in range(max(len(removed), len(added))):
            before = removed[place] if place < len(removed) else None
            rows.append(Row(before, added[place] if place < len(added) else None, False))
        removed.clear()
        added.clear()

    for line, other in align(keys, keys_two):
        if line is not None and other is not None:
            put_changes()
            rows.append(Row(one[line], two[other], True))
        elif line is not None:
            removed.append(one[line])
        elif other is not None:
            added.append(two[other])
    put_changes()
    return rows


def text_rows(one: str, two: str) -> list[Row]:
    """Return the lines of two texts side by side."""
    lines, others = one.splitlines(), two.splitlines()
    return rows_of(lines, others, lines, others)


def unified(rows: Sequence[Row]) -> list[str]:
    """Return the rows that differ as lines with `-` and `+`, with three lines around them and a line `@@` before each group."""
    near = [False] * len(rows)
    for place, row in enumerate(rows):
        if not row.same:
            for other in range(max(0, place - _CONTEXT), min(len(rows), place + _CONTEXT + 1)):
                near[other] = True
    lines: list[str] = []
    number, place = 0, 0
    added: list[str] = []
    for place, row in enumerate(rows):
        if row.same:
            lines += added
            added = []
        if near[place]:
            if not place or not near[place - 1]:
                lines.append(f"@@ line {number + 1} @@")
            if row.same:
                lines.append(f" {row.before}")
            if not row.same and row.before is not None:
                lines.append(f"-{row.before}")
            if not row.same and row.after is not None:
                added.append(f"+{row.after}")
        number += row.before is not None
    return lines + added
