"""Helpers for reduce-window: a second dimension of size 1 for one-dimensional windows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.shape import Shape


def has_one_dim(window: HloInstruction) -> bool:
    """Return True for a reduce-window over arrays of rank 1 without dynamic sizes."""
    shapes = (window.shape, *(operand.shape for operand in window.operands))
    return window.operands[0].shape.rank == 1 and not any(leaf.dynamic_dims for shape in shapes for _, leaf in shape.leaves())


def add_second_dim(module: HloModule, windows: Sequence[HloInstruction]) -> None:
    """Replace reduce-windows over arrays of rank 1 by those over [n,1], between reshapes."""
    replace_each(module, windows, _with_two_dims)


def _with_two_dims(old: HloInstruction) -> HloInstruction:
    editor, count = Editor(old), len(old.operands) // 2
    wider = replace(old.window, dims=(*old.window.dims, WindowDim()))
    inputs = [editor.add("reshape", _column(value.shape), [value]) for value in old.operands[:count]]
    results = old.shape.tuple_shapes if old.shape.is_tuple else (old.shape,)
    shapes = tuple(map(_column, results))
    shape = Shape.make_tuple(shapes) if old.shape.is_tuple else shapes[0]
    called = {"to_apply": old.called["to_apply"]}
    made = editor.add("reduce-window", shape, [*inputs, *old.operands[count:]], called, window=wider)
    if not old.shape.is_tuple:
        return editor.reshape(made, old.shape.dims)
    return editor.tuple([editor.reshape(editor.element(made, n), one.dims) for n, one in enumerate(results)])


def _column(shape: Shape) -> Shape:
    """Return [n,1] in XLA's layout for an added dimension, which is the major one."""
    made = Shape.array(shape.element_type, (*shape.dims, 1))
    assert made.layout is not None, "an array has a layout"
    return replace(made, layout=replace(made.layout, minor_to_major=(0, 1)))
