"""Unique names of instructions and computations."""

from __future__ import annotations

import re


class NameUniquer:
    """Hands out names that were not handed out before, by the rule of XLA's `NameUniquer`.

    A name is a root and a number, `.N` at its end (0 if there is none; `separator` stands for the dot). A taken number gives
    way to the smallest one that is free at or after the last that was found so; 0 prints only where the asked name had a
    number.
    """

    def __init__(self, separator: str = ".") -> None:
        self._separator = separator
        self._taken: dict[str, set[int]] = {}
        self._next: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return `name`, or its root with another number, and take it."""
        root, _, suffix = name.rpartition(self._separator)
        # More digits do not fit into 64 bits, so XLA reads them as a part of the name.
        has_number = bool(root) and suffix.isdecimal() and len(suffix) < 19
        if not has_number:
            root = name
        number = int(suffix) if has_number else 0
        taken = self._taken.setdefault(root, set())
        if number in taken:
            number = self._next.get(root, 0)
            while number in taken:
                number += 1
            self._next[root] = number + 1
        taken.add(number)
        return f"{root}{self._separator}{number}" if number or has_number else root


def identifier(name: str) -> str:
    """Return the name with everything but ASCII letters, digits and `_` turned to `_`, as kernels and symbols are called."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
