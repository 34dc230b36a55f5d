"""Remove dimensions of size 1 from reductions, by bitcasts before and after.

    r = f32[7,1] reduce(f32[1,7,1,9] p), dimensions={0,3}   =>   bitcast(f32[7] reduce(f32[7,9] bitcast(p)), dimensions={1})

XLA's `ReductionDegenerateDimRemover`. A reduction over only dimensions of size 1 stays, since its init value may count.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class ReductionDegenerateDimRemover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduction-degenerate-dim-remover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [r for r in module.in_post_order("reduce") if _is_degenerate(r)]
        replace_each(module, replaced, _without_ones)


def _is_degenerate(reduce: HloInstruction) -> bool:
    dims = reduce.operands[0].shape.dims
    reduced = reduce.dimensions
    return 1 in dims and any(dims[d] != 1 for d in reduced)


def _without_ones(reduce: HloInstruction) -> HloInstruction:
    # In XLA only the new reduce and the new result derive from the old one, not what is before and between them.
    editor, bare = Editor(reduce), Editor(reduce, derives=False)
    count = len(reduce.operands) // 2
    sizes = reduce.operands[0].shape.dims
    kept = [d for d, size in enumerate(sizes) if size != 1]
    inputs = [bare.bitcast(value, _squeezed(value.shape)) for value in reduce.operands[:count]]
    dimensions = [kept.index(d) for d in reduce.dimensions if d in kept]
    shapes = [shape for _, shape in reduce.shape.leaves()]
    results = editor.reduce_again(reduce, inputs, dimensions, [_squeezed(shape) for shape in shapes])
    return editor.joined([editor.bitcast(value, shape) for value, shape in zip(results, shapes, strict=True)], reduce)


def _squeezed(shape: Shape) -> Shape:
    kept = [d for d, size in enumerate(shape.dims) if size != 1]
    order = tuple(kept.index(d) for d in shape.minor_to_major if d in kept)
    return Shape.array(shape.element_type, tuple(shape.dims[d] for d in kept), order)
