"""Edits of values that may be tuples: take one apart, and make it anew with copies at some places."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import TRANSFER

_Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A value made anew, and the copy at each leaf that was asked for."""

    value: HloInstruction
    copies: dict[_Index, HloInstruction] = field(default_factory=dict[_Index, HloInstruction])


def copy_leaves(
    computation: HloComputation, value: HloInstruction, leaves: Collection[_Index], before: HloInstruction | None = None
) -> Rebuilt:
    """Return `value` with copies at the leaves (shape indices) given; what is new stands before an instruction or at the end.

    Tuples on the way are rebuilt of their elements; `value` itself stays as it is, and so do its users. Raises Unsupported for
    what a transfer under way holds: nothing but its end may take it.
    """
    prefixes = {leaf[:length] for leaf in leaves for length in range(len(leaf) + 1)}
    copies: dict[_Index, HloInstruction] = {}

    def rebuild(part: HloInstruction, index: _Index) -> HloInstruction:
        if index not in prefixes:
            return part
        if not part.shape.is_tuple:
            copies[index] = HloInstruction("copy", "copy", part.shape, [part], where=part.where)
            return computation.add(copies[index], before=before)
        if part.opcode in TRANSFER:
            raise Unsupported(f"what %{part.name} transfers needs a copy while it is under way", part.where)
        parts = [rebuild(element, (*index, n)) for n, element in enumerate(elements(computation, part, before))]
        return computation.add(HloInstruction("tuple", "tuple", part.shape, parts, where=part.where), before=before)

    return Rebuilt(rebuild(value, ()), copies)


def elements(computation: HloComputation, value: HloInstruction, before: HloInstruction | None = None) -> list[HloInstruction]:
    """Return the elements of a tuple: operands of a `tuple`, else get-tuple-element of it, new ones before an instruction."""
    if value.opcode == "tuple":
        return list(value.operands)
    return [
        computation.add(
            HloInstruction("get-tuple-element", "get-tuple-element", shape, [value], {"index": n}, where=value.where),
            before=before,
        )
        for n, shape in enumerate(value.shape.tuple_shapes)
    ]
