"""Give a dimension of size 1 to dots without contracting dimensions, since libraries require one.

    f32[33,47] dot(f32[33] p, f32[47] q)   =>   dot(bitcast f32[33,1] (p), bitcast f32[47,1] (q)), contracting the ones

Most such dots have become multiplications before; those with an algorithm have not. XLA's `DotNormalizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class DotNormalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot_normalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for dot in module.instructions_of("dot"):
            if not dot.lhs_contracting_dims:
                editor, (left, right) = Editor(dot), dot.operands[:2]
                dot.operands = (_with_one(editor, left), _with_one(editor, right), *dot.operands[2:])
                dot.attrs["lhs_contracting_dims"] = (left.shape.rank,)
                dot.attrs["rhs_contracting_dims"] = (right.shape.rank,)


def _with_one(editor: Editor, value: HloInstruction) -> HloInstruction:
    """Return the value with a new last dimension of size 1, which is innermost."""
    shape = value.shape
    order = (shape.rank, *shape.minor_to_major)
    return editor.bitcast(value, Shape.array(shape.element_type, (*shape.dims, 1), order))
