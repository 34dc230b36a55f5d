"""Merge the batch dimensions of a dot into one where they are adjacent.

    d = f32[3,4,33,47] dot(f32[3,4,33,64] a, f32[3,4,64,47] b), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}
      =>   reshape(f32[12,33,47] dot(reshape(a), reshape(b)), lhs_batch_dims={0}, rhs_batch_dims={0})

They must be adjacent in the operands' dimensions and in memory, so no byte moves. Needs assigned layouts. XLA's
`DotDimensionMerger`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import dot_side
from hlo_run.pass_support.hlo_pass import PassContext


class DotDimensionMerger(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot_dimension_merger"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        merged = [dot for dot in module.in_post_order("dot") if _has_dims_to_merge(dot)]
        replace_each(module, merged, _merged_dot)


def _has_dims_to_merge(dot: HloInstruction) -> bool:
    batches = [dot_side(dot, number).batch for number in (0, 1)]
    if len(batches[0]) < 2:
        return False
    places = [(operand.shape, batch) for operand, batch in zip(dot.operands, batches, strict=True)]
    return all(_lie_together(shape, dims) for shape, dims in (*places, (dot.shape, tuple(range(len(batches[0]))))))


def _lie_together(shape: Shape, dims: Sequence[int]) -> bool:
    """Return True if the dimensions are consecutive and have the same order in memory, major to minor."""
    if list(dims) != list(range(dims[0], dims[0] + len(dims))):
        return False
    place = shape.minor_to_major.index(dims[-1])
    return shape.minor_to_major[place : place + len(dims)] == tuple(reversed(dims))


def _merged_dot(dot: HloInstruction) -> HloInstruction:
    editor = Editor(dot)
    operands: list[HloInstruction] = []
    count = len(dot_side(dot, 0).batch)
    attributes = {name: value for name, value in dot.attrs.items() if name != "metadata"}
    for number, side in enumerate(("lhs", "rhs")):
        operand, dims = dot.operands[number], dot_side(dot, number)
        first, gone = dims.batch[0], len(dims.batch) - 1
        operands.append(Editor(operand).add("reshape", _merged(operand.shape, dims.batch), [operand]))
        attributes[f"{side}_batch_dims"] = (first,)
        attributes[f"{side}_contracting_dims"] = tuple(d - gone if d > first else d for d in dims.contracting)
    new = editor.add_with("dot", _merged(dot.shape, range(count)), operands, attributes)
    return editor.add("reshape", dot.shape, [new])


def _merged(shape: Shape, dims: Sequence[int]) -> Shape:
    """Return the shape with the adjacent dimensions `dims` merged into `dims[0]`."""
    first, gone = dims[0], len(dims) - 1
    sizes = (*shape.dims[:first], math.prod(shape.dims[d] for d in dims), *shape.dims[first + gone + 1 :])
    order = tuple(d - gone if d > first else d for d in shape.minor_to_major if d == first or d not in dims)
    return Shape.array(shape.element_type, sizes, order)
