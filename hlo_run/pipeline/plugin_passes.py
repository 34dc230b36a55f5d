"""Passes of other packages, which register them as entry points of the group `hlo_run.passes`.

    [project.entry-points."hlo_run.passes"]
    my-pass = "my_package.my_pass:MyPass"

`MyPass()` is a pass: it has a `name`, and `apply(ctx, module)`, which edits the module in place. `hlo-opt --passes=my-pass` and
`HloPassPipeline.add_pass("my-pass")` know it, and `hlo-run --insert_passes=my-pass:before:ROW` runs it in the pipeline.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.table import HloGroup, HloRow
from hlo_run.pipeline.table_rows import Group, spelling
from hlo_run.records import replace

GROUP = "hlo_run.passes"


@functools.cache
def plugin_rows() -> dict[str, HloRow]:
    """Return a row for each registered pass by its name. Nothing is imported before a row makes its pass."""
    return {point.name: HloRow(point.name, functools.partial(_make, point), plugin=_owner(point)) for point in _points()}


def _points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _owner(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _make(point: EntryPoint, ctx: PassContext) -> HloPass:
    del ctx
    made: HloPass = point.load()()
    return made


class Insertion(Struct, frozen=True):
    """A registered pass and its place: next to the row, or the pipeline, `anchor`."""

    name: str
    is_before: bool
    anchor: str


def read_insertions(texts: Sequence[str]) -> list[Insertion]:
    """Read `NAME:before:ROW` and `NAME:after:ROW`. Raises UsageError for other texts and for unregistered passes."""
    found: list[Insertion] = []
    for text in texts:
        parts = text.split(":")
        if len(parts) != 3 or parts[1] not in ("before", "after"):
            raise UsageError(f"--insert_passes: '{text}' is not an insertion", hint="write NAME:before:ROW or NAME:after:ROW")
        name, where, anchor = parts
        if name not in plugin_rows():
            known = ", ".join(sorted(plugin_rows())) or "none is registered"
            raise UsageError(f"--insert_passes: no package registers a pass '{name}' in '{GROUP}'", hint=f"registered: {known}")
        found.append(Insertion(name, where == "before", anchor))
    return found


def with_insertions(groups: tuple[HloGroup, ...], texts: Sequence[str]) -> tuple[HloGroup, ...]:
    """Return the table with the passes of `--insert_passes`. Raises UsageError if it has no row or pipeline of that name."""
    for insertion in read_insertions(texts):
        row = plugin_rows()[insertion.name]
        inserted, groups = _inserted(groups, insertion, row)
        if not inserted:
            names = [name for group in groups for inner, one in group.all_rows() for name in (*inner, one.name)]
            close = difflib.get_close_matches(insertion.anchor, names, n=1)
            hint = f"did you mean {close[0]}?" if close else "--list_passes lists the rows"
            raise UsageError(f"--insert_passes: no HLO row or pipeline is called '{insertion.anchor}'", hint=hint)
    return groups


def _inserted(groups: tuple[HloGroup, ...], insertion: Insertion, row: HloRow) -> tuple[bool, tuple[HloGroup, ...]]:
    """Return whether the first row or group of the name was found, and the groups with the row next to it."""
    found = False
    result: list[HloGroup] = []
    for group in groups:
        items: list[HloRow | HloGroup] = []
        if not found and spelling(group.name) == spelling(insertion.anchor):
            found = True
            items = [row, *group.rows] if insertion.is_before else [*group.rows, row]
        for item in () if items else group.rows:
            inside, changed = (False, (item,)) if found or not isinstance(item, Group) else _inserted((item,), insertion, row)
            is_anchor = not found and not isinstance(item, Group) and spelling(item.name) == spelling(insertion.anchor)
            if is_anchor and insertion.is_before:
                items.append(row)
            items += changed
            if is_anchor and not insertion.is_before:
                items.append(row)
            found = found or inside or is_anchor
        result.append(replace(group, rows=tuple(items)))
    return found, tuple(result)
