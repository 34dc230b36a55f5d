"""Add a second dimension of size 1 to one-dimensional windows.

    reduce-window(f32[10] p, zero), window={size=3}
        =>   reshape f32[8] (reduce-window(reshape f32[10,1] (p), zero), window={size=3x1})

XLA's `ReduceWindowResizer`; its backends tile two dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class ReduceWindowResizer:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-window-resizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        old = [i for i in module.in_post_order("reduce-window") if i.operands[0].shape.rank == 1 and not _is_dynamic(i)]
        replace_each(module, old, _with_two_dims)


def _is_dynamic(i: HloInstruction) -> bool:
    return any(shape.dynamic_dims for operand in (i, *i.operands) for _, shape in operand.shape.leaves())


def _with_two_dims(old: HloInstruction) -> HloInstruction:
    editor, count = Editor(old), len(old.operands) // 2
    window = old.window
    wider = replace(window, dims=(*window.dims, WindowDim()))
    inputs = [editor.reshape(value, (*value.shape.dims, 1)) for value in old.operands[:count]]
    results = old.shape.tuple_shapes if old.shape.is_tuple else (old.shape,)
    shapes = tuple(Shape.array(shape.element_type, (*shape.dims, 1)) for shape in results)
    shape = Shape.make_tuple(shapes) if old.shape.is_tuple else shapes[0]
    called = {"to_apply": old.called["to_apply"]}
    made = editor.add("reduce-window", shape, [*inputs, *old.operands[count:]], called, window=wider)
    if not old.shape.is_tuple:
        return editor.reshape(made, old.shape.dims)
    return editor.tuple([editor.reshape(editor.element(made, n), one.dims) for n, one in enumerate(results)])
