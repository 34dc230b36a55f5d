"""Replace reshapes by bitcasts, with copies where a reshape moves bytes in its operand's layout.

    r = f32[6]{0} reshape(f32[2,3]{1,0} p)   =>   bitcast(p)
    r = f32[6]{0} reshape(f32[2,3]{0,1} p)   =>   bitcast(f32[2,3]{1,0} copy(p))

XLA's `ReshapeDecomposer`. Needs assigned layouts.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.bitcast_kind import aligned_order, reshape_is_bitcast
from hlo_run.hlo.edit import Editor, descending, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class ReshapeDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reshape-decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        reshapes = [r for r in module.in_post_order("reshape") if not any(r.shape.dynamic_dims)]
        replace_each(module, reshapes, _decomposed)


def _decomposed(reshape: HloInstruction) -> HloInstruction:
    shape, (operand,) = reshape.shape, reshape.operands
    # The new instructions have the operand's metadata, or that of the reshape if it has none.
    editor = Editor(operand, keeps_sharding=False, keeps_frontend_attributes=False)
    source = operand.shape
    if reshape_is_bitcast(source, shape):
        return editor.add("bitcast", shape, [operand])
    if (order := aligned_order(shape, source.dims)) is not None:
        return editor.bitcast(_copy(editor, operand, _with_order(source, _ones_first(source, order))), shape)
    if (order := aligned_order(source, shape.dims)) is not None:
        return _copy(editor, editor.bitcast(operand, _with_order(shape, _ones_first(shape, order))), shape)
    copied = _copy(editor, operand, descending(source))
    return _copy(editor, editor.bitcast(copied, descending(shape)), shape)


def _with_order(shape: Shape, order: tuple[int, ...]) -> Shape:
    return replace(shape, layout=Layout(order, shape.layout.extra if shape.layout else ""))


def _ones_first(shape: Shape, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a minor-to-major order with the dimensions of size 1 major, in their order: no byte moves."""
    ones = [dim for dim, size in enumerate(shape.dims) if size == 1]
    return (*(dim for dim in order if dim not in ones), *reversed(ones))


def _copy(editor: Editor, value: HloInstruction, shape: Shape) -> HloInstruction:
    if value.shape == shape:
        return value
    # A copy has the frontend attributes of its operand, other than a bitcast.
    inherited = {name: value.attrs[name] for name in ("frontend_attributes",) if name in value.attrs}
    return editor.add_with("copy", shape, [value], inherited)
