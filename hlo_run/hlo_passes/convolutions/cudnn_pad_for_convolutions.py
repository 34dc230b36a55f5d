"""Pad the features of convolutions with zeros: of f16 to multiples of eight, of 8-bit integers to 32 or four, for tensor cores.

    custom-call(f16[2,10,10,7] x, f16[3,3,7,15] k)   =>   slice f16[2,10,10,15] (custom-call(pad f16[2,10,10,8] (x), 0),
                                                                                  pad f16[3,3,8,16] (k, 0)))

Only if no array grows by a factor above 1.35. Three input features become four if the output has 32 or 64. Features of integers
become multiples of 32 if the result is an integer too, otherwise of four, also those that are in vectors already (dimension `?`
of the labels). Their input and result must not become twice as large. Convolutions in groups stay. XLA's
`CudnnPadForConvolutions`.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import OperandLabels
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace
from hlo_run.target import TargetSpec

# The operand numbers of input, filter and result of the forward convolution; -1 is the result of the call.
_PLACES = {
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}
_MULTIPLE, _LARGEST_GROWTH = 8, 1.35
_FORWARD = ("__cudnn$convForward", "__cudnn$convBiasActivationForward")
# The number of features, and the first GPU whose tensor cores take so many integers.
_INTEGER_MULTIPLES = ((32, (7, 5)), (4, (6, 1)))
_WIDEST, _TOO_LARGE_GROWTH = 32, 2


class CudnnPadForConvolutions(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cudnn_pad_for_convolutions"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        replaced: list[HloInstruction] = []
        for call in module.instructions_of("custom-call"):
            shapes = _padded_integer_shapes(call, ctx.target)
            if shapes is None and ctx.target.sm >= 70:
                shapes = _padded_shapes(call)
            if shapes is not None:
                module.replace(call, _padded_call(call, shapes))
                replaced.append(call)
        remove_unused(replaced)


def _padded_shapes(call: HloInstruction) -> dict[int, Shape] | None:
    """Return the padded shapes of operands and result (key -1); None if no padding is needed or it is not worthwhile."""
    places = _PLACES.get(call.custom_call_target)
    if places is None or not call.shape.is_tuple or call.shape.tuple_shapes[0].element_type != "f16":
        return None
    if call.feature_group_count > 1:
        return None
    old = {0: call.operands[0].shape, 1: call.operands[1].shape, -1: call.shape.tuple_shapes[0]}
    labels = call.dim_labels
    source, weights, result = places
    inputs, outputs = old[source].dims[labels.input.second_dim], old[result].dims[labels.output.second_dim]
    if inputs == 3 and outputs in (32, 64):
        inputs = 4
    else:
        inputs, outputs = (-(-size // _MULTIPLE) * _MULTIPLE for size in (inputs, outputs))
    new = dict(old)
    new[source] = _with_dim(new[source], labels.input.second_dim, inputs)
    new[weights] = _with_dim(new[weights], labels.kernel.first_dim, inputs)
    new[weights] = _with_dim(new[weights], labels.kernel.second_dim, outputs)
    new[result] = _with_dim(new[result], labels.output.second_dim, outputs)
    is_small = all(new[place].element_count <= _LARGEST_GROWTH * old[place].element_count for place in old)
    return new if new != old and (inputs == 4 or is_small) else None


def _padded_integer_shapes(call: HloInstruction, target: TargetSpec) -> dict[int, Shape] | None:
    """Return the padded shapes of all operands and of the result (key -1) of a convolution of integers, or None."""
    if call.custom_call_target not in _FORWARD or not call.shape.is_tuple or not call.operands[0].shape.dtype.is_integer:
        return None
    if call.feature_group_count > 1:  # XLA pads them, and the groups no longer have their features
        return None
    found = (_at_multiples(call, m) for m, first in _INTEGER_MULTIPLES if target.compute_capability >= first)
    return next((shapes for shapes in found if shapes is not None), None)


def _at_multiples(call: HloInstruction, multiple: int) -> dict[int, Shape] | None:
    old = {number: operand.shape for number, operand in enumerate(call.operands)}
    old[-1] = call.shape.tuple_shapes[0]
    labels = call.dim_labels
    vectors = {
        -1: _vector_size(labels.output, old[-1]),
        0: _vector_size(labels.input, old[0]),
        1: _vector_size(labels.kernel, old[1]),
    }
    if any(multiple % size for size in vectors.values()) or not _may_be_vectors(call, multiple):
        return None
    new = dict(old)

    def pad(number: int, dim: int, vector_size: int) -> None:
        step = multiple // vector_size
        new[number] = _with_dim(new[number], dim, -(-new[number].dims[dim] // step) * step)

    pad(0, labels.input.second_dim, vectors[0])
    pad(1, labels.kernel.first_dim, vectors[1])
    pad(1, labels.kernel.second_dim, 1)
    if len(call.operands) > 2:
        pad(2, 0, 1)
    for number in (-1, 3) if len(call.operands) > 3 else (-1,):
        pad(number, labels.output.second_dim, vectors[-1])
    is_small = all(new[place].element_count < _TOO_LARGE_GROWTH * old[place].element_count for place in (0, -1))
    return new if is_small and any(new[n] != old[n] for n in old if n >= 0) else None


def _vector_size(labels: OperandLabels, shape: Shape) -> int:
    """Return the size of the dimension that has no label, which holds features too; 1 if there is none."""
    named = {labels.first_dim, labels.second_dim, *labels.spatial_dims}
    return prod(size for dim, size in enumerate(shape.dims) if dim not in named)


def _may_be_vectors(call: HloInstruction, multiple: int) -> bool:
    """Return True if cuDNN convolves integers in vectors of that size, with this window and these types."""
    labels, window = call.dim_labels, call.window
    source, weights = (operand.shape for operand in call.operands[:2])
    if not weights.dtype.is_integer or len(window.dims) != 2:
        return False
    if any(dim.base_dilation != 1 or dim.window_dilation != 1 for dim in window.dims):
        return False
    if multiple < _WIDEST:
        return True
    sizes = zip(labels.input.spatial_dims, labels.kernel.spatial_dims, strict=True)
    is_wide = all(source.dims[one] > weights.dims[other] - 1 for one, other in sizes)
    return is_wide and call.shape.tuple_shapes[0].dtype.is_integer


def _with_dim(shape: Shape, dim: int, size: int) -> Shape:
    return replace(shape, dims=(*shape.dims[:dim], size, *shape.dims[dim + 1 :]))


def _padded_call(call: HloInstruction, shapes: dict[int, Shape]) -> HloInstruction:
    """Return the replacement of the call: a tuple of the same shape."""
    editor = Editor(call)
    operands = [_padded(editor, operand, shapes.get(number, operand.shape)) for number, operand in enumerate(call.operands)]
    result, workspace = call.shape.tuple_shapes
    made = editor.computation.add(copy_instruction(call, operands, Shape.make_tuple((shapes[-1], workspace))))
    if shapes[-1] == result:
        return made
    value = editor.slice(editor.element(made, 0), [0] * result.rank, result.dims)
    return editor.tuple([value, editor.constant([], workspace.element_type)])


def _padded(editor: Editor, value: HloInstruction, shape: Shape) -> HloInstruction:
    if value.shape.dims == shape.dims:
        return value
    edges = [(0, new - old, 0) for old, new in zip(value.shape.dims, shape.dims, strict=True)]
    return editor.pad(value, editor.constant(0, shape.element_type), edges)
