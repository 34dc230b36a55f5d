"""Comparators of sorts with additional operands."""

from __future__ import annotations

from hlo_run.builder.builder import HloBuilder
from hlo_run.hlo.graph import HloComputation
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.copying import copy_into


def with_flags(old: HloComputation) -> HloComputation:
    """Return a comparator with an additional pair of pred flags: a set flag comes first; the old comparator breaks ties."""
    b = HloBuilder(f"{old.name}.clone")
    shapes = [parameter.shape for parameter in old.parameters] + [Shape.array("pred", ())] * 2
    values = [b.leaf("parameter", shape, {"parameter_number": number}) for number, shape in enumerate(shapes)]
    decided = copy_into(b, old, values[:-2])
    return b.build_computation(b.select(b.compare(values[-2], values[-1], "EQ"), decided, values[-2]))


def with_positions(old: HloComputation) -> HloComputation:
    """Return a comparator with an additional pair of s32 positions, which it ignores; one with four parameters stays."""
    if len(old.parameters) != 2:
        return old
    b = HloBuilder(f"{old.name}.clone")
    shapes = [*(parameter.shape for parameter in old.parameters), *[Shape.array("s32", ())] * 2]
    values = [b.leaf("parameter", shape, {"parameter_number": number}) for number, shape in enumerate(shapes)]
    return b.build_computation(copy_into(b, old, values[:2]))
