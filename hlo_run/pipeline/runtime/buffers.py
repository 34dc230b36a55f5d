"""Give every array of the entry computation a place in device memory.

Each defined value has an allocation of its own: parameters, constants, results and temporaries; but what a fusion changes
in place stays where it was. Tuples have no table; bitcasts, get-tuple-element and the like name their operand's slice.
Sharing memory between values whose lives do not overlap is XLA's heap packing, which is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hlo_run.analysis.defining_value import FORWARDING, ShapeIndex, defining_value
from hlo_run.analysis.in_place import in_place_operands
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
        changed = in_place_operands(instruction) if instruction.opcode == "fusion" else {}
        for number, (index, shape) in enumerate(instruction.shape.leaves()):
            value = (instruction, index)
            if number in changed:
                slices[value] = slices[defining_value(instruction.operands[changed[number]])]
                continue
            place = BufferSlice(len(allocations), 0, shape.size_bytes)
            slices[value] = place
            allocations.append(_allocation(place, instruction, index, shape))
    results = {slices[value].allocation for value in outputs}
    marked = (replace(allocation, is_output=allocation.index in results) for allocation in allocations)
    return BufferAssignment(tuple(marked), slices)


def _allocation(place: BufferSlice, instruction: HloInstruction, index: ShapeIndex, shape: Shape) -> BufferAllocation:
    return BufferAllocation(
        index=place.allocation,
        size_bytes=place.size_bytes,
        parameter_number=instruction.attrs["parameter_number"] if instruction.opcode == "parameter" else None,
        constant=_constant(instruction, index, shape) if instruction.opcode == "constant" else None,
        is_output=False,
    )


def _constant(instruction: HloInstruction, index: ShapeIndex, shape: Shape) -> ConstantData:
    literal = instruction.attrs["literal"]
    for number in index:
        literal = literal[number]
    items = np.ascontiguousarray(literal, dtype=shape.dtype.numpy).tobytes()
    return ConstantData(shape.element_type, shape.dims, shape.minor_to_major, items)
