"""Edits of values that may be tuples: take one apart, and make it anew with copies at some places."""

from __future__ import annotations

from collections.abc import Collection

from hlo_run.hlo.graph import HloComputation, HloInstruction

_Index = tuple[int, ...]


def copy_leaves(
    computation: HloComputation, value: HloInstruction, leaves: Collection[_Index], before: HloInstruction | None = None
) -> HloInstruction:
    """Return `value` with copies at the leaves (shape indices) given; what is new stands before an instruction or at the end.

    Tuples on the way are rebuilt of their elements; `value` itself stays as it is, and so do its users.
    """
    prefixes = {leaf[:length] for leaf in leaves for length in range(len(leaf) + 1)}
    return _rebuild(computation, value, (), prefixes, before)


def _rebuild(
    computation: HloComputation, value: HloInstruction, index: _Index, prefixes: set[_Index], before: HloInstruction | None
) -> HloInstruction:
    if index not in prefixes:
        return value
    if not value.shape.is_tuple:
        return computation.add(HloInstruction("copy", "copy", value.shape, [value], where=value.where), before=before)
    parts = [
        _rebuild(computation, part, (*index, n), prefixes, before) for n, part in enumerate(elements(computation, value, before))
    ]
    return computation.add(HloInstruction("tuple", "tuple", value.shape, parts, where=value.where), before=before)


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
