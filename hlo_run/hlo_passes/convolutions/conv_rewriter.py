"""Rewrite convolutions of floats and of s8, and gradients of floats, to calls of cuDNN.

    c = f32[2,6,6,8] convolution(x, k), window=..   =>   v = (f32[2,6,6,8], u8[0]) custom-call(x, k), window=..,
                                                             custom_call_target="__cudnn$convForward"
                                                         c = get-tuple-element(v), index=0
    c = convolution(g, reverse(k)), window=..       =>   custom-call(g, k), .., custom_call_target="__cudnn$convBackwardInput"
    c = convolution(x, g), window={size=10x10 ..}   =>   custom-call(x, g), .., custom_call_target="__cudnn$convBackwardFilter"

The window and dimension numbers of a gradient are those of the forward convolution (`backward_convolution.py`). Batch groups
become feature groups, unless the convolution is a filter gradient. A convolution to s32 whose operands have s8 numbers is
a call until `cudnn-fused-convolution-rewriter` has made one of s8 of it, or a convolution again. `conv-padding-legalization`
handles windows that cuDNN does not support (dilation, uneven or negative padding). XLA's `ConvRewriter`. Without cuDNN, numpy
computes these calls.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.backward_convolution import (
    Forward,
    as_backward_filter,
    as_backward_input,
    is_forward_of_library,
    is_reversed,
)
from hlo_run.hlo.attributes.table import DimLabels
from hlo_run.hlo.edit import Editor, Leftovers
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.convolutions.exact_conversions import keeps_value
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config, library_call, result_of
from hlo_run.pass_support.hlo_pass import PassContext

_TYPES = ("f16", "bf16", "f32", "f64")
_CONFIG = {"activation_mode": "kNone", "conv_result_scale": 1, "side_input_scale": 0, "leakyrelu_alpha": 0}


class ConvRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conv-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        unused = Leftovers()
        for convolution in module.instructions_of("convolution"):
            call = None
            if _has_types_of_library(convolution):
                call = _library_call(convolution)
            elif _sums_small_integers(convolution):
                call = _forward_call(convolution)
            if call is None:
                continue
            assert convolution.parent is not None, "the instruction is in a computation"
            convolution.parent.add(call)
            call.name = module.unique_instruction_name(_NAMES[call.custom_call_target])
            module.replace(convolution, convolution.parent.add(result_of(call)))
            unused.add(convolution)
        unused.remove()


def _has_types_of_library(convolution: HloInstruction) -> bool:
    shapes = (convolution.shape, *(operand.shape for operand in convolution.operands[:2]))
    if len({shape.element_type for shape in shapes}) != 1 or shapes[0].element_type not in _TYPES:
        return False
    return all(shape.element_count for shape in shapes)


def _sums_small_integers(convolution: HloInstruction) -> bool:
    """Return True for a convolution to s32 of numbers that fit in s8."""
    shapes = (convolution.shape, *(operand.shape for operand in convolution.operands[:2]))
    if shapes[0].element_type != "s32" or not all(shape.element_count for shape in shapes):
        return False
    return all(o.shape.element_type in ("s8", "s32") and keeps_value(o, "s8") for o in convolution.operands[:2])


def _library_call(convolution: HloInstruction) -> HloInstruction | None:
    forward = as_backward_filter(convolution)
    if forward is not None:
        groups = convolution.batch_group_count
        return _call(convolution, "__cudnn$convBackwardFilter", list(convolution.operands), forward, groups)
    forward = as_backward_input(convolution)
    if forward is not None:
        operands = [convolution.operands[0], _turned_weights(convolution)]
        return _call(convolution, "__cudnn$convBackwardInput", operands, forward, 1)
    return _forward_call(convolution)


def _forward_call(convolution: HloInstruction) -> HloInstruction | None:
    window = convolution.window
    if not is_forward_of_library(window):
        return None
    source, weights = convolution.operands[:2]
    groups = convolution.batch_group_count
    labels = convolution.dim_labels
    if groups > 1:
        source = _groups_to_features(Editor(convolution, derives=False), source, labels, groups)
        # XLA makes the call from a convolution with feature groups, which stays without users and takes a name.
        others = {key: value for key, value in convolution.attrs.items() if key not in ("batch_group_count", "metadata")}
        others["feature_group_count"] = groups
        Editor(convolution).add_with("convolution", convolution.shape, [source, weights], others, name=convolution.name)
    else:
        groups = convolution.feature_group_count
    return _call(convolution, "__cudnn$convForward", [source, weights], Forward(window, labels), groups)


def _turned_weights(convolution: HloInstruction) -> HloInstruction:
    """Return the filter of the forward convolution."""
    weights = convolution.operands[1]
    if is_reversed(convolution):
        return weights.operands[0]
    labels = convolution.dim_labels
    if weights.opcode != "constant":
        return weights
    return Editor(convolution).add("reverse", weights.shape, [weights], dimensions=labels.kernel.spatial_dims)


_NAMES = {
    "__cudnn$convForward": "cudnn-conv",
    "__cudnn$convBackwardInput": "cudnn-conv-bw-input",
    "__cudnn$convBackwardFilter": "cudnn-conv-bw-filter",
}


def _call(
    convolution: HloInstruction, target: str, operands: list[HloInstruction], forward: Forward, groups: int
) -> HloInstruction:
    attrs: dict[str, AttributeValue] = {"window": forward.window, "dim_labels": forward.labels}
    if groups > 1:
        attrs["feature_group_count"] = groups
    if "operand_precision" in convolution.attrs:
        attrs["operand_precision"] = convolution.operand_precision
    attrs |= {"custom_call_target": target, "backend_config": gpu_backend_config("cudnn_conv_backend_config", _CONFIG)}
    return library_call(convolution, "custom-call", operands, Shape.array("u8", (0,)), attrs)


def _groups_to_features(editor: Editor, source: HloInstruction, labels: DimLabels, groups: int) -> HloInstruction:
    """Return [batch / groups, .., groups * features]: each part of the batch becomes separate features."""
    batch, feature = labels.input.first_dim, labels.input.second_dim
    dims = source.shape.dims
    split = [*dims[:batch], groups, dims[batch] // groups, *dims[batch + 1 :]]
    parts = editor.reshape(source, split)
    # The group dimension is right before the features, and is merged with them.
    rest = [dim for dim in range(len(split)) if dim != batch]
    order = list(rest)
    order.insert(rest.index(feature + 1 if feature > batch else feature), batch)
    moved = editor.transpose(parts, order)
    return editor.reshape(moved, [*_merged(dims, batch, feature, groups)])


def _merged(dims: tuple[int, ...], batch: int, feature: int, groups: int) -> tuple[int, ...]:
    sizes = list(dims)
    sizes[batch] //= groups
    sizes[feature] *= groups
    return tuple(sizes)
