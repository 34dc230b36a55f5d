"""Assigns a slice of device memory to every array of the executed computations.

Parameters and constants have their own allocations. A result shares its allocation with values of its size or less that are
live at other times. Temporaries are packed into one block. An in-place update keeps its buffer, and the state of a loop is
one buffer per leaf.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue, buffer_size_bytes
from hlo_run.analysis.buffers.live_range import LiveRanges, flatten_schedule, live_ranges
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.artifact import (
    ArraySpec,
    ArrayTree,
    BufferAllocation,
    BufferSlice,
    ConstantData,
    NamedValue,
    Thunk,
    every_thunk,
)
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape, ShapeIndex
from hlo_run.hlo.verify.config import aliases
from hlo_run.runtime.buffer_assigner import Blocks, plan_allocations
from hlo_run.runtime.planned_allocation import PlannedAllocation

# The caller allocates entry parameters and guarantees this alignment. The backend allocates all other buffers.
PARAMETER_ALIGNMENT_BYTES = 16
ALLOCATION_ALIGNMENT_BYTES = 256
_TEMP_SPACE = 2


class BufferAssignment(Struct, frozen=True):
    """The memory of every value: allocations in order, and the slice of each (instruction, shape index).

    `planned` holds the values of each allocation, `live` the live ranges of values. If it is not `is_timed`, the live ranges did
    not decide, since instructions may run at the same time.
    """

    allocations: tuple[BufferAllocation, ...]
    slices: dict[tuple[HloInstruction, ShapeIndex], BufferSlice]
    planned: list[PlannedAllocation]
    live: LiveRanges
    is_timed: bool = True

    def slice(self, instruction: HloInstruction, index: ShapeIndex = ()) -> BufferSlice:
        """Return the slice of the value at `index` in an instruction of any executed computation."""
        return self.slices[instruction, index]

    def alignment_bytes(self, place: BufferSlice) -> int:
        """Return the alignment of the slice's allocation, which a kernel may assume. The offset is not considered."""
        is_parameter = self.allocations[place.allocation].parameter_number is not None
        return PARAMETER_ALIGNMENT_BYTES if is_parameter else ALLOCATION_ALIGNMENT_BYTES

    def array_tree(self, instruction: HloInstruction) -> ArrayTree:
        """Return the specs of all leaves of a value, nested like its shape. Tokens are empty tuples."""
        return self._tree(instruction, instruction.shape, ())

    def _tree(self, instruction: HloInstruction, shape: Shape, index: ShapeIndex) -> ArrayTree:
        if shape.is_tuple:
            return tuple(self._tree(instruction, part, (*index, n)) for n, part in enumerate(shape.tuple_shapes))
        if not shape.is_array:
            return ()  # a token
        place = self.slice(instruction, index)
        return ArraySpec(shape.element_type, shape.dims, shape.minor_to_major, place, shape.dynamic_dims)


def assign_buffers(
    module: HloModule, separates_temps: bool = False, most_bytes: int = -1, ordering: str = "schedule"
) -> BufferAssignment:
    """Assign buffers to the values of all computations that run as thunk sequences. The module must have a schedule.

    With `separates_temps` the temporaries are in a memory space of their own. Their blocks have at most `most_bytes`, unless one
    value is larger (-1: any size). `ordering`: of thunks, as in
    `CompileOptions.thunk_ordering`.
    """
    schedule = module.schedule
    assert schedule is not None, "buffers are assigned to scheduled modules"
    analysis = analyze_aliases(analyze_dataflow(module))
    live = live_ranges(analysis, flatten_schedule(module.entry, lambda computation: schedule[computation]))
    planned = plan_allocations(analysis, live, Blocks(_TEMP_SPACE if separates_temps else 0, most_bytes, ordering))
    kinds = {(number, index): must for _, number, index, must in aliases(module)}
    allocations = tuple(_allocation(number, allocation, kinds) for number, allocation in enumerate(planned))
    places = {
        value: BufferSlice(number, offset, buffer_size_bytes(value))
        for number, allocation in enumerate(planned)
        for value, offset in allocation.offsets.items()
    }
    slices = {
        (instruction, index): places[value]
        for instruction, tree in analysis.dataflow.trees.items()
        if instruction in live.schedule.times
        for index, value in tree.walk()
    }
    return BufferAssignment(allocations, slices, planned, live, is_timed=ordering == "schedule")


def _allocation(number: int, planned: PlannedAllocation, kinds: dict[tuple[int, ShapeIndex], bool]) -> BufferAllocation:
    constant = next(iter(planned.offsets)) if planned.is_constant else None
    must = kinds.get(planned.parameter) if planned.parameter is not None else None
    return BufferAllocation(
        index=number,
        size_bytes=planned.size_bytes,
        parameter_number=planned.parameter[0] if planned.parameter is not None else None,
        parameter_index=planned.parameter[1] if planned.parameter is not None else (),
        constant=_constant(constant) if constant is not None else None,
        is_output=planned.is_live_out,
        alias="" if must is None else "must-alias" if must else "may-alias",
        is_thread_local=planned.is_thread_local,
    )


def _constant(value: HloValue) -> ConstantData | None:
    """Return the data of a constant array; None for the table of a constant tuple."""
    literal = value.instruction.literal
    for number in value.index:
        literal = literal[number]
    shape = value.shape
    if not shape.is_array:
        return None
    items = np.ascontiguousarray(literal, dtype=shape.dtype.numpy).tobytes()
    return ConstantData(shape.element_type, shape.dims, shape.minor_to_major, items)


def computed_values(module: HloModule, buffers: BufferAssignment, thunks: Sequence[Thunk]) -> tuple[NamedValue, ...]:
    """Return the arrays of all instructions that thunks compute, and of their operands."""
    names = {thunk.name for thunk in every_thunk(thunks)}
    found: dict[HloInstruction, None] = {}
    for computation in executed_computations(module):
        for instruction in computation.instructions:
            if instruction.opcode not in CONTROL_FLOW and (not names.isdisjoint((instruction.name, _root_name(instruction)))):
                found.update(dict.fromkeys((*instruction.operands, instruction)))
    return tuple(NamedValue(instruction.name, buffers.array_tree(instruction)) for instruction in found)


def _root_name(fusion: HloInstruction) -> str:
    """Return the name of the root of a fusion, which the thunks of a fused sort have; of other instructions nothing."""
    return fusion.fused_computation.root.name if fusion.opcode == "fusion" else ""
