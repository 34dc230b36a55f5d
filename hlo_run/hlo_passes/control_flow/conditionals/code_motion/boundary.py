"""The moves of conditional-code-motion: an instruction outside of a conditional, or equal instructions, one in each branch."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE

# In the branches; among the users of the conditional; among its operands.
Side: TypeAlias = Literal["inside", "user", "operand"]

_MOVES = opcode_set("""all-reduce reduce-scatter reduce constant reshape broadcast slice pad dynamic-slice
    dynamic-update-slice gather""") | (
    ELEMENTWISE
    - opcode_set("""
    map""")
)


class Boundary(Struct, frozen=True):
    """An instruction per branch with place `inside`, else a single instruction of the conditional's computation."""

    values: tuple[HloInstruction, ...]
    place: Side

    @property
    def first(self) -> HloInstruction:
        """The instruction, or the first branch's instruction."""
        return self.values[0]

    @property
    def goes_by_operands(self) -> bool:
        """True if the search goes on with operands, False if it goes on with users."""
        return self.place != "user"

    @property
    def next_count(self) -> int:
        """The number of operands or users with which the search goes on."""
        return len(self.first.operands) if self.goes_by_operands else len(self.first.users)

    def next(self, number: int) -> Boundary:
        """Return the operands, or the users, of that number."""
        if self.goes_by_operands:
            return Boundary(tuple(value.operands[number] for value in self.values), self.place)
        return Boundary(tuple(value.users[number] for value in self.values), self.place)


def moves_at_all(value: HloInstruction) -> bool:
    """True if an instruction of this opcode, with a first operand of that opcode, is worth moving at all."""
    operand = value.operands[0].opcode if value.operands else ""
    match value.opcode:
        case "convert":
            # After a product, a convert is a part of the product's kernel.
            return operand in ("all-reduce", "reshape", "get-tuple-element")
        case "get-tuple-element" | "tuple":
            return operand != "parameter"
        case opcode:
            return opcode in _MOVES


def reuse(value: HloInstruction, user: HloInstruction) -> int:
    """Return how much a value and its user gain by being on the same side of the border, the more users the less."""
    if user.opcode == "get-tuple-element" or value.opcode in ("parameter", "constant", "get-tuple-element"):
        return 0
    if user.opcode == "convert" and value.opcode in ("convolution", "dot"):
        return 0
    if value.opcode == "conditional":
        return 10
    return 10 // without_constants(value.users) // without_constants(user.operands)


def without_constants(values: list[HloInstruction] | tuple[HloInstruction, ...]) -> int:
    """Return the number of different instructions other than constants."""
    return len({value for value in values if value.opcode != "constant"})
