"""Make unique names of instructions and computations."""

from __future__ import annotations

import re
from typing import TypeAlias

from hlo_run.hlo.values.dtype import DTYPES


class NameRoot:
    """The taken names of one root: all numbers below `next`, and the numbers in `others`."""

    __slots__ = ("next", "others", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.next = 0
        self.others: set[int] = set()

    def take(self, number: int) -> int:
        """Take a number if it is free, else the next free one, and return it; -1 is number 0, not printed."""
        wanted = 0 if number < 0 else number
        if wanted < self.next or wanted in self.others:
            return self.next_number()
        self.others.add(wanted)
        return number

    def copy(self) -> NameRoot:
        """Return a root with the same taken names."""
        copied = NameRoot(self.text)
        copied.next, copied.others = self.next, set(self.others)
        return copied

    def next_number(self) -> int:
        """Take the next free number after the last one assigned, and return it."""
        number = self.next
        while number in self.others:
            number += 1
        self.next = number + 1
        return number


# A root and a number; -1 stands for number 0, not printed. The text is made only where it is needed.
UniqueName: TypeAlias = tuple[NameRoot, int]


class NameUniquer:
    """Makes each name unique, by the rule of XLA's `NameUniquer`.

    A name is a root and a number, `.N` at its end (0 without one); `separator` replaces the dot. If a number is taken,
    the next free number after the last one assigned to the root is used, beginning at 0. The number 0 is printed only
    if the requested name had a number.
    """

    def __init__(self, separator: str = ".") -> None:
        self._separator = separator
        self._roots: dict[str, NameRoot] = {}

    def copy(self) -> NameUniquer:
        """Return a uniquer with the same taken names."""
        copied = NameUniquer(self._separator)
        copied._roots = {text: root.copy() for text, root in self._roots.items()}
        return copied

    def unique(self, name: str) -> str:
        """Return `name` if it is free, else its root with another number, and reserve it."""
        return self.text(self.take(name))

    def take(self, name: str) -> UniqueName:
        """Reserve `name` if it is free, else its root with another number."""
        root, number = self.parsed(name)
        return root, root.take(number)

    def parsed(self, name: str) -> UniqueName:
        """Return a name by its parts, without reserving it."""
        text, _, suffix = name.rpartition(self._separator)
        # A number of more digits does not fit into 64 bits, so XLA reads it as part of the name.
        has_number = bool(text) and suffix.isdecimal() and len(suffix) < 19
        if not has_number:
            text = name
        return self.root(text), int(suffix) if has_number else -1

    def root(self, text: str) -> NameRoot:
        """Return the root with this text."""
        root = self._roots.get(text)
        if root is None:
            root = self._roots[text] = NameRoot(text)
        return root

    def text(self, name: UniqueName) -> str:
        """Return the name as it is printed."""
        root, number = name
        return root.text if number < 0 else f"{root.text}{self._separator}{number}"


def identifier(name: str) -> str:
    """Return the name with every character but ASCII letters, digits and `_` replaced by `_`, for kernels and symbols."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def legal_name(name: str) -> str:
    """Return XLA's legal form of a name, whose characters are already valid: type names get a `_`, `__x` becomes `a_x`."""
    if name in DTYPES or name in ("token", "opaque"):
        return f"{name}_"
    return f"a{name[1:]}" if name.startswith("__") and not name.startswith("__xla_") else name


def kernel_name(instruction_name: str) -> str:
    """Return the name of an instruction's kernel, as XLA makes it: PTX has no name `_`, and `__x` is left to LLVM."""
    name = identifier(instruction_name)
    return legal_name("__" if name == "_" else name)
