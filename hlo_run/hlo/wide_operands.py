"""Operand lists of instructions with many operands, in which a replacement costs the positions of one operand only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class WideOperands(Generic[T]):
    """The operands of an instruction with many operands, and the positions of each."""

    __slots__ = ("_places", "operands")

    def __init__(self, operands: Iterable[T]) -> None:
        self.operands = list(operands)
        self._places: dict[T, list[int]] = {}
        for place, operand in enumerate(self.operands):
            self._places.setdefault(operand, []).append(place)

    def replace(self, old: T, new: T) -> bool:
        """Replace `old` by `new` at all its positions; return whether `new` was an operand before."""
        places = self._places.pop(old)
        is_known = new in self._places
        for place in places:
            self.operands[place] = new
        self._places.setdefault(new, []).extend(places)
        return is_known
