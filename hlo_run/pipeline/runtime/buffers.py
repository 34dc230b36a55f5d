"""Give every array of the entry computation a place in device memory.

Each defined value has an allocation of its own: parameters, constants, results and temporaries. Tuples have no table;
bitcasts, get-tuple-element and the like name their operand's slice. Sharing memory between values whose lives do not
overlap is XLA's heap packing, which is not here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hlo_run.analysis.defining_value import FORWARDING, ShapeIndex, defining_value
from hlo_run.artifact import ArraySpec, ArrayTree, BufferAllocation, BufferSlice, ConstantData
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.shape import Shape

# Entry parameters come from the caller, who only promises this much; everything else is allocated by us.
PARAMETER_ALIGNMENT_BYTES = 16
ALLOCATION_ALIGNMENT_BYTES = 256
_NO_VALUE = frozenset(("tuple", "get-tuple-element", *FORWARDING))


@dataclass(frozen=True)
class BufferAssignment:
    """Where every value lives: allocations in order, and the slice of each (defining instruction, shape index)."""

    allocations: tuple[BufferAllocation, ...]
    slices: dict[tuple[HloInstruction, ShapeIndex], BufferSlice]

    def slice(self, instruction: HloInstruction, index: ShapeIndex = ()) -> BufferSlice:
        """Return the slice of an array-shaped leaf, looking through what only forwards it."""
        return self.slices[defining_value(instruction, index)]

    def alignment_bytes(self, place: BufferSlice) -> int:
        """Return what a kernel may assume of the address of a slice at offset 0."""
        is_parameter = self.allocations[place.allocation].parameter_number is not None
        return PARAMETER_ALIGNMENT_BYTES if is_parameter else ALLOCATION_ALIGNMENT_BYTES

    def array_tree(self, instruction: HloInstruction) -> ArrayTree:
        """Return the specs of all leaves of a value, nested as its shape is."""
        return self._tree(instruction, instruction.shape, ())

    def _tree(self, instruction: HloInstruction, shape: Shape, index: ShapeIndex) -> ArrayTree:
        if shape.is_tuple:
            return tuple(self._tree(instruction, part, (*index, n)) for n, part in enumerate(shape.tuple_shapes))
        place = self.slice(instruction, index)
        return ArraySpec(shape.element_type, shape.dims, shape.minor_to_major, place)


def assign_buffers(entry: HloComputation, order: list[HloInstruction]) -> BufferAssignment:
    """Return the assignment of the values that `order`, the entry's schedule, defines."""
    outputs = {defining_value(entry.root, index) for index, _ in entry.root.shape.leaves()}
    allocations: list[BufferAllocation] = []
    slices: dict[tuple[HloInstruction, ShapeIndex], BufferSlice] = {}
    for instruction in order:
        if instruction.opcode in _NO_VALUE:
            continue
        for index, shape in instruction.shape.leaves():
            value = (instruction, index)
            place = BufferSlice(len(allocations), 0, shape.size_bytes)
            slices[value] = place
            allocations.append(_allocation(place, instruction, index, shape, value in outputs))
    return BufferAssignment(tuple(allocations), slices)


def _allocation(
    place: BufferSlice, instruction: HloInstruction, index: ShapeIndex, shape: Shape, is_output: bool
) -> BufferAllocation:
    return BufferAllocation(
        index=place.allocation,
        size_bytes=place.size_bytes,
        parameter_number=instruction.attrs["parameter_number"] if instruction.opcode == "parameter" else None,
        constant=_constant(instruction, index, shape) if instruction.opcode == "constant" else None,
        is_output=is_output,
    )


def _constant(instruction: HloInstruction, index: ShapeIndex, shape: Shape) -> ConstantData:
    literal = instruction.attrs["literal"]
    for number in index:
        literal = literal[number]
    items = np.ascontiguousarray(literal, dtype=shape.dtype.numpy).tobytes()
    return ConstantData(shape.element_type, shape.dims, shape.minor_to_major, items)
