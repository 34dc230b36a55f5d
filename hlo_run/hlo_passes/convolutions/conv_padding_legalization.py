"""Rewrite convolution calls to the padding that cuDNN supports: equal on both sides, without dilation.

    custom-call(x, k), window={size=3 pad=1_2}          =>   p = pad(x, 0), padding=..x1_2x..
                                                             custom-call(p, k), window={size=3}
    custom-call(x, k), window={size=3 pad=-1_0}         =>   custom-call(slice(x), k), window={size=3}
    filter gradient, window={size=3 pad=1_2}            =>   of pad(x, 0), padding=..x0_1x.., window={size=3 pad=1_1}
    input gradient, window={size=3 pad=1_2}             =>   slice of a larger one, window={size=3 pad=1_1}

Base dilation (`lhs_dilate`) becomes interior padding; then so does the dilation of the filter. As in XLA, the new call has the
metadata of the old one, a pad of a forward convolution that of its operand, and the other new instructions have none. XLA's
`ConvPaddingLegalization`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.attributes.table import DimLabels, Window, WindowDim
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class ConvPaddingLegalization(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conv-padding-legalization"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for call in module.instructions_of("custom-call"):
            legalize = _LEGALIZE.get(call.custom_call_target)
            window = call.window
            made = legalize(Editor(call, derives=False), call, window) if legalize else None
            if made is not None:
                module.replace(call, made)
                replaced.append(call)
        remove_unused(replaced)


def _is_even(window: Window) -> bool:
    return all(dim.pad_low == dim.pad_high for dim in window.dims)


def _is_negative(window: Window) -> bool:
    return any(dim.pad_low < 0 or dim.pad_high < 0 for dim in window.dims)


def _again(editor: Editor, call: HloInstruction, source: HloInstruction, window: Window, shape: Shape) -> HloInstruction:
    made = copy_instruction(call, [source, *call.operands[1:]], shape)
    made.attrs["window"] = window
    return editor.computation.add(made)


def _forward(editor: Editor, call: HloInstruction, window: Window) -> HloInstruction | None:
    """Pad the input completely, or slice it where padding is negative."""
    has_holes = any(dim.base_dilation != 1 for dim in window.dims)
    if _is_even(window) and not has_holes and not _is_negative(window):
        return None
    labels = call.dim_labels
    places = labels.input.spatial_dims
    source, rank = call.operands[0], call.operands[0].shape.rank
    dims = list(window.dims)
    if has_holes or not _is_even(window):
        edges = [(0, 0, 0)] * rank
        for number, (place, dim) in enumerate(zip(places, dims, strict=True)):
            edges[place] = (max(dim.pad_low, 0), max(dim.pad_high, 0), dim.base_dilation - 1)
            dims[number] = replace(dim, pad_low=min(dim.pad_low, 0), pad_high=min(dim.pad_high, 0), base_dilation=1)
        if any(edge != (0, 0, 0) for edge in edges):
            source = _padded(editor, source, edges)
    if _is_negative(window):
        starts, limits = [0] * rank, list(source.shape.dims)
        for number, (place, dim) in enumerate(zip(places, dims, strict=True)):
            starts[place] = max(-dim.pad_low, 0)
            limits[place] -= max(-dim.pad_high, 0)
            dims[number] = replace(dim, pad_low=max(dim.pad_low, 0), pad_high=max(dim.pad_high, 0))
        source = editor.slice(source, starts, limits)
    weights = _spread_weights(editor, call, labels, dims)
    dims = [
        replace(dim, size=weights.shape.dims[d], window_dilation=1)
        for d, dim in zip(labels.kernel.spatial_dims, dims, strict=True)
    ]
    made = copy_instruction(call, [source, weights, *call.operands[2:]])
    made.attrs["window"] = Window(tuple(dims))
    return editor.computation.add(made)


def _spread_weights(editor: Editor, call: HloInstruction, labels: DimLabels, dims: list[WindowDim]) -> HloInstruction:
    """Return the filter with zeros in the gaps of a dilated window."""
    weights = call.operands[1]
    edges = [(0, 0, 0)] * weights.shape.rank
    for place, dim in zip(labels.kernel.spatial_dims, dims, strict=True):
        edges[place] = (0, 0, dim.window_dilation - 1)
    if all(edge == (0, 0, 0) for edge in edges):
        return weights
    return _padded(editor, weights, edges)


def _padded(editor: Editor, value: HloInstruction, edges: list[tuple[int, int, int]]) -> HloInstruction:
    """Pad with zeros; the pad has the value's metadata."""
    pad = editor.pad(value, editor.constant(0, value.shape.element_type), edges)
    if "metadata" in value.attrs:
        pad.attrs["metadata"] = value.attrs["metadata"]
    return pad


def _backward_filter(editor: Editor, call: HloInstruction, window: Window) -> HloInstruction | None:
    """Pad the input with the difference between the two sides."""
    if _is_even(window) or _is_negative(window):
        return None
    labels = call.dim_labels
    source = call.operands[0]
    edges = [(0, 0, 0)] * source.shape.rank
    for place, dim in zip(labels.input.spatial_dims, window.dims, strict=True):
        edges[place] = (max(dim.pad_low - dim.pad_high, 0), max(dim.pad_high - dim.pad_low, 0), 0)
    padded = editor.pad(source, editor.constant(0, source.shape.element_type), edges)
    return _again(editor, call, padded, _evened(window), call.shape)


def _backward_input(editor: Editor, call: HloInstruction, window: Window) -> HloInstruction | None:
    """Compute the gradient of the padding difference as well, and slice it off."""
    if _is_even(window) or _is_negative(window):
        return None
    labels = call.dim_labels
    result, workspace = call.shape.tuple_shapes
    sizes, starts = list(result.dims), [0] * result.rank
    for place, dim in zip(labels.input.spatial_dims, window.dims, strict=True):
        sizes[place] += abs(dim.pad_low - dim.pad_high)
        starts[place] = max(dim.pad_low - dim.pad_high, 0)
    larger = replace(result, dims=tuple(sizes))
    made = _again(editor, call, call.operands[0], _evened(window), Shape.make_tuple((larger, workspace)))
    limits = [start + size for start, size in zip(starts, result.dims, strict=True)]
    return editor.tuple([editor.slice(editor.element(made, 0), starts, limits), editor.element(made, 1)])


def _evened(window: Window) -> Window:
    """Return the window with the smaller of the two paddings on both sides."""
    return Window(
        tuple(
            replace(dim, pad_low=min(dim.pad_low, dim.pad_high), pad_high=min(dim.pad_low, dim.pad_high)) for dim in window.dims
        )
    )


_LEGALIZE = {
    "__cudnn$convForward": _forward,
    "__cudnn$convBiasActivationForward": _forward,
    "__cudnn$convBackwardFilter": _backward_filter,
    "__cudnn$convBackwardInput": _backward_input,
}
