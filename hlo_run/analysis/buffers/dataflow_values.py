"""Defines the records of dataflow analysis: values, trees of values, uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape, ShapeIndex

POINTER_BYTES = 8


class HloUse(NamedTuple):
    """A use of a value: the instruction that reads it, the operand's number, and the shape index in the operand."""

    instruction: HloInstruction
    operand_number: int
    operand_index: ShapeIndex


class HloPosition(NamedTuple):
    """A place of a value: an instruction and a shape index."""

    instruction: HloInstruction
    shape_index: ShapeIndex


class HloValue(Struct, eq=False):
    """One array, tuple table or token, defined by `instruction` at `index`. A phi selects one of several values by control flow.

    `positions` begin with the defining one. `id` counts as XLA's does. `buffer_bytes` caches the result of `buffer_size_bytes`.
    """

    id: int
    instruction: HloInstruction
    index: ShapeIndex
    is_phi: bool = False
    positions: list[HloPosition] = field(default_factory=list[HloPosition])
    uses: list[HloUse] = field(default_factory=list[HloUse])
    buffer_bytes: int = -1

    @property
    def shape(self) -> Shape:
        """The shape of the value."""
        return subshape(self.instruction.shape, self.index)

    @property
    def color(self) -> int:
        """The memory space of the value. Values of different spaces never share memory."""
        layout = self.shape.layout
        return layout.memory_space if layout is not None and layout.extra else 0

    def __repr__(self) -> str:
        return f"<{self.id} {self.instruction.name}{{{','.join(map(str, self.index))}}}{' (phi)' if self.is_phi else ''}>"


class ValueTree(Struct, frozen=True):
    """The values of a shape: one at the top, and a tree for each element of a tuple. Trees are shared and must not change."""

    value: HloValue
    parts: tuple[ValueTree, ...] = ()

    def at(self, index: ShapeIndex) -> ValueTree:
        """Return the tree at a shape index."""
        tree = self
        for number in index:
            tree = tree.parts[number]
        return tree

    @property
    def values(self) -> list[HloValue]:
        """All values of the tree, a tuple's value before the values of its elements."""
        return [value for _, value in self.walk()] if self.parts else [self.value]

    def walk(self, index: ShapeIndex = ()) -> Iterator[tuple[ShapeIndex, HloValue]]:
        """Yield (shape index, value), a tuple before its elements."""
        waiting: list[tuple[ShapeIndex, ValueTree]] = [(index, self)]
        while waiting:
            index, tree = waiting.pop()
            yield index, tree.value
            waiting += [((*index, number), tree.parts[number]) for number in reversed(range(len(tree.parts)))]


def subshape(shape: Shape, index: ShapeIndex) -> Shape:
    """Return the part of a shape at an index."""
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape


def buffer_size_bytes(value: HloValue) -> int:
    """Return the bytes of a value's buffer. The buffer of a tuple is a table of pointers."""
    if value.buffer_bytes < 0:
        value.buffer_bytes = shape_bytes(value.shape)
    return value.buffer_bytes


def shape_bytes(shape: Shape) -> int:
    """Return the bytes of the buffer of a value of this shape."""
    return POINTER_BYTES * len(shape.tuple_shapes) if shape.is_tuple else shape.size_bytes
