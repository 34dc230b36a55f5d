"""Let cuDNN compute convolutions of floats; groups of the batch become groups of features first.

    c = f32[2,6,6,8] convolution(x, k), window=..   =>   v = (f32[2,6,6,8], u8[0]) custom-call(x, k), window=..,
                                                             custom_call_target="__cudnn$convForward"
                                                         c = get-tuple-element(v), index=0

Windows that cuDNN does not know (holes between elements, uneven or negative padding) are left to
`conv-padding-legalization`. XLA's `ConvRewriter`, without its backward forms: a gradient is a forward convolution here. Where
there is no cuDNN, numpy does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hlo_run.hlo.attributes import DimLabels
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.shape import Shape
from hlo_run.pipeline.library_calls import gpu_backend_config, library_call, result_of
from hlo_run.pipeline.passes import PassContext

_TYPES = ("f16", "bf16", "f32", "f64")
_CONFIG = {"activation_mode": "kNone", "conv_result_scale": 1, "side_input_scale": 0, "leakyrelu_alpha": 0}
# What of the convolution goes to the call.
_KEPT = ("window", "dim_labels", "feature_group_count", "operand_precision")


@dataclass(frozen=True)
class ConvRewriter:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conv-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        replaced = [convolution for convolution in module.instructions_of("convolution") if _is_taken(convolution)]
        for convolution in replaced:
            assert convolution.parent is not None, "it stands in a computation"
            call = convolution.parent.add(_call(convolution))
            module.replace(convolution, convolution.parent.add(result_of(call)))
        remove_unused(replaced)


def _is_taken(convolution: HloInstruction) -> bool:
    shapes = (convolution.shape, *(operand.shape for operand in convolution.operands[:2]))
    if len({shape.element_type for shape in shapes}) != 1 or shapes[0].element_type not in _TYPES:
        return False
    return "window" in convolution.attrs and all(shape.element_count for shape in shapes)


def _call(convolution: HloInstruction) -> HloInstruction:
    source, weights = convolution.operands[:2]
    attrs: dict[str, Any] = {key: convolution.attrs[key] for key in _KEPT if key in convolution.attrs}
    groups = convolution.attrs.get("batch_group_count", 1)
    if groups > 1:
        labels: DimLabels = convolution.attrs["dim_labels"]
        source = _groups_to_features(Editor(convolution), source, labels, groups)
        attrs["feature_group_count"] = groups
    attrs |= {
        "custom_call_target": "__cudnn$convForward",
        "backend_config": gpu_backend_config("cudnn_conv_backend_config", _CONFIG),
    }
    return library_call(convolution, "cudnn-conv", [source, weights], Shape.array("u8", (0,)), attrs)


def _groups_to_features(editor: Editor, source: HloInstruction, labels: DimLabels, groups: int) -> HloInstruction:
    """Return [batch / groups, .., groups * features]: each part of the batch as features of its own."""
    batch, feature = labels.input.first_dim, labels.input.second_dim
    dims = source.shape.dims
    split = [*dims[:batch], groups, dims[batch] // groups, *dims[batch + 1 :]]
    parts = editor.reshape(source, split)
    # The group stands right before the features, and is merged with them.
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
