"""The names inside a fusion, and the order in which XLA makes its instructions.

XLA fuses one instruction at a time: it copies it into the fusion, replaces the parameter by the copy, makes the later parameters
again with the next numbers, and adds parameters for new operands. Every step takes names from the module, and the order of the
parameters and of the instructions follows from the steps. This file takes the same steps, on names alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from hlo_run.hlo.names import NameUniquer, UniqueName

K = TypeVar("K", bound=Hashable)


class FusedNames(Generic[K]):
    """The names of a fusion's instructions, by what they compute, in the order in which XLA made them.

    A key is an op of the fusion, or the source of a parameter. `parameters` has the sources in the order of the parameters.
    Names are kept as numbers, since most are replaced before anyone reads them: a chain of 1,000 ops takes a million.
    """

    __slots__ = ("_names", "_unique", "parameters")

    def __init__(self, unique: NameUniquer) -> None:
        """Make an empty fusion, which takes its names from the module's."""
        self._unique = unique
        self._names: dict[K, UniqueName] = {}
        self.parameters: list[K] = []

    def __contains__(self, key: K) -> bool:
        return key in self._names

    def __getitem__(self, key: K) -> str:
        return self._unique.text(self._names[key])

    def items(self) -> Iterator[tuple[K, str]]:
        """Return keys and names in the order in which XLA made the instructions."""
        text = self._unique.text
        return ((key, text(name)) for key, name in self._names.items())

    def read(self, names: dict[K, str], parameters: Iterable[K]) -> None:
        """Set the names of a fusion that is in the module: they are taken already."""
        self._names = {key: self._unique.parsed(name) for key, name in names.items()}
        self.parameters = list(parameters)

    def append(self, op: K, name: str, operands: Iterable[K], parameter: K | None = None) -> None:
        """Add a copy of an instruction called `name`, in place of the parameter for it if there is one.

        Operands that the fusion does not have yet become parameters.
        """
        made = self._unique.take(name)
        if parameter is None:
            self._names[op] = made
        else:
            self._replace(parameter, op, made)
        for operand in operands:
            if operand not in self._names:
                self._add_parameter(operand)

    def _replace(self, parameter: K, op: K, name: UniqueName) -> None:
        """Put an op in place of a parameter; later parameters are made again."""
        place = self.parameters.index(parameter)
        del self._names[parameter], self.parameters[place]
        self._names[op] = name
        self._make_again(place)

    def _make_again(self, first: int) -> None:
        for number in range(first, len(self.parameters)):
            later = self.parameters[number]
            del self._names[later]
            self._names[later] = self._parameter_name(number)

    def _add_parameter(self, source: K) -> None:
        self._names[source] = self._parameter_name(len(self.parameters))
        self.parameters.append(source)

    def _parameter_name(self, number: int) -> UniqueName:
        root = self._unique.root(f"param_{number}")
        return root, root.take(-1)

    def replace_parameter(self, old: K, new: K) -> None:
        """Let `new` be the source of the parameter for `old`."""
        self._names = {new if key is old else key: name for key, name in self._names.items()}
        self.parameters[self.parameters.index(old)] = new

    def remove_parameter(self, source: K) -> None:
        """Remove a parameter that no instruction uses; later ones are made again."""
        place = self.parameters.index(source)
        del self._names[source], self.parameters[place]
        self._make_again(place)

    def merge(self, source: K, other: FusedNames[K], ops: Sequence[tuple[K, K, Iterable[K]]]) -> None:
        """Add copies of the ops of another fusion in place of the parameter `source`.

        `ops` has (op, its copy here, operands) with users before operands. XLA copies the whole fusion before it copies the ops.
        """
        names = other._names
        for root, _ in names.values():
            root.next_number()
        self._unique.take("constant")  # XLA gives the copy another root.
        self.replace_parameter(source, ops[0][0])
        mine, parameters = self._names, self.parameters
        for op, copy, operands in ops:
            root = names[op][0]
            number = root.next_number()
            if parameters[-1] is op:
                del mine[op], parameters[-1]
                mine[copy] = root, number
            else:
                self._replace(op, copy, (root, number))
            for operand in operands:
                if operand not in mine:
                    self._add_parameter(operand)

    def rename(self, op: K, name: str) -> None:
        """Make an instruction again: it gets another name, and is the last one."""
        made = self._unique.take(name)
        self._names.pop(op, None)
        self._names[op] = made


_CLONE = ".clone"


def clone_name(name: str, suffix: str = _CLONE) -> str:
    """Return the name of a copy: `NAME.clone`, of `NAME.clone` `NAME.clone2`, of `NAME.clone2` `NAME.clone3`."""
    head, found, tail = name.rpartition(suffix)
    if not found:
        return name + suffix
    if not tail:
        return f"{name}2"
    return f"{head}{suffix}{int(tail) + 1}" if tail.isdecimal() else name + suffix
