"""Counts the products of a convolution, as XLA's `HloCostAnalysis::GetConvolutionFlops` does."""

from __future__ import annotations

import math

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.convolutions import Convolution


def convolution_products(convolution: HloInstruction, shape: Shape) -> int:
    """Return the number of products of a convolution, or of a custom call with its attributes, whose result has `shape`.

    Only products inside the input count: padding and holes of dilated inputs are free.
    """
    source, kernel = (operand.shape.dims for operand in convolution.operands[:2])
    result, view = shape.dims, Convolution.of(convolution)
    batch, features = source[view.labels.input.first_dim], source[view.labels.input.second_dim]
    products = features // view.feature_groups * result[view.labels.output.second_dim]
    products *= batch // view.batch_groups
    for dim in view.spatial:
        products *= _products_inside(dim.window, source[dim.input], kernel[dim.kernel], result[dim.output])
    return products


def _products_inside(window: WindowDim, length: int, taps: int, results: int) -> int:
    """Return how many pairs of a tap and a result meet an element of the input in one dimension."""
    total = 0
    for tap in range(taps):
        first = tap * window.window_dilation - window.pad_low
        # Positions first + stride * i of the dilated input, whose elements are at the multiples of its dilation.
        step = window.base_dilation // math.gcd(window.stride, window.base_dilation)
        for start in range(min(step, results)):
            if (first + window.stride * start) % window.base_dilation == 0:
                total += _count_inside(first, window.stride, start, step, results, (length - 1) * window.base_dilation)
                break
    return total


def _count_inside(first: int, stride: int, start: int, step: int, results: int, last: int) -> int:
    """Return how many i in start, start + step, .. below `results` have 0 <= first + stride * i <= last."""
    low = max(-(first // stride), start)  # the first i that is not before the input
    low = start + -(-(low - start) // step) * step
    high = min((last - first) // stride, results - 1)
    return max((high - low) // step + 1, 0)
