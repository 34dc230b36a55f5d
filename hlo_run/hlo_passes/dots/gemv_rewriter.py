"""Turn products of a matrix and a vector into products of matrices.

    dot(f32[5,7] A, f32[7] x)   =>   bitcast f32[5] (dot(A, bitcast f32[7,1] (x)))

XLA's `GemvRewriter`. The arrays must have descending layouts, and at most one free dimension, as `dot_decomposer` leaves them.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import dot_side
from hlo_run.pass_support.hlo_pass import PassContext


class GemvRewriter(Struct, frozen=True):
    """The pass; see the module's docstring. With `sees_layouts`, layouts are assigned: it makes bitcasts, otherwise reshapes."""

    name: ClassVar[str] = "gemv-rewriter"

    sees_layouts: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for dot in module.in_post_order("dot"):
            made = self._matrices(dot)
            if made is not None:
                module.replace(dot, made)
                remove_unused([dot])

    def _matrices(self, dot: HloInstruction) -> HloInstruction | None:
        free = [
            operand.shape.rank - len(dot_side(dot, n).batch) - len(dot_side(dot, n).contracting)
            for n, operand in enumerate(dot.operands)
        ]
        if sorted(free) != [0, 1]:
            return None
        shapes = [*(operand.shape for operand in dot.operands), dot.shape]
        if any(dot.shape.dynamic_dims) or not all(shape.has_default_layout for shape in shapes):
            return None
        vector = free.index(0)
        operands = list(dot.operands)
        operands[vector] = self._as(dot, operands[vector], (*operands[vector].shape.dims, 1))
        dims = (*dot.shape.dims, 1)
        if vector == 0:
            dims = (*dot.shape.dims[:-1], 1, dot.shape.dims[-1])
        shape = Shape.array(dot.shape.element_type, dims)
        product = Editor(dot).computation.add(copy_instruction(dot, operands, shape))
        return self._as(dot, product, dot.shape.dims)

    def _as(self, dot: HloInstruction, value: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
        shape = Shape.array(value.shape.element_type, dims)
        return Editor(dot).add("bitcast" if self.sees_layouts else "reshape", shape, [value])
