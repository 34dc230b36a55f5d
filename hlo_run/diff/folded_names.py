"""Compares texts about memory, thunks and kernels by lines, where a name may be another one on each side.

    value: <6 p @0> (size=48000,offset=0): f32[300,40]{1,0}
    value: <6 q @0> (size=48000,offset=0): f32[300,40]{1,0}      the same, if p is q everywhere

Names are those of instructions, computations and kernels, at the places where a kind of text has them. XLA's fingerprint of the
module and the metadata of instructions do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import TypeAlias

from msgspec import Struct

from hlo_run.diff.lines import Row, rows_of_pairs
from hlo_run.pipeline.observers.line_diff import align

# The first lines of both texts that correspond; None where the other text has one more.
_Pairs: TypeAlias = "list[tuple[int | None, int | None]]"
_MARK = "\0"
# What follows from other lines; and the branches of trees.
_NOT_COUNTED = re.compile(
    r'fingerprint_before_lhs="[^"]*"|, metadata=\{(?:"[^"]*"|[^{}"])*\}'
    r"|(?<= bytes) \(cumulative: \d+ bytes\)$|, remaining: [\d ]+ bytes(?=\)$)|[├└](?=── )| +(?=; preds = )"
)
_BLANKS = re.compile(r"(?<=\S) {2,}")
_NAME = r'[^\s{}<>(),"%@:]+'
# A comment precedes the text of each kernel of a golden.
_KERNEL = r"^// kernel: (?P<kernel>\S+)$"


class _Kind(Struct, frozen=True):
    """The names in a kind of text: the group `name` (or `kernel`) of `places`.

    With `defined`, only names count that a line of the text defines. `endings` may follow a defined name.
    """

    places: re.Pattern[str]
    defined: re.Pattern[str] | None = None
    endings: re.Pattern[str] | None = None


_BUFFERS = _Kind(re.compile(rf"<\d+ (?P<name>{_NAME})|%(?P<kernel>{_NAME})"))
_VALUES = _Kind(re.compile(rf"<\d+ (?P<name>{_NAME})|%(?P<kernel>{_NAME})|^  (?P<place>{_NAME})(?=$| \{{|, operand )"))
_LIVE_RANGE = _Kind(re.compile(rf"^ +(?:\d+:|[│├└─ ]*)(?P<name>{_NAME})(?=$|\{{[\d,]*\}}:|(?:\{{[\d,]*\}})? \(\d)"))
_IN_SEQUENCE = re.compile(r"^ +(\d+):(.+)$")
_SIZED = re.compile(
    rf"^(?P<depth>[ │]+[├└]── |    )(?P<name>{_NAME})(?P<index>\{{[\d,]*\}})?"
    r"(?:: (?P<size>\d+) bytes| \([\d.]+%, total: (?P<total>[\d ]+) bytes, current: (?P=total) )"
)
_THUNKS = _Kind(re.compile(rf"(?P<name>{_NAME})(?= grid: \[)"))
_METADATA = _Kind(re.compile(r'profile_annotation: "(?P<name>[^"]*)"'))
_PTX = _Kind(
    re.compile(rf"{_KERNEL}|(?<![\w%.$])(?P<name>[A-Za-z_$][\w$]*)"),
    re.compile(r"^\.?[^\n]*\.(?:entry|func)\b[^\n]*?(?P<name>[\w$]+)\($|^// kernel: (?P<kernel>\S+)$", re.MULTILINE),
    re.compile(r"_param_\d+$"),
)
_LLVM = _Kind(
    re.compile(
        rf'{_KERNEL}|@"?(?P<name>[\w.$-]+)|^source_filename = "(?P<place>[^"]*)"|^; ModuleID = \'(?P<id>.*)\''
        # Functions that are inlined leave labels and scopes.
        r'|(?<![\w.$-])(?P<label>[A-Za-z_$][\w.$-]*?)(?=\.exit(?:\d|\b))|(?<= distinct)[^"]*"(?P<scope>[^":]*)'
    ),
    re.compile(r'^define [^\n]*?@"?(?P<name>[\w.$-]+)|^@"?(?P<kernel>[\w.$-]+)"? =', re.MULTILINE),
)
_KERNEL_IR = _Kind(
    re.compile(rf'{_KERNEL}|@"?(?P<name>[\w.$-]+)|hlo\.op = "(?P<place>[^"]*)"'),
    re.compile(
        r'^ *[\w.]*func [^\n@]*@"?(?P<name>[\w.$-]+)[^\n]*\{$'
        r'|^ *(?:gpu\.module|llvm\.mlir\.global|memref\.global)[^\n@]*@"?(?P<kernel>[\w.$-]+)',
        re.MULTILINE,
    ),
)
_PLAIN = _Kind(re.compile(_KERNEL))
_TABLE = "fusion-analysis"
_KINDS = {
    "buffer-assignment": _BUFFERS,
    "buffer-assignment-values": _VALUES,
    "live-range": _LIVE_RANGE,
    "thunks": _THUNKS,
    "thunks-after-passes": _THUNKS,
    "thunk-metadata": _METADATA,
    "memory-usage-report": _PLAIN,
    "llvm-before-optimizations": _LLVM,
    "llvm": _LLVM,
    "ptx": _PTX,
}
# What the files of dumps end with, where it is not a stage.
_ENDINGS = {".ptx": _PTX, ".ll": _LLVM, ".mlir": _KERNEL_IR, ".thunk_sequence.txt": _THUNKS, ".thunk_metadata.txt": _METADATA}


class FoldedDiff(Struct, frozen=True):
    """The lines side by side, and the number of names that differ."""

    rows: list[Row]
    renamed: int


class _Line(Struct, frozen=True):
    """A line with a mark in place of each name, and the names."""

    key: str
    names: tuple[str, ...]


def diff_but_names(name: str, before: str, after: str) -> FoldedDiff:
    """Compare two texts called `name`: a stage, or a file of goldens or dumps."""
    stage = re.sub(r"\.txt$", "", name.replace("\\", "/").rpartition("/")[2])
    texts, lines = (before, after), (before.splitlines(), after.splitlines())
    if stage.endswith("live-range"):
        lines = (_in_order(lines[0]), _in_order(lines[1]))
    folds = [_folding(stage, text) for text in texts]
    one, two = ([fold(number, line) for number, line in enumerate(side)] for fold, side in zip(folds, lines, strict=True))
    found = [_diff(lines, one, two, frozenset())]
    if found[0].rows and not all(row.same for row in found[0].rows):
        # Names on both sides tell which lines belong together, unless the numbers of names have moved.
        common = {name for line in one for name in line.names} & {name for line in two for name in line.names}
        found.append(_diff(lines, one, two, common))
    return min(reversed(found), key=lambda diff: sum(not row.same for row in diff.rows))


def _diff(lines: tuple[list[str], list[str]], one: Sequence[_Line], two: Sequence[_Line], kept: Collection[str]) -> FoldedDiff:
    """Return the differences if the names `kept` are the same on both sides, and the others correspond."""
    forth: dict[str, str] = {}
    back: dict[str, str] = {}
    pairs: _Pairs = []
    for line, other in align([_key(line, kept) for line in one], [_key(line, kept) for line in two]):
        if line is None or other is None or _correspond(one[line].names, two[other].names, forth, back):
            pairs.append((line, other))
        else:
            pairs += ((line, None), (None, other))
    return FoldedDiff(rows_of_pairs(*lines, pairs), sum(before != after for before, after in forth.items()))


def _key(line: _Line, kept: Collection[str]) -> str:
    if not line.names or not kept:
        return line.key
    parts = line.key.split(_MARK)
    names = [name if name in kept else "" for name in line.names]
    return parts[0] + "".join(f"{_MARK}{name}{_MARK}{part}" for name, part in zip(names, parts[1:], strict=True))


def _correspond(names: Sequence[str], others: Sequence[str], forth: dict[str, str], back: dict[str, str]) -> bool:
    """True if the names correspond by `forth` and `back`, to which new names are added then."""
    new: dict[str, str] = {}
    for name, other in zip(names, others, strict=True):
        if forth.get(name, new.get(name, other)) != other or back.get(other, name) != name:
            return False
        new[name] = other
    if len(set(new.values())) < len(new):
        return False
    forth |= new
    back |= {other: name for name, other in new.items()}
    return True


def _folding(stage: str, text: str) -> Callable[[int, str], _Line]:
    """Return the function from the number of a line and the line to its key and names."""
    if stage.endswith(_TABLE):
        return _table_folding(text)
    ending = next((kind for ending, kind in _ENDINGS.items() if stage.endswith(ending) or f"{stage}.txt".endswith(ending)), None)
    # The rows of kernels have names that are not known here.
    kind = ending or _KINDS.get(stage.rpartition(".")[2], _KERNEL_IR)
    known = None if kind.defined is None else {found[found.lastgroup or 0] for found in kind.defined.finditer(text)}

    def fold(_: int, line: str) -> _Line:
        names: list[str] = []

        def mark(found: re.Match[str]) -> str:
            group = found.lastgroup or ""
            name, end = found[group], ""
            if kind.endings is not None and (ending := kind.endings.search(name)):
                name, end = name[: ending.start()], ending[0]
            if known is not None and name not in known and group == "name":
                return found[0]
            names.append(name)
            start, stop = (place - found.start() for place in found.span(group))
            return f"{found[0][:start]}{_MARK}{end}{found[0][stop:]}"

        return _Line(kind.places.sub(mark, _NOT_COUNTED.sub("", line.replace(_MARK, ""))), tuple(names))

    return fold


def _in_order(lines: Sequence[str]) -> list[str]:
    """Return the lines of live ranges with values of equal size in the order of the schedule, not of their names."""
    numbers = {found[2]: int(found[1]) for line in lines if (found := _IN_SEQUENCE.match(line))}

    def size(line: str) -> tuple[int, str] | None:
        found = _SIZED.match(line)
        return (len(found["depth"]), found["size"] or found["total"]) if found is not None else None

    def place(line: str) -> tuple[int, str]:
        found = _SIZED.match(line)
        return (numbers.get(found["name"], 0), found["index"] or "") if found is not None else (0, "")

    return [line for key, group in groupby(lines, size) for line in (group if key is None else sorted(group, key=place))]


def _table_folding(text: str) -> Callable[[int, str], _Line]:
    """Return the function for the table of fusions, whose first and third columns hold names."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith("fusion ")), len(lines))
    places = [lines[head].find(name) for name in ("kind ", "heroes ", "emitter ")] if head < len(lines) else []

    def fold(number: int, line: str) -> _Line:
        if number <= head:
            return _Line(_BLANKS.sub(" ", line), ())
        name, kind, heroes, rest = (line[start:end].strip() for start, end in zip((0, *places), (*places, None), strict=True))
        names = (name, *(hero for hero in heroes.split(", ") if hero))
        return _Line(" ".join([_MARK, kind, *[_MARK] * (len(names) - 1), _BLANKS.sub(" ", rest)]), names)

    return fold
