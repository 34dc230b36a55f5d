"""Rewrite convolutions of groups to convolutions without them, with one more spatial dimension for the groups.

    c = f32[1,2,2] convolution(f32[1,2,4] x, f32[1,2,2] k), window={size=1}, dim_labels=b0f_0io->b0f, feature_group_count=2
        =>   reshape(convolution(f32[1,2,2,2] reshape(x), f32[1,2,2,1] reshape(k)), window={size=1x2 lhs_dilate=1x2},
             dim_labels=b01f_0i1o->b01f)

The new window has an element per group. It moves by one less than the groups are apart, so each position meets one group, at that
group's element. Groups of one feature become a product with a kernel that is zero outside of its group. XLA's
`ConvolutionGroupConverter`, which its pipeline for GPUs does not run: cuDNN takes groups.

`batch_groups` takes groups of the batch instead. Where each of them is one row, the results of all pairs are made, and a window
adds the masked ones. Without `expands_filter` groups of one feature with one result each stay, and with `is_viable` others of one
feature get a spatial dimension for their results.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.hlo.edit import Editor, copy_instruction, replace_each
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import DimLabels, OperandLabels, Window, WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class ConvolutionGroupConverter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "convolution-group-converter"

    batch_groups: bool = False
    is_viable: bool = False
    expands_filter: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        grouped = [c for c in module.instructions_of("convolution") if _groups(c, self.batch_groups) > 1]
        replace_each(module, [c for c in grouped if self._takes(c)], self._converted)

    def _takes(self, convolution: HloInstruction) -> bool:
        """False for convolutions of groups of one that the options leave alone."""
        if not self._is_single(convolution) or self.expands_filter:
            return True
        kernel, groups = convolution.operands[1].shape, _groups(convolution, self.batch_groups)
        is_separable = kernel.dims[convolution.dim_labels.kernel.second_dim] == groups
        return not self.is_viable if self.batch_groups else not is_separable

    def _is_single(self, convolution: HloInstruction) -> bool:
        """True if a group is one feature of the input, or one row of the batch for one feature of the result."""
        labels, (source, kernel) = convolution.dim_labels, (operand.shape for operand in convolution.operands)
        if not self.batch_groups:
            return kernel.dims[labels.kernel.first_dim] == 1
        sizes = source.dims[labels.input.first_dim], kernel.dims[labels.kernel.second_dim]
        return sizes == (convolution.batch_group_count,) * 2

    def _converted(self, convolution: HloInstruction) -> HloInstruction:
        if not self._is_single(convolution):
            return _in_space(convolution, self.batch_groups)
        if self.batch_groups:
            return _masked_sums(convolution)
        return _masked_kernel(convolution) if self.expands_filter or not self.is_viable else _results_in_space(convolution)


def _groups(convolution: HloInstruction, of_batch: bool) -> int:
    return convolution.batch_group_count if of_batch else convolution.feature_group_count


def _in_space(convolution: HloInstruction, of_batch: bool) -> HloInstruction:
    """Give input, kernel and result a spatial dimension for the groups, before the dimension that they divide."""
    editor, groups = Editor(convolution), _groups(convolution, of_batch)
    (source, kernel), labels = convolution.operands, convolution.dim_labels
    divided = labels.input.first_dim if of_batch else labels.input.second_dim
    given = [_split(editor, source, divided, groups), _split(editor, kernel, labels.kernel.second_dim, groups)]
    sides = (
        _with_space(labels.input, divided),
        _with_space(labels.kernel, labels.kernel.second_dim),
        _with_space(labels.output, labels.output.second_dim),
    )
    dims = _divided(convolution.shape.dims, labels.output.second_dim, groups)
    dim = WindowDim(size=groups, stride=groups - 1, base_dilation=groups)
    kept = "feature_group_count" if of_batch else "batch_group_count"
    made = _add_windowed(editor, convolution, given, DimLabels(*sides), dim, dims, kept)
    return editor.add("reshape", convolution.shape, [made])


def _results_in_space(convolution: HloInstruction) -> HloInstruction:
    """Give the results of one feature a spatial dimension, along which a reversed kernel slides over the one input."""
    editor, groups = Editor(convolution), convolution.feature_group_count
    (source, kernel), labels = convolution.operands, convolution.dim_labels
    results, place = kernel.shape.dims[labels.kernel.second_dim] // groups, labels.output.second_dim
    given = [
        editor.reshape(source, (*source.shape.dims, 1)),
        editor.reshape(kernel, _divided(kernel.shape.dims, labels.kernel.second_dim, groups)),
    ]
    sides = (
        replace(labels.input, spatial_dims=(*labels.input.spatial_dims, source.shape.rank)),
        _with_space(labels.kernel, labels.kernel.second_dim, after=True),
        _with_space(labels.output, place, after=True),
    )
    dims = _divided(convolution.shape.dims, place, groups)
    dim = WindowDim(size=results, pad_low=results - 1, pad_high=results - 1, reversal=True)
    made = _add_windowed(editor, convolution, given, DimLabels(*sides), dim, dims, "feature_group_count")
    return editor.add("reshape", convolution.shape, [made])


def _add_windowed(
    editor: Editor,
    convolution: HloInstruction,
    operands: list[HloInstruction],
    labels: DimLabels,
    dim: WindowDim,
    dims: tuple[int, ...],
    kept: str,
) -> HloInstruction:
    """Add a convolution with another dimension of its window; only the groups that `kept` names stay."""
    made = copy_instruction(convolution, operands, Shape.array(convolution.shape.element_type, dims))
    made.attrs["window"] = Window((*convolution.window.dims, dim))
    made.attrs["dim_labels"] = labels
    for name in ("feature_group_count", "batch_group_count"):
        if name != kept:
            made.attrs.pop(name, None)
    return editor.computation.add(made)


def _divided(dims: tuple[int, ...], place: int, groups: int) -> tuple[int, ...]:
    return (*dims[:place], groups, dims[place] // groups, *dims[place + 1 :])


def _split(editor: Editor, value: HloInstruction, place: int, groups: int) -> HloInstruction:
    return editor.reshape(value, _divided(value.shape.dims, place, groups))


def _with_space(side: OperandLabels, place: int, after: bool = False) -> OperandLabels:
    """Return labels with a last spatial dimension at `place`, which moves the dimensions from there on, or after it."""
    first = place + after
    one, two, *spatial = (dim + (dim >= first) for dim in (side.first_dim, side.second_dim, *side.spatial_dims))
    return OperandLabels(side.letters, one, two, (*spatial, first))


def _mask(editor: Editor, dims: tuple[int, ...], one: int, two: int, groups: int) -> HloInstruction:
    """Return a pred of these dimensions that is true where the dimensions `one` and `two` are in the same group."""
    sides: list[HloInstruction] = []
    for dim in (one, two):
        groups_of = np.arange(dims[dim]) // (dims[dim] // groups)
        sides.append(editor.broadcast(editor.constant(groups_of, "s32"), dims, (dim,)))
    return editor.compare(sides[0], sides[1], "EQ")


def _where(editor: Editor, mask: HloInstruction, value: HloInstruction) -> HloInstruction:
    zero = editor.broadcast(editor.constant(0, value.shape.element_type), value.shape.dims)
    return editor.select(mask, value, zero)


def _masked_kernel(convolution: HloInstruction) -> HloInstruction:
    """Let a kernel of one feature reach all features, with zeros outside of each result's group."""
    editor, groups = Editor(convolution), convolution.feature_group_count
    (source, kernel), labels = convolution.operands, convolution.dim_labels.kernel
    place = labels.first_dim
    dims = tuple(groups if dim == place else size for dim, size in enumerate(kernel.shape.dims))
    mask = _mask(editor, dims, place, labels.second_dim, groups)
    kept = [dim for dim in range(kernel.shape.rank) if dim != place]
    row = editor.reshape(kernel, [kernel.shape.dims[dim] for dim in kept])
    made = copy_instruction(convolution, [source, _where(editor, mask, editor.broadcast(row, dims, kept))])
    made.attrs.pop("feature_group_count", None)
    made.attrs.pop("batch_group_count", None)
    return editor.computation.add(made)


