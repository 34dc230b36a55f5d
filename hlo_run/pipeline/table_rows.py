"""Defines the rows and groups of the pass tables, and selects the rows of a run."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.options.compile import RowSelection
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

ContextT = TypeVar("ContextT", bound=PassContext)
PassT = TypeVar("PassT")


class PassAt(Struct, Generic[ContextT, PassT], frozen=True):
    """Makes the pass of a Python module. Imports the module when a row first makes the pass, so unused passes cost nothing.

    The pass is the only public class of the module with `apply`. `options` are its fields. An option that is a function is
    called with the context.
    """

    module: str
    options: Mapping[str, object]

    def __call__(self, ctx: ContextT) -> PassT:
        options = {name: value(ctx) if callable(value) else value for name, value in self.options.items()}
        return pass_class(self.module)(**options)


@functools.cache
def pass_class(module: str) -> type[Any]:
    """Return the class of the pass in a Python module, which it imports."""
    members = vars(importlib.import_module(module)).items()
    classes = [value for name, value in members if isinstance(value, type) and value.__module__ == module and name[0] != "_"]
    [found] = (value for value in classes if hasattr(value, "apply"))
    return found


class Row(Struct, Generic[ContextT, PassT], frozen=True):
    """One row of a table: its name, the function that makes its pass, and the condition under which it runs.

    A `required` row cannot be disabled. `when` is the only place for a condition. After a row that `settles_layouts` the
    verifier checks layouts too, after one that `settles_broadcasts` the order of broadcast dimensions. A row that `mixes_layouts`
    may leave an instruction whose operands have different layouts, which a later row settles. A row that `shares`
    does a part of its pass's work; all such rows of one name are the pass. In a module without instructions of
    `for_opcodes` outside of fusion bodies, the pass has nothing to do: the row counts as run, but the pass is not
    imported. `number` distinguishes rows of the same pass, from 1; `numbered` sets it. `plugin` says whose the pass is if it is
    not hlo-run's: its errors are those of its author.
    """

    name: str
    make: Callable[[ContextT], PassT]
    required: bool = False
    when: Callable[[ContextT], bool] = lambda c: True
    settles_layouts: bool = False
    settles_broadcasts: bool = False
    mixes_layouts: bool = False
    shares: bool = False
    for_opcodes: tuple[Opcode, ...] = ()
    number: int = 1
    plugin: str = ""

    @property
    def pass_name(self) -> str:
        """XLA's name of the pass, which all its rows share."""
        return self.name.removesuffix(f"-{self.number}") if self.number > 1 else self.name

    def runs(self, ctx: ContextT, groups: tuple[str, ...] = ()) -> bool:
        """True if the flags and the target select the row. `groups` are the names of the pipelines that contain it."""
        return self.when(ctx) and (self.required or selects(ctx.rows, self.name, groups))


def selects(selection: RowSelection, row: str, groups: tuple[str, ...]) -> bool:
    """True if flags select the optional row of these groups."""
    if selection.required_only:
        return False
    if selection.only:
        return _named(row, groups, selection.only)
    return not _named(row, groups, selection.disabled)


def _named(row: str, groups: tuple[str, ...], names: tuple[str, ...]) -> bool:
    asked = {spelling(name) for name in names}
    return bool(asked) and not asked.isdisjoint((*map(spelling, groups), *spellings(row, groups)))


def spellings(row: str, groups: tuple[str, ...]) -> list[str]:
    """Return the names of a row in flags: the row's, its pass's, and both after a group: `cse-2`, `cse`, `kernel/cse`."""
    plain = [spelling(row), spelling(base_name(row))]
    return plain + [f"{spelling(group)}/{name}" for group in groups for name in plain]


def spelling(name: str) -> str:
    """Return a name with dashes for underscores, for comparison. XLA's passes mix both."""
    return name.replace("_", "-")


def base_name(row: str) -> str:
    """Return the name of a row's pass: `cse` for `cse-3`. In a flag, the pass's name means all its rows."""
    head, dash, tail = row.rpartition("-")
    return head if dash and tail.isdigit() else row


class Group(Struct, Generic[ContextT, PassT], frozen=True):
    """One of XLA's pipelines, which may contain others. It runs until the module stops changing, at most `repeat` times.

    `for_partitions` limits it to modules with several partitions (True) or with one (False).
    """

    name: str
    rows: tuple[Row[ContextT, PassT] | Group[ContextT, PassT], ...]
    repeat: int = 1
    for_partitions: bool | None = None

    def all_rows(self) -> Iterator[tuple[tuple[str, ...], Row[ContextT, PassT]]]:
        """Yield every row, also of inner groups, with the names of its groups from the outermost inwards."""
        for item in self.rows:
            if isinstance(item, Row):
                yield (self.name,), item
            else:
                yield from (((self.name, *inner), row) for inner, row in item.all_rows())


def numbered(groups: Iterable[Group[ContextT, PassT]]) -> tuple[Group[ContextT, PassT], ...]:
    """Return the table with unique row names: the second row of a pass `cse` becomes `cse-2`, and so on.

    Rows for several partitions are numbered last, so that the rows of every module have the first numbers.
    """
    seen: Counter[str] = Counter()
    listed = list(groups)
    order = sorted(range(len(listed)), key=lambda place: listed[place].for_partitions is True)
    named = {place: _numbered(listed[place], seen) for place in order}
    return tuple(named[place] for place in range(len(listed)))


def _numbered(group: Group[ContextT, PassT], seen: Counter[str]) -> Group[ContextT, PassT]:
    rows: list[Row[ContextT, PassT] | Group[ContextT, PassT]] = []
    for item in group.rows:
        if isinstance(item, Group):
            rows.append(_numbered(item, seen))
            continue
        seen[item.name] += 1
        count = seen[item.name]
        rows.append(replace(item, name=f"{item.name}-{count}", number=count) if count > 1 else item)
    return replace(group, rows=tuple(rows))


class RowFlags(Struct, frozen=True):
    """The flags that select rows of one table: their names, what they select, and the word for the table in messages."""

    only: str
    disable: str
    selection: RowSelection
    table: str


def check_names(
    flags: RowFlags, rows: Iterable[tuple[str, tuple[str, ...], bool]], elsewhere: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a warning for each unknown name in a flag; raises UsageError for a required row that is disabled.

    `rows` are (name, groups, required) of the table. As in XLA, unknown names are no error, so that one list of flags fits
    several versions. `elsewhere` says for a name of another table which flag takes it.
    """
    required: dict[str, bool] = {}
    known_names: set[str] = set()
    for name, groups, is_required in rows:
        known_names |= set(map(spelling, groups))
        for known in spellings(name, groups):
            required[known] = required.get(known, False) or is_required
    known_names |= set(required)
    for name in flags.selection.disabled:
        if required.get(spelling(name), False):
            raise UsageError(f"row '{name}' is required and cannot be disabled", hint="--list_passes marks the required rows")
    given = {flags.only: flags.selection.only, flags.disable: flags.selection.disabled}
    unknown = [(flag, name) for flag, names in given.items() for name in names if spelling(name) not in known_names]
    return tuple(
        f"--{flag}: no {flags.table} row is called '{name}'; {elsewhere.get(spelling(name)) or _advice(name, known_names)}"
        for flag, name in unknown
    )


def _advice(name: str, known_names: set[str]) -> str:
    close = difflib.get_close_matches(spelling(name), sorted(known_names), n=1)
    return f"did you mean {close[0]}?" if close else "--list_passes lists the rows"
