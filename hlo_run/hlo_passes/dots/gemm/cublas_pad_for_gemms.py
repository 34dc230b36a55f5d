"""Pad matrices for tensor cores: rows, columns and depth become multiples of 4 or 8 elements.

    d = f16[63,95] dot(f16[63,129] a, f16[129,95] b)   =>   slice(f16[64,96] dot(pad f16[64,136] (a), pad f16[136,96] (b)))

The padding is 0. Dots in another form than `dot_decomposer` leaves stay. XLA's `CublasPadForGemms`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.matrix_product import is_matrix_product
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import dot_side
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class CublasPadForGemms(Struct, frozen=True):
    """The pass for dots whose operands have `element_type`; `multiple` is in elements. See the module's docstring."""

    name: ClassVar[str] = "cublas-pad-for-gemms"

    element_type: str
    multiple: int

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        padded = [dot for dot in module.instructions_of("dot") if self._is_to_do(dot)]
        for dot in padded:
            module.replace(dot, self._padded_dot(dot))
        remove_unused(padded)

    def _is_to_do(self, dot: HloInstruction) -> bool:
        if not is_matrix_product(dot) or any(o.shape.element_type != self.element_type for o in dot.operands):
            return False
        sides = dot_side(dot, 0), dot_side(dot, 1)
        in_form = all(len(side.contracting) == 1 and side.batch == tuple(range(len(side.batch))) for side in sides)
        return in_form and any(o.shape.dims != self._padded(o.shape).dims for o in dot.operands)

    def _padded(self, shape: Shape) -> Shape:
        rounded = tuple(-(-size // self.multiple) * self.multiple for size in shape.dims[-2:])
        return replace(shape, dims=(*shape.dims[:-2], *rounded))

    def _padded_dot(self, dot: HloInstruction) -> HloInstruction:
        editor = Editor(dot)
        zero = editor.constant(0, self.element_type)
        operands = [self._padded_operand(editor, operand, zero) for operand in dot.operands]
        new = editor.computation.add(copy_instruction(dot, operands, self._padded(dot.shape)))
        return editor.slice(new, [0] * dot.shape.rank, dot.shape.dims)

    def _padded_operand(self, editor: Editor, value: HloInstruction, zero: HloInstruction) -> HloInstruction:
        edges = [(0, after - size, 0) for size, after in zip(value.shape.dims, self._padded(value.shape).dims, strict=True)]
        return editor.pad(value, zero, edges)  # also without edges, as XLA; the next algsimp removes it
