"""Make unique names of instructions and computations."""

from __future__ import annotations

import re


class NameUniquer:
    """Makes each name unique, by the rule of XLA's `NameUniquer`.

    A name is a root and a number, `.N` at its end (0 without one); `separator` replaces the dot. If a number is taken,
    the next free number after the last one assigned to the root is used, beginning at 0. The number 0 is printed only
    if the requested name had a number.
    """

    def __init__(self, separator: str = ".") -> None:
        self._separator = separator
        self._taken: dict[str, set[int]] = {}
        self._next: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return `name` if it is free, else its root with another number, and reserve it."""
        root, _, suffix = name.rpartition(self._separator)
        # A number of more digits does not fit into 64 bits, so XLA reads it as part of the name.
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
    """Return the name with every character but ASCII letters, digits and `_` replaced by `_`, for kernels and symbols."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
