"""The lines of two texts side by side, or as a unified difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from hlo_run.pipeline.observers.line_diff import align

_CONTEXT = 3


class Row(Struct, frozen=True):
    """A line of each side; None where only the other side has a line. `same`: nothing differs but, in modules, names."""

    before: str | None
    after: str | None
    same: bool


def rows_of(one: Sequence[str], two: Sequence[str], keys: Sequence[str], keys_two: Sequence[str]) -> list[Row]:
    """Return the lines side by side, aligned by their keys. Removed and added lines at one place share rows."""
    return rows_of_pairs(one, two, align(keys, keys_two))


def rows_of_pairs(one: Sequence[str], two: Sequence[str], pairs: Iterable[tuple[int | None, int | None]]) -> list[Row]:
    """Return the lines side by side. `pairs` are the numbers of equal lines; None for a line without an equal one."""
    rows: list[Row] = []
    removed: list[str] = []
    added: list[str] = []

    def put_changes() -> None:
        for place in range(max(len(removed), len(added))):
            before = removed[place] if place < len(removed) else None
            rows.append(Row(before, added[place] if place < len(added) else None, False))
        removed.clear()
        added.clear()

    for line, other in pairs:
        if line is not None and other is not None:
            put_changes()
            rows.append(Row(one[line], two[other], True))
        elif line is not None:
            removed.append(one[line])
        elif other is not None:
            added.append(two[other])
    put_changes()
    return rows


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
