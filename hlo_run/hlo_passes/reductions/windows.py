"""Helpers for reduce-window: a second dimension of size 1 for one-dimensional windows."""

from __future__ import annotations

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace


def has_one_dim(window: HloInstruction) -> bool:
    """Return True for a reduce-window over arrays of rank 1 without dynamic sizes."""
    shapes = (window.shape, *(operand.shape for operand in window.operands))
    return window.operands[0].shape.rank == 1 and not any(leaf.dynamic_dims for shape in shapes for _, leaf in shape.leaves())


def with_two_dims(b: HloBuilder, old: HloInstruction, *operands: HloValue) -> HloValue:
    """Build a reduce-window over arrays of rank 1 as one over [n,1], between reshapes."""
    count = len(operands) // 2
    wider = replace(old.window, dims=(*old.window.dims, WindowDim()))
    inputs = [b.instruction("reshape", [value], _column(value.shape)) for value in operands[:count]]
    results = old.shape.tuple_shapes if old.shape.is_tuple else (old.shape,)
    shapes = tuple(map(_column, results))
    shape = Shape.make_tuple(shapes) if old.shape.is_tuple else shapes[0]
    called = {"to_apply": old.called["to_apply"]}
    made = b.instruction("reduce-window", [*inputs, *operands[count:]], shape, called=called, window=wider)
    if not old.shape.is_tuple:
        return b.reshape(made, old.shape.dims)
    return b.tuple([b.reshape(b.get_tuple_element(made, n), one.dims) for n, one in enumerate(results)])


def _column(shape: Shape) -> Shape:
    """Return [n,1] in XLA's layout for an added dimension, which is the major one."""
    made = Shape.array(shape.element_type, (*shape.dims, 1))
    assert made.layout is not None, "an array has a layout"
    return replace(made, layout=replace(made.layout, minor_to_major=(0, 1)))
