"""Pad the features of f16 convolutions with zeros to multiples of eight, for tensor cores.

    custom-call(f16[2,10,10,7] x, f16[3,3,7,15] k)   =>   slice f16[2,10,10,15] (custom-call(pad f16[2,10,10,8] (x), 0),
                                                                                  pad f16[3,3,8,16] (k, 0)))

Only if no array grows by a factor above 1.35. Three input features become four if the output has 32 or 64. XLA's
`CudnnPadForConvolutions` without 8-bit integers, for which cuDNN is not used here.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext

# The operand numbers of input, filter and result of the forward convolution; -1 is the result of the call.
_PLACES = {
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}
_MULTIPLE, _LARGEST_GROWTH = 8, 1.35


class CudnnPadForConvolutions(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cudnn_pad_for_convolutions"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        if not ctx.target.sm >= 70:
            return
        replaced: list[HloInstruction] = []
        for call in module.instructions_of("custom-call"):
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


def _with_dim(shape: Shape, dim: int, size: int) -> Shape:
    return replace(shape, dims=(*shape.dims[:dim], size, *shape.dims[dim + 1 :]))


def _padded_call(call: HloInstruction, shapes: dict[int, Shape]) -> HloInstruction:
    """Return the replacement of the call: a tuple of the same shape."""
    editor = Editor(call)
    operands = [_padded(editor, operand, shapes[number]) for number, operand in enumerate(call.operands)]
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
