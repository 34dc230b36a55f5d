"""Gather without dimensions of size 1.

    g = f32[1,8,1] all-gather(f32[1,2,1] x), dimensions={1}
        =>   g = f32[1,8,1] reshape(f32[8] all-gather(f32[2] reshape(x))), dimensions={0}

XLA's `AllGatherRemoveDegenerateDims`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class AllGatherRemoveDegenerateDims(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-remove-degenerate-dims"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for gather in module.in_post_order("all-gather"):
            if not gather.constrains_layout:
                _drop_dims(module, gather)


def _drop_dims(module: HloModule, gather: HloInstruction) -> None:
    (dim,) = gather.dimensions
    results = gather.shape.tuple_shapes if gather.shape.is_tuple else (gather.shape,)
    # Dimensions before the gathered one must go from all operands, since its number is common to them.
    before = [d for d in range(dim) if all(shape.dims[d] == 1 for shape in results)]
    gone = [(*before, *(d for d in range(dim + 1, shape.rank) if shape.dims[d] == 1)) for shape in results]
    if not any(gone):
        return
    editor = Editor(gather, keeps_frontend_attributes=False)
    pairs = list(zip(gather.operands, results, gone, strict=True))
    operands = [editor.add("reshape", _without(o.shape, dims), [o]) if dims else o for o, _, dims in pairs]
    shapes = tuple(_without(shape, dims) for _, shape, dims in pairs)
    made = copy_instruction(gather, operands, Shape.make_tuple(shapes) if gather.shape.is_tuple else shapes[0])
    made.attrs["dimensions"] = (dim - len(before),)
    editor.computation.add(made)
    if gather.shape.is_tuple:
        parts = [editor.add("reshape", shape, [editor.element(made, n)]) for n, shape in enumerate(results)]
        result = editor.tuple(parts)
    else:
        result = editor.add("reshape", gather.shape, [made])
    module.replace(gather, result)
    editor.computation.remove(gather)


def _without(shape: Shape, gone: tuple[int, ...]) -> Shape:
    """Return the shape without dimensions; the layout keeps the order of the others."""
    kept = [d for d in range(shape.rank) if d not in gone]
    layout = shape.layout
    if layout is not None:
        layout = Layout(tuple(kept.index(d) for d in shape.minor_to_major if d in kept), layout.extra)
    return replace(shape, dims=tuple(shape.dims[d] for d in kept), layout=layout)
