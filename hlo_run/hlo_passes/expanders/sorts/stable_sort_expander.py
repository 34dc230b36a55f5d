"""Rewrite stable sorts to sorts whose comparator orders equal elements by their original positions.

    sort(x), is_stable=true, to_apply=less   =>   sort(x, iota), to_apply=less.clone
        less.clone(a, b, i, j) = select(less(a, b) == less(b, a), i < j, less(a, b))

The kernels then need not be stable. If an operand is an iota along the sorted dimension, no new iota is added. XLA's
`stable_sort_expander.cc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.copying import copy_into
from hlo_run.hlo_passes.subgraphs.expansion import expand

_MOST_S32 = 2**31 - 1


@dataclass(frozen=True)
class StableSortExpander:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "stable-sort-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("sort",), _with_positions, lambda sort: sort.is_stable)


def _with_positions(b: HloBuilder, old: HloInstruction, *values: HloValue) -> HloValue:
    (dimension,) = old.dimensions
    place = next((n for n, operand in enumerate(old.operands) if _counts_along(operand, dimension)), len(values))
    shape = values[0].shape
    if place == len(values):
        counter = "s32" if shape.dims[dimension] <= _MOST_S32 else "s64"
        iota = b.iota(Shape.array(counter, shape.dims, shape.minor_to_major), dimension)
        values = (*values, iota)
    comparator = _stable_comparator(old.to_apply, [value.shape.element_type for value in values], place)
    result = b.sort(list(values), dimension, comparator)
    if len(values) == len(old.operands):
        return result
    if not old.shape.is_tuple:
        return result[0]
    return b.tuple([result[number] for number in range(len(old.operands))])


def _counts_along(operand: HloInstruction, dimension: int) -> bool:
    shape = operand.shape
    return (
        operand.opcode == "iota"
        and operand.iota_dimension == dimension
        and shape.dtype.is_integer
        # An iota that overflows has equal elements.
        and shape.dims[dimension] <= 1 << (shape.dtype.bits - int(shape.dtype.is_signed))
    )


def _stable_comparator(old: HloComputation, element_types: list[str], place: int) -> HloComputation:
    b = HloBuilder(f"{old.name}.clone")
    parameters = [
        b.leaf("parameter", Shape.array(element_type, ()), {"parameter_number": 2 * number + side})
        for number, element_type in enumerate(element_types)
        for side in range(2)
    ]
    asked = parameters[: len(old.parameters)]
    swapped = [asked[number ^ 1] for number in range(len(asked))]
    forward, backward = copy_into(b, old, asked), copy_into(b, old, swapped)
    undecided = b.compare(forward, backward, "EQ")
    first = parameters[2 * place] < parameters[2 * place + 1]
    return b.build_computation(b.select(undecided, first, forward))
