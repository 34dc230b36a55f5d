"""Holds IR text to a listing of a document: the listing's lines must occur in the text, in order.

What may differ: SSA names (a name of the listing stands for one name of the text throughout), white space, the place of
constants in their function, attributes but for `in_bounds` and `xla.range`, lines that the listing leaves out (`...`,
comments, and whatever the text has in between).
What may not: op names, types, operands and their order, result numbers, map aliases and their text, the numbers of
constants (`%c4`), and the name `vector_index`.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"%([A-Za-z_$][\w$]*|\d+)")
# A statement goes on with these; the document breaks long lines before them.
_CONTINUATION = re.compile(r'^\s*(in #|iter_args\(|->|:|")')
_CONSTANT = re.compile(r"=(?:arith|llvm\.mlir)\.constant\b")
_FIXED_NAMES = {"vector_index"}


def statements(text: str) -> list[str]:
    """Return the statements of an IR text, long ones joined, white space normal, the constants of a function first in it.

    Comments, `...` and closing braces are left out.
    """
    joined: list[str] = []
    for line in text.splitlines():
        code = line.split("//")[0].rstrip()
        if not code.strip() or code.strip() in ("...", "}", "{", "module {"):
            continue
        if joined and _CONTINUATION.match(code):
            joined[-1] += " " + code.strip()
        else:
            joined.append(code.strip())
    return _constants_first([_normal(line) for line in joined])


def _constants_first(lines: list[str]) -> list[str]:
    function = 0
    keyed: list[tuple[tuple[int, int], str]] = []
    for line in lines:
        is_header = "func @" in line
        function += is_header
        keyed.append(((function, 0 if is_header else 1 if _CONSTANT.search(line) else 2), line))
    return [line for _, line in sorted(keyed, key=lambda pair: pair[0])]


def _normal(line: str) -> str:
    line = re.sub(r'"\s+"', " ", line)  # adjacent strings are one
    line = re.sub(r"\s*\battributes \{.*\} \{$", " {", line)
    line = re.sub(r"\{(?![^{}]*(?:in_bounds|xla\.range))[^{}]* = [^{}]*\}|(?<=[\w>]) \{[^{}]+\}(?=[,)])", "", line)
    return re.sub(r"\s*([(),:=\[\]<>{}])\s*", r"\1", re.sub(r"\s+", " ", line))


def missing_line(listing: str, text: str) -> str | None:
    """Return the first statement of `listing` that cannot be found in its place in `text`; None if all are there."""
    wanted, lines = statements(listing), statements(text)
    deepest = 0
    # (number of statements found, next line of the text, names bound so far); last in, first tried.
    pending: list[tuple[int, int, dict[str, str]]] = [(0, 0, {})]
    seen: set[tuple[int, int, tuple[tuple[str, str], ...]]] = set()
    while pending:
        found, start, names = pending.pop()
        if found == len(wanted):
            return None
        deepest = max(deepest, found)
        state = (found, start, tuple(sorted(names.items())))
        if state in seen:
            continue
        seen.add(state)
        places = [(place, bound) for place in range(start, len(lines)) if (bound := _match(wanted[found], lines[place], names))]
        pending += [(found + 1, place + 1, bound) for place, bound in reversed(places)]
    return wanted[deepest]


def _match(wanted: str, line: str, names: dict[str, str]) -> dict[str, str] | None:
    """Return the names as bound after `line` has been found to be `wanted`, None if it is something else."""
    pattern, groups = _pattern(wanted, names)
    found = pattern.fullmatch(line)
    if found is None:
        return None
    bound = {"": "", **names}  # never empty, so that it counts as true
    for number, name in enumerate(groups):
        bound[name] = found[f"n{number}"]
    return bound


def _pattern(wanted: str, names: dict[str, str]) -> tuple[re.Pattern[str], list[str]]:
    parts: list[str] = []
    groups: list[str] = []
    last = 0
    for match in _NAME.finditer(wanted):
        parts.append(re.escape(wanted[last : match.start()]))
        last = match.end()
        name = match[1]
        if name in _FIXED_NAMES:
            parts.append(f"%{name}")
        elif re.fullmatch(r"c\d+", name):
            parts.append(rf"%{name}(?:_\d+)?")  # a constant says its number
        elif name in names:
            parts.append(re.escape(f"%{names[name]}"))
        elif name in groups:
            parts.append(f"%(?P=n{groups.index(name)})")
        else:
            parts.append(rf"%(?P<n{len(groups)}>{_NAME.pattern[2:-1]})")
            groups.append(name)
    parts.append(re.escape(wanted[last:]))
    return re.compile("".join(parts)), groups
