"""Replace a sort by a permutation's elements by a scatter, which needs no comparisons.

    p = get-tuple-element(sort(x, iota)), index=1
    s = (s32[n], f32[n]) sort(p, v), to_apply=(p's element < the other)
        =>   tuple(iota, scatter(broadcast(0), p, v), unique_indices=true)

Only for sorts of two operands by the first one. XLA's `PermutationSortExpander`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class PermutationSortSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "permutation_sort_simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("sort",), _scattered, _sorts_by_permutation, described=True)


def _sorts_by_permutation(sort: HloInstruction) -> bool:
    root = sort.to_apply.root
    if len(sort.operands) != 2 or root.opcode != "compare" or root.comparison_direction != "LT":
        return False
    if tuple(root.operands) != tuple(sort.to_apply.parameters[:2]):
        return False
    keys = sort.operands[0]
    if not keys.shape.dtype.is_integer:
        return False
    source = keys.operands[0] if keys.opcode == "get-tuple-element" else None
    if source is None or source.opcode != "sort" or source.dimensions != sort.dimensions:
        return False
    number = keys.tuple_index
    counter = source.operands[number]
    return counter.opcode == "iota" and counter.iota_dimension == sort.dimensions[0]


def _scattered(b: HloBuilder, old: HloInstruction, keys: HloValue, values: HloValue) -> HloValue:
    dims, rank = keys.shape.dims, keys.shape.rank
    dim: int = old.dimensions[0]
    kind = keys.shape.element_type
    counted = b.iota(Shape.array(kind, dims), dim)
    nowhere = b.broadcast(b.constant(0, values.shape.element_type), dims)
    parts = [b.reshape(keys, (*dims, 1)) if d == dim else b.iota(Shape.array(kind, (*dims, 1)), d) for d in range(rank)]
    places = parts[0] if rank == 1 else b.concatenate(parts, rank)
    scattered = b.scatter(
        nowhere,
        places,
        values,
        _replacing(values.shape.element_type),
        update_window_dims=(),
        inserted_window_dims=tuple(range(rank)),
        scatter_dims_to_operand_dims=tuple(range(rank)),
        index_vector_dim=rank,
        unique_indices=True,
    )
    return b.tuple([counted, scattered])


def _replacing(element_type: str) -> HloComputation:
    b = HloBuilder("update_replace_computation")
    _, update = (b.leaf("parameter", Shape.array(element_type, ()), {"parameter_number": number}) for number in range(2))
    return b.build_computation(update)
