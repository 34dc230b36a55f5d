"""Makes keys of instructions. Equal keys mean equal computations of equal operands."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import COMMUTATIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.records.native import NativeRecord

# Attributes without influence on the value.
_SILENT = frozenset(("metadata", "origin", "statistics"))


class ValueKeys:
    """Makes keys. Caches the keys of computations, so computations must not be edited while the keys are used."""

    def __init__(self, sees_layouts: bool) -> None:
        self._sees_layouts = sees_layouts
        self._computations: dict[HloComputation, Hashable] = {}
        self._shapes: dict[Shape, Shape] = {}

    def of(self, instruction: HloInstruction, operands: tuple[Hashable, ...], without: str = "") -> Hashable:
        """Return the key of an instruction whose operands have the given keys; the attribute `without` does not count."""
        if instruction.opcode in COMMUTATIVE and len(operands) == 2:
            operands = tuple(sorted(operands, key=hash))
        attributes = _frozen_attributes(instruction)
        if without and without in instruction.attrs.stored:
            attributes = tuple([pair for pair in attributes if pair[0] != without])
        called = instruction.called
        calls = tuple([(name, *map(self.of_computation, group)) for name, group in called.items()]) if called else ()
        return instruction.opcode, self._shape(instruction.shape), operands, attributes, calls

    def _shape(self, shape: Shape) -> Shape:
        if self._sees_layouts:
            return shape
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = shape.map_leaves(_without_order)
        return known

    def of_computation(self, computation: HloComputation) -> Hashable:
        """Return the key of a computation: its thread and its instructions in post-order, with operands by number."""
        known = self._computations.get(computation)
        if known is None:
            numbers: dict[HloInstruction, int] = {}
            lines: list[Hashable] = []
            for instruction in computation.post_order():
                numbers[instruction] = len(numbers)
                operands = tuple(numbers[operand] for operand in instruction.operands)
                lines.append((self.of(instruction, operands), tuple(numbers[p] for p in instruction.control_predecessors)))
            known = self._computations[computation] = (tuple(lines), numbers[computation.root], computation.execution_thread)
        return known


def _frozen_attributes(instruction: HloInstruction) -> tuple[tuple[str, Hashable], ...]:
    """Return the attributes that influence the value, by name. They are kept until one is written, but not those of constants."""
    attributes = instruction.attrs
    known = attributes.frozen
    if known is None:
        names = [name for name in attributes.stored if name not in _SILENT]
        if len(names) > 1:
            names.sort()
        known = tuple([(name, freeze(attributes.stored[name])) for name in names])
        if instruction.opcode != "constant":
            attributes.frozen = known
    return known


def _without_order(leaf: Shape) -> Shape:
    if leaf.layout is None or not leaf.dims:
        return leaf
    return replace(leaf, layout=replace(leaf.layout, minor_to_major=tuple(reversed(range(leaf.rank)))))


def freeze(value: Any) -> Hashable:
    """Return an attribute's value in a form that can be compared and hashed; arrays as their bytes."""
    # No `match`: where numpy is not installed, mypyc cannot compile a pattern of its classes.
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, np.ndarray):
        array: Any = value  # pyright: ignore[reportUnknownVariableType] -- the type of its elements is none of ours
        return array.dtype, tuple(array.shape), bytes(array.tobytes())
    if isinstance(value, (tuple, list)):
        items: Any = value  # pyright: ignore[reportUnknownVariableType]
        return tuple(freeze(item) for item in items)
    if isinstance(value, dict):
        pairs: Any = value  # pyright: ignore[reportUnknownVariableType]
        return tuple((freeze(key), freeze(item)) for key, item in pairs.items())
    if isinstance(value, (Struct, NativeRecord)):
        record: Any = value
        return type(record).__name__, *(freeze(getattr(record, name)) for name in record.__struct_fields__)
    return value if isinstance(value, Hashable) else repr(value)
