"""The names inside a fusion, and the order in which XLA makes its instructions.

XLA fuses one instruction at a time: it copies it into the fusion, replaces the parameter by the copy, makes the later parameters
again with the next numbers, and adds parameters for new operands. Every step takes names from the module, and the order of the
parameters and of the instructions follows from the steps. This file takes the same steps, on names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FusedNames(Generic[K]):
    """The names of a fusion's instructions, by what they compute, in the order in which XLA made them.

    A key is an op of the fusion, or the source of a parameter. `parameters` has the sources in the order of the parameters.
    """

    __slots__ = ("_unique", "names", "parameters")

    def __init__(self, unique: Callable[[str], str]) -> None:
        """Make an empty fusion; `unique` takes a name from the module."""
        self._unique = unique
        self.names: dict[K, str] = {}
        self.parameters: list[K] = []

    def append(self, op: K, name: str, operands: Iterable[K], parameter: K | None = None) -> None:
        """Add a copy of an instruction called `name`, in place of the parameter for it if there is one.

        Operands that the fusion does not have yet become parameters.
        """
        made = self._unique(name)
        if parameter is None:
            self.names[op] = made
        else:
            place = self.parameters.index(parameter)
            del self.names[parameter], self.parameters[place]
            self.names[op] = made
            for number in range(place, len(self.parameters)):
                later = self.parameters[number]
                del self.names[later]
                self.names[later] = self._unique(f"param_{number}")
        for operand in operands:
            if operand not in self.names:
                self.names[operand] = self._unique(f"param_{len(self.parameters)}")
                self.parameters.append(operand)

    def replace_parameter(self, old: K, new: K) -> None:
        """Let `new` be the source of the parameter for `old`."""
        self.names = {new if key is old else key: name for key, name in self.names.items()}
        self.parameters[self.parameters.index(old)] = new

    def remove_parameter(self, source: K) -> None:
        """Remove a parameter that no instruction uses; later ones are made again."""
        place = self.parameters.index(source)
        del self.names[source], self.parameters[place]
        for number in range(place, len(self.parameters)):
            later = self.parameters[number]
            del self.names[later]
            self.names[later] = self._unique(f"param_{number}")

    def cloned(self) -> dict[K, str]:
        """Return the names of a copy of the whole fusion, which XLA makes before it merges it into another."""
        return {key: self._unique(name) for key, name in self.names.items()}

    def merge(self, source: K, clones: dict[K, str], ops: Sequence[tuple[K, K, Iterable[K]]]) -> None:
        """Add the ops of another fusion in place of the parameter `source`; `clones` has the names of their copies.

        `ops` has (op, its copy here, operands) with users before operands.
        """
        self._unique("constant")  # XLA gives the copy another root.
        self.replace_parameter(source, ops[0][0])
        for op, copy, operands in ops:
            self.append(copy, clones[op], operands, parameter=op)

    def rename(self, op: K, name: str) -> None:
        """Make an instruction again: it gets another name, and is the last one."""
        made = self._unique(name)
        self.names.pop(op, None)
        self.names[op] = made


_CLONE = ".clone"


def clone_name(name: str) -> str:
    """Return the name of a copy: `NAME.clone`, of `NAME.clone` `NAME.clone2`, of `NAME.clone2` `NAME.clone3`."""
    head, found, tail = name.rpartition(_CLONE)
    if not found:
        return name + _CLONE
    if not tail:
        return f"{name}2"
    return f"{head}{_CLONE}{int(tail) + 1}" if tail.isdecimal() else name + _CLONE
