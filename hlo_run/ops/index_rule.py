"""Helpers of index maps: the type of a rule, and maps that many opcodes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.indexing import IndexingMap, symbol

# Called with an instruction and an operand number; None is the undefined map.
IndexRule: TypeAlias = "Callable[[HloInstruction, int], IndexingMap | None]"


def array_of(shape: Shape) -> Shape:
    """Return the array shape whose indices a map uses; for a tuple, its first element (all have the same dimensions)."""
    return array_of(shape.tuple_shapes[0]) if shape.is_tuple and shape.tuple_shapes else shape


def output_dims(instruction: HloInstruction) -> tuple[int, ...]:
    """Return the output's dimension sizes; these are the dimensions of its operand maps."""
    return array_of(instruction.shape).dims


def operand_dims(instruction: HloInstruction, number: int) -> tuple[int, ...]:
    """Return the dimension sizes of operand `number`."""
    return array_of(instruction.operands[number].shape).dims


def identity(instruction: HloInstruction) -> IndexingMap:
    """Return (d0, ..) -> (d0, ..) over the output."""
    return IndexingMap.identity(output_dims(instruction))


def to_scalar(instruction: HloInstruction) -> IndexingMap:
    """Return (d0, ..) -> () over the output: the map to a scalar operand."""
    return IndexingMap.from_sizes((), output_dims(instruction))


def from_scalar(instruction: HloInstruction) -> IndexingMap:
    """Return ()[s0, ..] -> (s0, ..): a scalar operand feeds the whole output."""
    sizes = output_dims(instruction)
    return IndexingMap.from_sizes(map(symbol, range(len(sizes))), (), sizes)
