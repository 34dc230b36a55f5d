"""Edit values that may be tuples: decompose one, and rebuild it with copies of some leaves."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import TRANSFER

_Index = tuple[int, ...]


class Rebuilt(Struct, frozen=True):
    """A rebuilt value, and the copy instruction by leaf."""

    value: HloInstruction
    copies: dict[_Index, HloInstruction] = field(default_factory=dict[_Index, HloInstruction])


def copy_leaves(
    computation: HloComputation, value: HloInstruction, leaves: Collection[_Index], before: HloInstruction | None = None
) -> Rebuilt:
    """Return `value` rebuilt with copies of the given leaves (shape indices).

    New instructions are added before `before`, or at the end. `value` and its users are unchanged. Raises Unsupported for
    a leaf inside a send or recv, whose value only the matching done may use.
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
            raise Unsupported(f"the value of %{part.name} needs a copy before its transfer is done", part.where)
        parts = [rebuild(element, (*index, n)) for n, element in enumerate(elements(computation, part, before))]
        return computation.add(HloInstruction("tuple", "tuple", part.shape, parts, where=part.where), before=before)

    return Rebuilt(rebuild(value, ()), copies)


def elements(computation: HloComputation, value: HloInstruction, before: HloInstruction | None = None) -> list[HloInstruction]:
    """Return the elements of a tuple: the operands of a `tuple`, else new get-tuple-elements before `before`, or at the end."""
    if value.opcode == "tuple":
        return list(value.operands)
    return [
        computation.add(
            HloInstruction("get-tuple-element", "get-tuple-element", shape, [value], {"index": n}, where=value.where),
            before=before,
        )
        for n, shape in enumerate(value.shape.tuple_shapes)
    ]
