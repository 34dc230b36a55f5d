"""Pairs the files of two dump directories, written by hlo-run or by XLA, and compares each pair."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hlo_run.diff.lines import Row
from hlo_run.diff.numbers import Tolerance, diff_figures, kernel_figures, work_figures
from hlo_run.diff.texts import TextDiff, diff_texts
from hlo_run.errors import HloRunError, UsageError
from hlo_run.ops.parse import parse

_MODULE = re.compile(r"module_\d+\.(?P<module>.+)\.before_optimizations\.txt")
_NUMBER = re.compile(r"(?:^|(?<=\.))\d{4}\.(?=.*after_)")
_TARGET = re.compile(r"\bsm_\d+(?:\.\d+)?[a-z]?_(?=gpu_)")
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)", re.MULTILINE)
_OPTIMIZED = "after_optimizations.txt"
_MOST_BYTES = 200_000_000


def diff_folders(one: Path, two: Path, tolerances: Mapping[str, Tolerance]) -> list[TextDiff]:
    """Compare the files of two directories in the order of their names. Raises UsageError if one cannot be read."""
    pairs = pair_names(_files(one), _files(two))
    return [_diff_files(one, two, before, after, tolerances) for before, after in pairs]


def _files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def pair_names(ones: Sequence[str], twos: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Pair equal names, then names that are equal without numbers and GPU, and without the module if each side has one."""
    partner = {name: name for name in ones if name in set(twos)}
    left, left_two = ([name for name in side if name not in partner] for side in (ones, twos))
    modules = [
        {found["module"] for name in side if (found := _MODULE.fullmatch(os.path.basename(name)))} for side in (ones, twos)
    ]
    only = [names.pop() if len(names) == 1 else "" for names in modules]
    places: dict[str, list[str]] = defaultdict(list)
    for name in reversed(left_two):
        places[_plain(name, only[1] if only[0] else "")].append(name)
    for name in left:
        others = places.get(_plain(name, only[0] if only[1] else ""))
        if others:
            partner[name] = others.pop()
    paired = set(partner.values())
    rows: list[tuple[str | None, str | None]] = [(name, partner.get(name)) for name in ones]
    return rows + [(None, name) for name in twos if name not in paired]


def _plain(name: str, module: str) -> str:
    """Return a file's name without the module's number, its name if given, the GPU, and the number of a pass."""
    folder, base = os.path.split(name)
    base = re.sub(r"^module_\d+\.", "", base)
    if module and base.startswith(f"{module}."):
        base = base.removeprefix(f"{module}.")
    return os.path.join(folder, _TARGET.sub("", _NUMBER.sub("", base)))


def _diff_files(one: Path, two: Path, before: str | None, after: str | None, tolerances: Mapping[str, Tolerance]) -> TextDiff:
    name = before or after or ""
    data = [read_bytes(folder / file) if file is not None else None for folder, file in ((one, before), (two, after))]
    if data[0] is None or data[1] is None:
        return TextDiff(name, missing="before" if data[0] is None else "after")
    texts = [_text(part) for part in data if part is not None]
    if data[0] != data[1] and None in texts:
        return TextDiff(name, [Row(f"{len(data[0])} bytes", f"{len(data[1])} other bytes", False)])
    diff = diff_texts(name, texts[0] or "", texts[1] or "")
    if diff.differs:
        figures = [_figures(name, text or "") for text in texts]
        if figures[0] is not None and figures[1] is not None:
            diff.figures = diff_figures(figures[0], figures[1], tolerances)
    return diff


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; raises UsageError if it cannot be read or is larger than 200 MB."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"'{path}' is larger than {_MOST_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {os.strerror(error.errno or 0)}") from None


def _text(data: bytes) -> str | None:
    """Return the text of a file; None if it is not text."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _figures(name: str, text: str) -> dict[str, int] | None:
    """Return the figures that a dump tells; None if it tells none."""
    try:
        if name.endswith(_OPTIMIZED):
            return work_figures(parse(text, name, verified=False))
        if name.endswith("buffer-assignment.txt"):
            return {"memory": sum(map(int, _ALLOCATION.findall(text)))}
        if name.endswith(".ptx"):
            return kernel_figures([text])
    except HloRunError:
        return None
    return None
