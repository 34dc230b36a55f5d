"""Rows and groups: the vocabulary of the pass tables, and which rows a run selects."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.pipeline.passes import PassContext

ContextT = TypeVar("ContextT", bound=PassContext)
PassT = TypeVar("PassT")


@dataclass(frozen=True)
class Row(Generic[ContextT, PassT]):
    """One line of a table: the name people use, how to make the pass, and when it runs.

    A `required` row cannot be disabled. `when` is the only place for a condition.
    """

    name: str
    make: Callable[[ContextT], PassT]
    required: bool = False
    when: Callable[[ContextT], bool] = lambda c: True

    def runs(self, ctx: ContextT, group: str = "") -> bool:
        """True if this run wants the row; `group` is the name of the pipeline it stands in."""
        return self.when(ctx) and (self.required or _selected(ctx.options, self.name, group))


def _selected(options: Options, row: str, group: str) -> bool:
    if options.required_rows_only:
        return False
    if options.only_rows:
        return _named(row, group, options.only_rows)
    return not _named(row, group, options.disabled_rows)


def _named(row: str, group: str, names: tuple[str, ...]) -> bool:
    return row in names or base_name(row) in names or (group != "" and group in names)


def base_name(row: str) -> str:
    """Return the pass's name of a row: `cse` for `cse-3`; naming the pass means all its rows."""
    head, dash, tail = row.rpartition("-")
    return head if dash and tail.isdigit() else row


@dataclass(frozen=True)
class Group(Generic[ContextT, PassT]):
    """One of XLA's pipelines; `repeat` > 1: until the module stands still, at most so often."""

    name: str
    rows: tuple[Row[ContextT, PassT], ...]
    repeat: int = 1


def check_names(options: Options, rows: Iterable[tuple[str, bool]], groups: Iterable[str]) -> None:
    """Raise UsageError for a flag that names no row, or disables a required one; `rows` are (name, required)."""
    required = dict(rows)
    known = {*required, *map(base_name, required), *groups}
    for name in (*options.only_rows, *options.disabled_rows):
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            raise UsageError(f"no row is called '{name}'", hint=f"did you mean {close[0]}?" if close else "see --list_passes")
    for name in options.disabled_rows:
        if any(is_required and name in (row, base_name(row)) for row, is_required in required.items()):
            raise UsageError(f"row '{name}' is required: without it nothing can run", hint="see --list_passes")
