"""Bring the inputs of a reduction into the default layout, by bitcasts before and after.

    r = f32[3,4]{1,0} reduce(f32[3,4,5]{0,1,2} p), dimensions={2}
        =>   bitcast(f32[4,3]{0,1} reduce(f32[5,4,3]{2,1,0} bitcast(p)), dimensions={0})

XLA's `ReductionLayoutNormalizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class ReductionLayoutNormalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduction-layout-normalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; several inputs must all have the same layout.

        The pass copies a reduction of several inputs even in the default layout, so its computation is printed last.
        """
        del ctx
        replaced = [r for r in module.in_post_order("reduce") if _lies_otherwise(r)]
        replace_each(module, replaced, _normalized)


def _lies_otherwise(reduce: HloInstruction) -> bool:
    inputs = reduce.operands[: len(reduce.operands) // 2]
    orders = {value.shape.minor_to_major for value in inputs}
    return len(orders) == 1 and (reduce.shape.is_tuple or not inputs[0].shape.has_default_layout)


def _normalized(reduce: HloInstruction) -> HloInstruction:
    editor = Editor(reduce, derives=False)
    inputs = reduce.operands[: len(reduce.operands) // 2]
    reduced = reduce.dimensions
    order = list(reversed(inputs[0].shape.minor_to_major))
    sizes = tuple(inputs[0].shape.dims[d] for d in order)
    views = [Editor(value).bitcast(value, Shape.array(value.shape.element_type, sizes)) for value in inputs]
    shapes = [shape for _, shape in reduce.shape.leaves()]
    # Dimension k of the result was the input's dimension kept[k]; in the new result it is at now.index(kept[k]).
    kept = [d for d in range(len(order)) if d not in reduced]
    now = [d for d in order if d not in reduced]
    new_shapes = [
        Shape.array(
            shape.element_type,
            tuple(shape.dims[kept.index(d)] for d in now),
            tuple(now.index(kept[k]) for k in shape.minor_to_major),
        )
        for shape in shapes
    ]
    dimensions = [number for number, d in enumerate(order) if d in reduced]
    operands = (*views, *reduce.operands[len(inputs) :])
    shape = Shape.make_tuple(tuple(new_shapes)) if reduce.shape.is_tuple else new_shapes[0]
    made = editor.add("reduce", shape, operands, {"to_apply": reduce.called["to_apply"]}, dimensions=tuple(dimensions))
    if shape == reduce.shape:
        return made
    results = [editor.element(made, n) for n in range(len(inputs))] if reduce.shape.is_tuple else [made]
    return editor.joined([editor.bitcast(value, shape) for value, shape in zip(results, shapes, strict=True)], reduce)
