"""Expand select-and-scatter to a reduce-window that finds the selected positions, and a scatter to them.

    select-and-scatter(x, source, init), window=W, select=ge, scatter=add
        =>   selected = reduce-window(x, iota 0, .., iota n), window=W   ; keeps the element that `ge` prefers, and its position
             scatter(broadcast(init), positions of selected, source), to_apply=add

The position -1 means that no element was selected yet, so the initial value is never preferred. XLA's
`select_and_scatter_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.copying import copy_into
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext

_MOST_S32 = 2**31 - 1


class SelectAndScatterExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "select_and_scatter_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("select-and-scatter",), _reduce_and_scatter)


def _reduce_and_scatter(b: HloBuilder, old: HloInstruction, x: HloValue, source: HloValue, init: HloValue) -> HloValue:
    shape, rank = x.shape, x.shape.rank
    index_type = "s32" if max((*shape.dims, 0)) <= _MOST_S32 else "s64"
    indices = _selected_places(b, old, x, source, init, index_type) if rank else b.constant_of(np.zeros(0, np.int32))
    return b.scatter(
        b.broadcast(init, shape.dims),
        indices,
        source,
        update_window_dims=(),
        inserted_window_dims=range(rank),
        scatter_dims_to_operand_dims=range(rank),
        index_vector_dim=source.shape.rank,
        to_apply=old.called["scatter"][0],
    )


def _selected_places(
    b: HloBuilder, old: HloInstruction, x: HloValue, source: HloValue, init: HloValue, index_type: str
) -> HloValue:
    """Return the index in `x` of the element that each window selects, `index_type[source's dimensions.., rank of x]`."""
    shape, rank = x.shape, x.shape.rank
    places = [b.iota(Shape.array(index_type, shape.dims, shape.minor_to_major), dim) for dim in range(rank)]
    nowhere = b.constant(-1, index_type)
    reducer = _selector(old.called["select"][0], [shape.element_type, *[index_type] * rank])
    inits = [init, *[nowhere] * rank]
    selected_shape = Shape.make_tuple(
        tuple(
            Shape.array(kind, source.shape.dims, source.shape.minor_to_major)
            for kind in (shape.element_type, *[index_type] * rank)
        )
    )
    operands = [x, *places, *inits]
    selected = b.instruction(
        "reduce-window", operands, selected_shape, window=old.attrs.get("window"), called={"to_apply": [reducer]}
    )
    return b.concatenate([b.reshape(selected[1 + dim], (*source.shape.dims, 1)) for dim in range(rank)], rank)


def _selector(select: HloComputation, element_types: list[str]) -> HloComputation:
    """Return the reducer of (element, position..): the left one if it is valid and preferred, or if the right is invalid."""
    b = HloBuilder(f"{select.name}.reduce_window")
    count, index_type = len(element_types), element_types[-1]

    def parameter(number: int, name: str) -> HloValue:
        shape = Shape.array(element_types[number % count], ())
        return b.leaf("parameter", shape, {"parameter_number": number}).annotate(name=name)

    nowhere = b.constant(-1, index_type)
    # XLA's names: also the first index on the right is a left one.
    first = parameter(1, "iota_lhs"), parameter(1 + count, "iota_lhs")
    is_valid, is_other_valid = (b.compare(index, nowhere, "NE") for index in first)
    is_only_left = b.not_(is_other_valid)
    element = parameter(0, "operand_lhs"), parameter(count, "operand_rhs")
    preferred = copy_into(b, select, list(element))
    is_left = b.or_(b.and_(preferred, is_valid), is_only_left)
    chosen = [b.select(is_left, *element), b.select(is_left, *first)]
    for number in range(2, count):
        chosen.append(b.select(is_left, parameter(number, "iota_lhs"), parameter(number + count, "iota_rhs")))
    return b.build_computation(b.tuple(chosen))
