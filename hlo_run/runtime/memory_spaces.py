"""Writes the memory space of values into their layouts: `f32[4]{0:S(7)}`. XLA's `AssignColors`."""

from __future__ import annotations

import re

from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.collective_memory import COLLECTIVE_SPACE, collective_buffers, uses_collective_memory
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape, ShapeIndex
from hlo_run.records import replace

_SPACE = re.compile(r"S\(\d+\)")


def assign_collective_space(module: HloModule, every: bool) -> None:
    """Put the values that collectives read and write into the memory space of collectives, wherever they are in the module.

    `every`: also those of collectives whose backend_config does not ask for symmetric memory.
    """
    if not uses_collective_memory(module, every):
        return
    for buffer in collective_buffers(analyze_aliases(analyze_dataflow(module)), every):
        for value in buffer.values:
            for instruction, index in value.positions:
                instruction.shape = _in_space(instruction.shape, index, COLLECTIVE_SPACE)


def _in_space(shape: Shape, index: ShapeIndex, space: int) -> Shape:
    """Return `shape` with the array at `index` in a memory space."""
    if index:
        parts = list(shape.tuple_shapes)
        parts[index[0]] = _in_space(parts[index[0]], index[1:], space)
        return replace(shape, tuple_shapes=tuple(parts))
    if shape.layout is None:
        return shape
    return replace(shape, layout=replace(shape.layout, extra=_SPACE.sub("", shape.layout.extra) + f"S({space})"))
