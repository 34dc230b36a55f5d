"""Reduce a failing module: cut its entry at an earlier instruction, and replace instructions by parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hlo_run.errors import HloRunError
from hlo_run.hlo.feeds import Feeds
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.evaluate import Reference

_LINE = re.compile(r"(?:ROOT )?([\w.-]+) = (.*)")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Case:
    """A module and its arguments: the text before the entry, and the entry's lines in order, the root last."""

    before: str
    lines: tuple[str, ...]
    arguments: tuple[Any, ...]

    @property
    def text(self) -> str:
        """The module's text."""
        lines = [*self.lines[:-1], f"ROOT {self.lines[-1]}"]
        return f"{self.before}ENTRY main {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def reduced(text: str, arguments: Sequence[Any], fails: Callable[[Case], bool], feeds: Feeds) -> Case:
    """Return a smaller module that still fails, with its arguments, or the module itself if `fails` is false for it."""
    case = _read(text, arguments)
    if not fails(case):
        return case
    for end in range(len(case.lines)):
        cut = _alive(case, end)
        if cut is not None and fails(cut):
            case = cut
            break
    changed = True
    while changed:
        changed = False
        for number in range(len(case.lines) - 2, -1, -1):
            if number >= len(case.lines) - 1:
                continue
            smaller = _with_parameter(case, number, feeds)
            if smaller is not None and len(smaller.lines) < len(case.lines) and fails(smaller):
                case, changed = smaller, True
    return _without_computations(case)


def _read(text: str, arguments: Sequence[Any]) -> Case:
    before, entry = text.split("ENTRY main {\n")
    before = re.sub(r", input_output_alias=.*", "", before)
    lines = [line.strip() for line in entry.splitlines() if " = " in line]
    root = next(n for n, line in enumerate(lines) if line.startswith("ROOT "))
    lines.append(lines.pop(root).removeprefix("ROOT "))
    return Case(before, tuple(lines), tuple(arguments))


def _alive(case: Case, end: int) -> Case | None:
    """Return the case with instruction `end` as the root, and only what it depends on; None if the root is unsuitable."""
    needed: set[str] = set()
    kept: list[str] = []
    for number in range(end, -1, -1):
        found = _LINE.match(case.lines[number])
        assert found is not None, case.lines[number]
        if number == end or found[1] in needed:
            needed.update(_NAME.findall(found[2]))
            kept.append(case.lines[number])
    kept.reverse()
    arguments: list[Any] = []
    for number, line in enumerate(kept):
        if place := re.search(r" parameter\((\d+)\)", line):
            kept[number] = line.replace(place[0], f" parameter({len(arguments)})")
            arguments.append(case.arguments[int(place[1])])
    if " token[] " in kept[-1] or " parameter(" in kept[-1]:
        return None
    return Case(case.before, tuple(kept), tuple(arguments))


def _with_parameter(case: Case, number: int, feeds: Feeds) -> Case | None:
    """Return the case with an instruction replaced by a parameter with the reference's value; None if impossible."""
    line = case.lines[number]
    found = re.match(r"([\w.-]+) = ([a-z]\w*\[[\d,]*\](?:\{[\d,]*\})?) (?!parameter|constant)", line)
    part = _alive(case, number) if found is not None else None
    if found is None or part is None:
        return None
    try:
        (value,) = Reference(parse(part.text)).run([part.arguments], feeds=feeds)
    except HloRunError:
        return None
    lines = list(case.lines)
    lines[number] = f"{found[1]} = {found[2]} parameter({len(case.arguments)})"
    return _alive(Case(case.before, tuple(lines), (*case.arguments, value)), len(lines) - 1)


def _without_computations(case: Case) -> Case:
    """Remove the computations that are no longer called."""
    header, *computations = case.before.split("\n\n")
    kept: list[str] = []
    used = "\n".join(case.lines)
    for text in reversed([c for c in computations if c.strip()]):
        if text.split(" {")[0].strip() in _NAME.findall(used):
            kept.append(text)
            used += text
    return Case("\n\n".join([header, *reversed(kept)]) + "\n\n", case.lines, case.arguments)