def _masked_sums(convolution: HloInstruction) -> HloInstruction:
    """Convolve each row of the batch with each feature, and add up the masked results of each group."""
    editor, groups, shape = Editor(convolution), convolution.batch_group_count, convolution.shape
    rows = convolution.dim_labels.output.first_dim
    dims = tuple(size * groups if dim == rows else size for dim, size in enumerate(shape.dims))
    mask = _mask(editor, dims, rows, convolution.dim_labels.output.second_dim, groups)
    whole = copy_instruction(convolution, convolution.operands, Shape.array(shape.element_type, dims))
    whole.attrs.pop("batch_group_count", None)
    masked = _where(editor, mask, editor.computation.add(whole))
    kind = "f32" if shape.dtype.bits < 32 else shape.element_type
    window = Window(tuple(WindowDim(size=groups, stride=groups) if dim == rows else WindowDim() for dim in range(shape.rank)))
    module = editor.computation.module
    assert module is not None, "the computation is in a module"
    summed = editor.add(
        "reduce-window",
        Shape.array(kind, shape.dims),
        [editor.convert(masked, kind), editor.constant(0, kind)],
        {"to_apply": [module.add_computation(_adder(kind))]},
        window=window,
    )
    return editor.add("convert", shape, [summed])


def _adder(kind: str) -> HloComputation:
    b = HloBuilder("add_computation")
    scalar = Shape.array(kind, ())
    return b.build_computation(b.parameter(0, scalar, name="lhs") + b.parameter(1, scalar, name="rhs"))
