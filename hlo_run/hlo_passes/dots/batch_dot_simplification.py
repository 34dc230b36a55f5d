"""Remove batch dimensions of size 1 from dots.

    dot(f32[1,9,3] A, f32[1,3,7] B)   =>   reshape(dot(reshape f32[9,3] (A), reshape f32[3,7] (B)))

XLA's `BatchDotSimplification`. The batch dimensions must come first, and one dimension is contracted.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import dot_side
from hlo_run.pass_support.hlo_pass import PassContext


class BatchDotSimplification(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "batch-dot-simplification"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for dot in module.instructions_of("dot"):
            simplified = _simplified(dot)
            if simplified is not None:
                module.replace(dot, simplified)
                remove_unused([dot])


def _simplified(dot: HloInstruction) -> HloInstruction | None:
    sides = dot_side(dot, 0), dot_side(dot, 1)
    batch = tuple(range(len(sides[0].batch)))
    gone = [d for d in batch if dot.operands[0].shape.dims[d] == 1]
    if not gone or sides[0].batch != batch or sides[1].batch != batch or len(sides[0].contracting) != 1:
        return None
    editor = Editor(dot)
    operands = [editor.reshape(o, [size for d, size in enumerate(o.shape.dims) if d not in gone]) for o in dot.operands]
    shape = Shape.array(dot.shape.element_type, tuple(size for d, size in enumerate(dot.shape.dims) if d not in gone))
    kept = tuple(range(len(batch) - len(gone)))
    numbers = {f"{name}_batch_dims": kept for name in ("lhs", "rhs") if kept}
    numbers |= {
        f"{name}_contracting_dims": (side.contracting[0] - len(gone),) for name, side in zip(("lhs", "rhs"), sides, strict=True)
    }
    rest = {name: dot.attrs[name] for name in ("operand_precision", "algorithm") if name in dot.attrs}
    return editor.reshape(editor.add_with("dot", shape, operands, {**numbers, **rest}), dot.shape.dims)
