"""Recognises convolutions that are gradients of another convolution, and those in a form that cuDNN has.

The gradient by the input is a convolution of the result's gradient, dilated, with the reversed filter. The gradient by the
filter is a convolution of the input and the result's gradient with batch and features exchanged. Libraries have kernels for
both, which take the window and the dimension numbers of the forward convolution.
"""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.attributes.table import DimLabels, Window, WindowDim
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import OperandLabels
from hlo_run.hlo.views.convolutions import Convolution


class Forward(Struct, frozen=True):
    """The window and the dimension numbers of the forward convolution whose gradient another one is."""

    window: Window
    labels: DimLabels


def has_form_of_library(convolution: HloInstruction) -> bool:
    """True for a convolution that cuDNN computes in one of its directions, for any element types. XLA's `ConvIsLowerable`."""
    window = convolution.window
    if as_backward_filter(convolution) or as_backward_input(convolution):
        return True
    return is_forward_of_library(window) and all(operand.shape.element_count for operand in convolution.operands)


def is_forward_of_library(window: Window) -> bool:
    """True if cuDNN has a forward convolution with this window: at most three dimensions, none reversed, or both of two."""
    turned = {dim.reversal for dim in window.dims}
    return len(window.dims) <= 3 and (turned <= {False} or (turned == {True} and len(window.dims) == 2))


def as_backward_filter(convolution: HloInstruction) -> Forward | None:
    """Return the forward convolution if this one looks like its gradient by the filter, else None.

    XLA's `MatchBackwardFilter` guesses: an operand is the gradient of a result, not a filter, if it is larger than the
    convolution's result along all window dimensions, or along one if it is dilated (the forward convolution had a stride).
    """
    view = Convolution.of(convolution)
    labels, window = view.labels, view.window
    if view.feature_groups > 1:
        return None
    if any(dim.stride != 1 or dim.base_dilation != 1 or dim.pad_low < 0 or dim.reversal for dim in window.dims):
        return None
    sizes = [convolution.shape.dims[dim] for dim in labels.output.spatial_dims]
    is_larger = [dim.size > size for dim, size in zip(window.dims, sizes, strict=True)]
    is_dilated = any(dim.window_dilation != 1 for dim in window.dims)
    if not any(is_larger) or not (is_dilated or all(is_larger)):
        return None
    source = convolution.operands[0].shape.dims
    inputs = [source[dim] for dim in labels.input.spatial_dims]
    dims: list[WindowDim] = []
    for dim, size, extent in zip(window.dims, sizes, inputs, strict=True):
        needed = size + (dim.size - 1) * dim.window_dilation - extent - dim.pad_low
        dims.append(WindowDim(size, dim.window_dilation, dim.pad_low, _high(dim.pad_low, needed, dim.window_dilation)))
    if any(dim.pad_high < 0 for dim in dims):
        return None
    return Forward(Window(tuple(dims)), _filter_labels(labels))


def _filter_labels(labels: DimLabels) -> DimLabels:
    """Exchange batch and features of the input. The operand becomes the forward result, the result the forward filter."""
    given, kernel, result = labels.input, labels.kernel, labels.output
    return DimLabels(
        OperandLabels("bf", given.second_dim, given.first_dim, given.spatial_dims),
        OperandLabels("io", result.first_dim, result.second_dim, result.spatial_dims),
        OperandLabels("bf", kernel.first_dim, kernel.second_dim, kernel.spatial_dims),
    )


def as_backward_input(convolution: HloInstruction) -> Forward | None:
    """Return the forward convolution if this one looks like its gradient by the input, else None.

    It does if the filter is reversed, or if the input is dilated and the filter has one element or is constant.
    XLA's `MatchBackwardInput`.
    """
    view = Convolution.of(convolution)
    labels, window = view.labels, view.window
    if view.has_groups:
        return None
    if any(dim.stride != 1 or dim.window_dilation != 1 or dim.reversal for dim in window.dims):
        return None
    if not is_reversed(convolution) and not _is_its_own_reverse(convolution, window):
        return None
    source, result = convolution.operands[0].shape.dims, convolution.shape.dims
    dims: list[WindowDim] = []
    for dim, given, made in zip(window.dims, labels.input.spatial_dims, labels.output.spatial_dims, strict=True):
        low, stride = dim.size - 1 - dim.pad_low, dim.base_dilation
        needed = dim.size + stride * (source[given] - 1) - result[made] - low
        dims.append(WindowDim(dim.size, stride, low, _high(low, needed, stride)))
    if any(dim.pad_low < 0 or dim.pad_high < 0 for dim in dims):
        return None
    kernel = labels.kernel
    turned = OperandLabels("io", kernel.second_dim, kernel.first_dim, kernel.spatial_dims)
    return Forward(Window(tuple(dims)), DimLabels(labels.output, turned, labels.input))


def is_reversed(convolution: HloInstruction) -> bool:
    """True if the filter is reversed along all window dimensions and along no others."""
    weights, labels = convolution.operands[1], convolution.dim_labels
    if weights.opcode != "reverse" or not labels.kernel.spatial_dims:
        return False
    return sorted(weights.dimensions) == sorted(labels.kernel.spatial_dims)


def _is_its_own_reverse(convolution: HloInstruction, window: Window) -> bool:
    """True if reversing the filter costs nothing. Without dilation such a convolution is still a forward convolution."""
    has_holes = any(dim.base_dilation != 1 for dim in window.dims)
    return has_holes and (convolution.operands[1].opcode == "constant" or all(dim.size == 1 for dim in window.dims))


def _high(low: int, needed: int, stride: int) -> int:
    """Return the high padding that is nearest to the low padding and gives the same number of windows."""
    return max(needed, min(low, needed + stride - 1))
