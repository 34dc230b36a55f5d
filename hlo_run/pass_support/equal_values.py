"""Finds instructions of one computation that compute the same value, for the passes that merge them."""

from __future__ import annotations

from collections.abc import Hashable

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.graph import HloInstruction


class EqualValues:
    """Numbers instructions, seen in post-order. Keys have the numbers of operands, not their keys, so they stay short.

    As in XLA, equal iotas stay, but have one number: instructions that read equal iotas are equal. Instructions with different
    shardings are not equal; one without a sharding may equal one with it.
    """

    def __init__(self, keys: ValueKeys) -> None:
        self._keys = keys
        self._numbers: dict[HloInstruction, int] = {}
        self._iotas: dict[Hashable, int] = {}
        self._first: dict[Hashable, list[HloInstruction]] = {}

    def number(self, instruction: HloInstruction) -> None:
        """Give an instruction its number, after its operands have theirs."""
        number = len(self._numbers)
        if instruction.opcode == "iota":
            number = self._iotas.setdefault(self._keys.of(instruction, (), without="sharding"), number)
        self._numbers[instruction] = number

    def first_like(self, instruction: HloInstruction) -> HloInstruction | None:
        """Return the first instruction that equals this one and was asked for before, or None; this one is then a first one."""
        key = self._keys.of(instruction, tuple([self._numbers[o] for o in instruction.operands]), without="sharding")
        alike = self._first.setdefault(key, [])
        for other in alike:
            if _may_share_sharding(instruction, other):
                return other
        alike.append(instruction)
        return None

    def read_first_iotas(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Let operands that are equal iotas be the first of them, and return the others."""
        others: list[HloInstruction] = []
        operands = instruction.operands
        if len(operands) < 2:
            return others
        first: dict[int, HloInstruction] = {}
        for operand in operands if len(operands) == 2 else dict.fromkeys(operands):
            if operand.opcode == "iota" and first.setdefault(self._numbers[operand], operand) is not operand:
                instruction.replace_operand(operand, first[self._numbers[operand]])
                others.append(operand)
        return others


def _may_share_sharding(one: HloInstruction, other: HloInstruction) -> bool:
    shardings = [None if value.opcode == "constant" else value.sharding for value in (one, other)]
    return None in shardings or shardings[0] == shardings[1]
