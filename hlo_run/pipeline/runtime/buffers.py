"""Give every array of the executed computations a place in device memory.

Each buffer of the alias analysis has an allocation of its own: parameters, constants, results and temporaries; what is
changed in place stays where it was, and the state of a loop is one buffer. Tuples have no table.
Sharing memory between values whose lives do not overlap is XLA's heap packing, which is not here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hlo_run.analysis.alias_analysis import HloBuffer, analyze_aliases
from hlo_run.analysis.dataflow import analyze_dataflow
from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.artifact import ArraySpec, ArrayTree, BufferAllocation, BufferSlice, ConstantData
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.shape import Shape

# Entry parameters come from the caller, who only promises this much; everything else is allocated by us.
PARAMETER_ALIGNMENT_BYTES = 16
ALLOCATION_ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class BufferAssignment:
    """Where every value lives: allocations in order, and the slice of each (instruction, shape index) that is no tuple."""

    allocations: tuple[BufferAllocation, ...]
    slices: dict[tuple[HloInstruction, ShapeIndex], BufferSlice]

    def slice(self, instruction: HloInstruction, index: ShapeIndex = ()) -> BufferSlice:
        """Return the slice of an leaf of an instruction of any executed computation."""
        return self.slices[instruction, index]

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
        if not shape.is_array:
            return ()  # a token
        place = self.slice(instruction, index)
        return ArraySpec(shape.element_type, shape.dims, shape.minor_to_major, place)


def assign_buffers(module: HloModule) -> BufferAssignment:
    """Return the assignment of the values of all computations that run as code of their own."""
    analysis = analyze_aliases(analyze_dataflow(module), with_module_aliases=False)
    dataflow = analysis.dataflow
    outputs = analysis.live_out()
    allocations: list[BufferAllocation] = []
    places: dict[HloBuffer, BufferSlice] = {}
    for value in dataflow.values:
        buffer = analysis.buffer_of[value]
        if value.shape.is_tuple or buffer in places:
            continue
        place = places[buffer] = BufferSlice(len(allocations), 0, value.shape.size_bytes)
        allocations.append(_allocation(place, buffer, module.entry, buffer in outputs))
    slices = {
        (instruction, index): places[analysis.buffer_of[value]]
        for instruction, tree in dataflow.trees.items()
        for index, value in tree.walk()
        if not value.shape.is_tuple
    }
    return BufferAssignment(tuple(allocations), slices)


def _allocation(place: BufferSlice, buffer: HloBuffer, entry: HloComputation, is_output: bool) -> BufferAllocation:
    first = buffer.values[0]
    instruction = first.instruction
    is_parameter = instruction.opcode == "parameter" and instruction.parent is entry
    return BufferAllocation(
        index=place.allocation,
        size_bytes=place.size_bytes,
        parameter_number=instruction.attrs["parameter_number"] if is_parameter else None,
        constant=_constant(instruction, first.index, first.shape) if instruction.opcode == "constant" else None,
        is_output=is_output,
    )


def _constant(instruction: HloInstruction, index: ShapeIndex, shape: Shape) -> ConstantData:
    literal = instruction.attrs["literal"]
    for number in index:
        literal = literal[number]
    items = np.ascontiguousarray(literal, dtype=shape.dtype.numpy).tobytes()
    return ConstantData(shape.element_type, shape.dims, shape.minor_to_major, items)
