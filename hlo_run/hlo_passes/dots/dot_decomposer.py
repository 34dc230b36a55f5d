"""Bring every dot into the form of a batched matrix product.

    dot(f32[3,4,5], f32[5,3,6]), lhs_contracting_dims={2,0}, rhs_contracting_dims={0,1}
        =>   dot(reshape f32[4,15] (transpose), reshape f32[15,6]), lhs_contracting_dims={1}, rhs_contracting_dims={0}

Batch dimensions are first; each side has one contracting dimension and at most one other dimension, none if it would have one
element. Leaves transposes and
reshapes that change nothing, which the simplifier removes. XLA's `DotDecomposer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import Dot
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class DotDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot_decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not module.instructions_of("dot"):
            return
        replaced = [dot for c in computation_post_order(module) for dot in _dots(c) if not _is_canonical(dot)]
        replace_each(module, replaced, _canonical)


def _dots(computation: HloComputation) -> list[HloInstruction]:
    return [i for i in computation.instructions if i.opcode == "dot" and not computation.is_fusion]


def _is_canonical(dot: HloInstruction) -> bool:
    return all(
        len(side.contracting) == 1 and len(side.free) <= 1 and side.batch == tuple(range(len(side.batch)))
        for side in Dot.of(dot).sides
    )


def _canonical(dot: HloInstruction) -> HloInstruction:
    editor = Editor(dot, keeps_sharding=False)
    (lhs, rhs), attrs, sides = dot.operands, dot.attrs, Dot.of(dot).sides
    batch, contracting = [side.batch for side in sides], [side.contracting for side in sides]
    free = [list(side.free) for side in sides]
    # XLA takes the sizes in the order of the left operand's dimensions: all batches together are the same.
    sizes = [lhs.shape.dims[d] for d in (batch[0] if any(dot.shape.dynamic_dims) else sorted(batch[0]))]
    # Free dimensions that have one element together go.
    seen = [[group] if _size(operand, group) != 1 else [] for operand, group in zip((lhs, rhs), free, strict=True)]
    new_lhs = _grouped(lhs, (*batch[0], *free[0], *contracting[0]), sizes, [*seen[0], contracting[0]])
    new_rhs = _grouped(rhs, (*batch[1], *contracting[1], *free[1]), sizes, [contracting[1], *seen[1]])
    count = len(sizes)
    dims = [*new_lhs.shape.dims[:count], *(_size(lhs, f) for f in seen[0]), *(_size(rhs, f) for f in seen[1])]
    changed = {
        "lhs_batch_dims": tuple(range(count)),
        "lhs_contracting_dims": (new_lhs.shape.rank - 1,),
        "rhs_batch_dims": tuple(range(count)),
        "rhs_contracting_dims": (count,),
    }
    if not count:
        del changed["lhs_batch_dims"], changed["rhs_batch_dims"]
    kept = {name: attrs[name] for name in ("operand_precision", "algorithm", "backend_config") if name in attrs}
    shape = Shape.array(dot.shape.element_type, tuple(dims))
    if any(dot.shape.dynamic_dims):
        own = [(new_lhs, range(new_lhs.shape.rank - 1)), (new_rhs, range(count + 1, new_rhs.shape.rank))]
        flags = [any(value.shape.dynamic_dims[d : d + 1]) for value, kept_dims in own for d in kept_dims]
        shape = replace(shape, dynamic_dims=tuple(flags) if any(flags) else ())
    new = editor.add_with("dot", shape, [new_lhs, new_rhs], {**changed, **kept})
    return editor.add("reshape", dot.shape, [new])


def _grouped(
    value: HloInstruction, order: Sequence[int], batch_sizes: Sequence[int], groups: Sequence[Sequence[int]]
) -> HloInstruction:
    """Return `value` with its dimensions in an order, seen as `batch_sizes`, then one dimension for each group.

    The transpose and reshape are made even if they change nothing, as in XLA.
    """
    editor, dims = Editor(value, keeps_sharding=False, keeps_frontend_attributes=False), value.shape.dims
    batch = order[: len(batch_sizes)]
    transposed = replace(value.shape, dims=tuple(dims[d] for d in order), dynamic_dims=_dynamic(value, [[d] for d in order]))
    sizes = (*batch_sizes, *(_size(value, group) for group in groups))
    grouped = Shape.array(value.shape.element_type, sizes)
    grouped = replace(grouped, dynamic_dims=_dynamic(value, [*([d] for d in batch), *groups]))
    return editor.add("reshape", grouped, [editor.add("transpose", transposed, [value], dimensions=tuple(order))])


def _dynamic(value: HloInstruction, groups: Sequence[Sequence[int]]) -> tuple[bool, ...]:
    """Return which groups of dimensions have a dynamic one; () if none has."""
    dynamic = value.shape.dynamic_dims
    return tuple(any(dynamic[d] for d in group) for group in groups) if any(dynamic) else ()


def _size(value: HloInstruction, dims: Sequence[int]) -> int:
    return math.prod(value.shape.dims[d] for d in dims)
