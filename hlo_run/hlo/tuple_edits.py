"""Copy values that may be tuples: read every element, and make the tuple again with copies of some leaves."""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct, field

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction

_Index = tuple[int, ...]


class DeepCopy(Struct, frozen=True):
    """A rebuilt value, and the copy instruction by leaf."""

    value: HloInstruction
    copies: dict[_Index, HloInstruction] = field(default_factory=dict[_Index, HloInstruction])


def deep_copy(computation: HloComputation, value: HloInstruction, leaves: Container[_Index] | None = None) -> DeepCopy:
    """Return `value` rebuilt with copies of the given leaves (shape indices), by default of all. Tokens are not copied.

    New instructions are added at the end. `value` keeps its users. Mirrors XLA's `DeepCopyInstruction`.
    """
    copies: dict[_Index, HloInstruction] = {}

    def rebuild(part: HloInstruction, index: _Index) -> HloInstruction:
        shape = part.shape
        if shape.is_tuple:
            parts: list[HloInstruction] = []
            for number, inner in enumerate(shape.tuple_shapes):
                name = "get-tuple-element"
                element = InstructionMaker(where=part.where).add(name, inner, [part], index=number)
                parts.append(rebuild(computation.add(element), (*index, number)))
            return InstructionMaker(computation, part.where).add("tuple", shape, parts)
        if not shape.is_array or (leaves is not None and index not in leaves):
            return part
        copies[index] = InstructionMaker(computation, part.where).add("copy", shape, [part])
        return copies[index]

    return DeepCopy(rebuild(value, ()), copies)
