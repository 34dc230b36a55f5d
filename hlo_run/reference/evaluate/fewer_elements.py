"""Judges a large elementwise kernel by blocks of its elements, which are evaluated as an instruction on fewer of them."""

from __future__ import annotations

import random

import numpy as np

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.values import Array, Value, as_array

_BLOCKS, _BLOCK_ELEMENTS = 32, 512
SAMPLED_ELEMENTS = _BLOCKS * _BLOCK_ELEMENTS
_PASSED: frozenset[Opcode] = frozenset(("parameter", "fusion", "tuple"))


def on_fewer_elements(instruction: HloInstruction) -> HloModule | None:
    """Return a module of the instruction that has `SAMPLED_ELEMENTS` elements in place of each array of the result's dimensions.

    None if an element of its result depends on other elements.
    """
    leaves = [leaf for _, leaf in instruction.shape.leaves()]
    dims = leaves[0].dims
    if any(not leaf.is_array or leaf.dims != dims or any(leaf.dynamic_dims) for leaf in leaves):
        return None
    module = isolate_instruction(instruction)
    for inner in [inner for computation in module.computations for inner in computation.instructions]:
        is_scalar = inner.shape.is_array and inner.shape.rank == 0
        is_spread = inner.opcode == "broadcast" and inner.operands[0].shape.rank == 0
        if not (inner.opcode in ELEMENTWISE | _PASSED or is_spread or (inner.opcode == "constant" and is_scalar)):
            return None
        found = [leaf for _, leaf in inner.shape.leaves()]
        if not all(leaf.is_array and leaf.dims in (dims, ()) and not any(leaf.dynamic_dims) for leaf in found):
            return None
    for computation in module.computations:
        for inner in computation.instructions:
            inner.shape = _smaller(inner.shape)
    return module


def _smaller(shape: Shape) -> Shape:
    if shape.is_tuple:
        return Shape.make_tuple(tuple(map(_smaller, shape.tuple_shapes)))
    return Shape.array(shape.element_type, (SAMPLED_ELEMENTS,)) if shape.rank else shape


def chosen_elements(count: int, seed: int) -> Array:
    """Return the flat places of the blocks among `count` elements: the first, the last, and some between."""
    generator = random.Random(seed)
    last = count - _BLOCK_ELEMENTS
    starts = [0, last, *(generator.randrange(last + 1) for _ in range(_BLOCKS - 2))]
    return (np.array(starts)[:, None] + np.arange(_BLOCK_ELEMENTS)).reshape(-1)


def of_elements(value: Value, places: Array) -> Value:
    """Return the elements of each array of a value at flat places, in row-major order; scalars as they are."""
    if isinstance(value, tuple):
        return tuple(of_elements(part, places) for part in value)
    array = as_array(value)
    return array[np.unravel_index(places, array.shape)] if array.ndim else array
