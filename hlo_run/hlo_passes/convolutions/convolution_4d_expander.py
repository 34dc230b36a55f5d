"""Remove dimensions of size one from convolutions in four dimensions, since libraries support at most three.

    c = f32[2,2,1,4,4,4] convolution(f32[2,4,1,5,6,3] x, f32[3,1,2,3,3,4] k), window={size=3x1x2x3}, ..
        =>   reshape(f32[2,2,4,4,4] convolution(f32[2,4,5,6,3] reshape(x), f32[3,2,3,3,4] reshape(k)), window={size=3x2x3})

XLA's `Convolution4DExpander`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.attributes.table import DimLabels, Window
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import OperandLabels
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class Convolution4dExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "convolution_4d_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for convolution in module.in_post_order("convolution"):
            ones = _trivial_dims(convolution)
            if ones:
                module.replace(convolution, _without(convolution, ones))
                replaced.append(convolution)
        remove_unused(replaced)


def _trivial_dims(convolution: HloInstruction) -> frozenset[int]:
    """Return the window dimensions in which input, filter and result have size one; empty unless there are four dimensions."""
    labels = convolution.dim_labels
    window = convolution.window
    if len(window.dims) != 4:
        return frozenset()
    shapes = [(value.shape, side) for value, side in _sides(convolution, labels)]
    return frozenset(
        number
        for number, dim in enumerate(window.dims)
        if dim.pad_low == dim.pad_high == 0 and all(shape.dims[side.spatial_dims[number]] == 1 for shape, side in shapes)
    )


def _sides(convolution: HloInstruction, labels: DimLabels) -> list[tuple[HloInstruction, OperandLabels]]:
    source, weights = convolution.operands
    return [(source, labels.input), (weights, labels.kernel), (convolution, labels.output)]


def _without(convolution: HloInstruction, ones: frozenset[int]) -> HloInstruction:
    editor = Editor(convolution)
    labels = convolution.dim_labels
    window = convolution.window
    dims: list[list[int]] = []
    sides: list[OperandLabels] = []
    for value, side in _sides(convolution, labels):
        dropped = [side.spatial_dims[number] for number in ones]
        dims.append([size for dim, size in enumerate(value.shape.dims) if dim not in dropped])
        sides.append(_renumbered(side, ones))
    operands = [editor.reshape(value, sizes) for value, sizes in zip(convolution.operands, dims, strict=False)]
    shape = Shape.array(convolution.shape.element_type, tuple(dims[2]))
    made = copy_instruction(convolution, operands, shape)
    made.attrs["window"] = Window(tuple(dim for number, dim in enumerate(window.dims) if number not in ones))
    made.attrs["dim_labels"] = DimLabels(*sides)
    return editor.reshape(editor.computation.add(made), convolution.shape.dims)


def _renumbered(side: OperandLabels, ones: frozenset[int]) -> OperandLabels:
    dropped = [side.spatial_dims[number] for number in ones]

    def place(dim: int) -> int:
        return dim - sum(other < dim for other in dropped)

    kept = tuple(place(dim) for number, dim in enumerate(side.spatial_dims) if number not in ones)
    return OperandLabels(side.letters, place(side.first_dim), place(side.second_dim), kept)
