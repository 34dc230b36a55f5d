"""`ConvolutionThunk` in its three directions: windows gathered as the rows of a matrix (im2col), then products by BLAS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hlo_run.artifact import ConvolutionThunk, WindowSpec
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.backends.library.blas import multiply

# The gathered windows of some places at a time: about what a second-level cache holds.
_GATHERED_BYTES = 1 << 20
Window = tuple[WindowSpec, ...]


def convolution_call(thunk: ConvolutionThunk) -> LibraryCall:
    """Return the call of a convolution. Arrays meet as [batch, *spatial, feature] and [*spatial, in, out]."""
    arrays = {"source": thunk.source, "weights": thunk.weights, "result": thunk.result}
    target = {"forward": "result", "backward-input": "source", "backward-filter": "weights"}[thunk.direction]
    given = [name for name in arrays if name != target]
    extras = [spec for spec in (thunk.bias, thunk.side) if spec is not None]
    inputs = (*(arrays[name] for name in given), *extras)
    kind = np.dtype(np.float64 if any(spec.dtype == "f64" for spec in arrays.values()) else np.float32)
    places = {name: _major_order(thunk, name) for name in arrays}
    spatial = [thunk.source.dims[dim] for dim in thunk.numbers.source[2:]]
    work = _direction(thunk, spatial)

    def compute(values: Sequence[Array], results: Sequence[Array]) -> None:
        operands = [value.astype(kind, copy=False).transpose(places[name]) for name, value in zip(given, values, strict=False)]
        out = work(operands[0], operands[1]).transpose(np.argsort(places[target]))
        results[0][...] = _finish(thunk, out, values[2:]).astype(results[0].dtype, copy=False)

    return LibraryCall(inputs, (arrays[target],), compute)


def _major_order(thunk: ConvolutionThunk, name: str) -> tuple[int, ...]:
    """Return the dimensions of one array as [batch, *spatial, feature], or of the weights as [*spatial, in, out]."""
    if name == "weights":
        inputs, outputs, *spatial = thunk.numbers.kernel
        return (*spatial, inputs, outputs)
    batch, feature, *spatial = thunk.numbers.source if name == "source" else thunk.numbers.result
    return (batch, *spatial, feature)


def _direction(thunk: ConvolutionThunk, spatial: Sequence[int]) -> Callable[[Array, Array], Array]:
    window, groups = thunk.window, thunk.feature_groups
    if thunk.direction == "backward-input":
        return lambda weights, result: _backward_input(weights, result, window, groups, spatial)
    if thunk.direction == "backward-filter":
        return lambda source, result: _backward_filter(source, result, window, groups)
    if thunk.batch_groups > 1:
        return lambda source, weights: forward(
            _groups_beside_features(source, thunk.batch_groups), weights, window, thunk.batch_groups
        )
    return lambda source, weights: forward(source, weights, window, groups)


def _groups_beside_features(source: Array, groups: int) -> Array:
    """Return [batch / groups, .., groups * features]: parts of the batch become groups of features."""
    parts = np.split(source, groups)
    return np.concatenate(parts, axis=-1)


def _finish(thunk: ConvolutionThunk, value: Array, extras: Sequence[Array]) -> Array:
    """Do what cuDNN does after the sums: scale, side input, bias, activation."""
    number = value.dtype.type
    rest = list(extras)
    bias = rest.pop(0) if thunk.bias is not None else None
    side = rest.pop(0) if thunk.side is not None else None
    if thunk.scale != 1.0:
        value = value * number(thunk.scale)
    if side is not None:
        value = value + number(thunk.side_scale) * side.astype(value.dtype)
    if bias is not None:
        shape = [1] * value.ndim
        shape[thunk.numbers.result[1]] = -1
        value = value + bias.astype(value.dtype).reshape(shape)
    return _activate(value, thunk.activation, thunk.leaky_alpha)


def _activate(value: Array, activation: str, leaky_alpha: float) -> Array:
    number = value.dtype.type
    match activation:
        case "kRelu":
            return np.maximum(value, 0)
        case "kRelu6":
            return np.clip(value, 0, 6)
        case "kElu":
            return np.where(value > 0, value, np.expm1(np.minimum(value, 0)))
        case "kLeakyRelu":
            return np.where(value > 0, value, value * number(leaky_alpha))
        case "kSigmoid":
            return number(1) / (number(1) + np.exp(-value))
        case "kTanh":
            return np.tanh(value)
        case _:
            return value


# ---- the three directions -------------------------------------------------------------------------------------------


def forward(source: Array, weights: Array, window: Window, groups: int) -> Array:
    """Return [batch, *places, out] of [batch, *spatial, in] and [*window, in / groups, out]."""
    flipped = tuple(axis for axis, dim in enumerate(window) if dim.is_reversed)
    weights = np.flip(weights, flipped)
    places = tuple(places_of(dim, size) for dim, size in zip(window, source.shape[1:-1], strict=True))
    out = np.zeros((source.shape[0], *places, weights.shape[-1]), source.dtype)
    if not out.size or not source.size or not weights.size:
        return out
    views = windows(source, window, places)
    if groups == source.shape[-1] and groups > 1:
        _each_feature_alone(views, weights, out)
        return out
    wide, deep = weights.shape[-1] // groups, weights.shape[-2]
    for group in range(groups):
        columns = slice(group * wide, (group + 1) * wide)
        matrix = np.ascontiguousarray(weights[..., columns]).reshape(-1, wide)
        _gathered_products(views[..., group * deep : (group + 1) * deep], matrix, out[..., columns])
    return out


def _each_feature_alone(views: Array, weights: Array, out: Array) -> None:
    """Depthwise: every input feature has its own outputs, so there is nothing to sum but the window."""
    features = views.shape[-1]
    each = weights.shape[-1] // features
    target = out.reshape(*out.shape[:-1], features, each)
    rank = weights.ndim - 2
    for place in np.ndindex(*weights.shape[:rank]):
        seen = views[(slice(None),) * (rank + 1) + place]
        target += seen[..., None] * weights[place].reshape(features, each)


def _gathered_products(views: Array, matrix: Array, out: Array) -> None:
    """Gather windows, some images or rows at a time, and multiply them by the weights."""
    depth, wide = matrix.shape
    images = out.shape[0]
    per_image = math.prod(out.shape[1:-1]) * depth * matrix.itemsize
    if per_image <= _GATHERED_BYTES or out.ndim == 2:
        step = max(1, _GATHERED_BYTES // max(per_image, 1))
        for first in range(0, images, step):
            _product_of(views[first : first + step], matrix, out[first : first + step], wide)
        return
    per_row = per_image // out.shape[1]
    step = max(1, _GATHERED_BYTES // max(per_row, 1))
    for image in range(images):
        for first in range(0, out.shape[1], step):
            part = (slice(image, image + 1), slice(first, first + step))
            _product_of(views[part], matrix, out[part], wide)


def _product_of(views: Array, matrix: Array, out: Array, wide: int) -> None:
    rows = views.reshape(-1, matrix.shape[0])
    product = np.empty((rows.shape[0], wide), matrix.dtype)
    multiply(rows, matrix, product)
    out[...] = product.reshape(out.shape)


def _backward_input(weights: Array, result: Array, window: Window, groups: int, spatial: Sequence[int]) -> Array:
    """The gradient of the source: the result, spread out by the stride, under the window turned round."""
    turned: list[WindowSpec] = []
    for dim, size, places in zip(window, spatial, result.shape[1:-1], strict=True):
        reach = (dim.size - 1) * dim.window_dilation
        low = reach - dim.pad_low
        high = size + reach - 1 - low - (places - 1) * dim.stride
        turned.append(
            replace(dim, stride=1, base_dilation=dim.stride, pad_low=low, pad_high=high, is_reversed=not dim.is_reversed)
        )
    *taps, deep, outputs = weights.shape
    split = weights.reshape(*taps, deep, groups, outputs // groups)
    swapped = np.moveaxis(split, -1, -3)  # [*taps, out / groups, in / groups, groups]
    swapped = np.moveaxis(swapped, -1, -2).reshape(*taps, outputs // groups, groups * deep)
    return forward(result, swapped, tuple(turned), groups)


def _backward_filter(source: Array, result: Array, window: Window, groups: int) -> Array:
    """The gradient of the weights: the gathered windows, turned, times the result."""
    views = windows(source, window, result.shape[1:-1])
    deep, wide = source.shape[-1] // groups, result.shape[-1] // groups
    taps = [dim.size for dim in window]
    out = np.zeros((*taps, deep, groups * wide), source.dtype)
    depth = math.prod(taps) * deep
    step = max(1, _GATHERED_BYTES // max(1, math.prod(result.shape[1:-1]) * depth * source.itemsize))
    for group in range(groups):
        total = np.zeros((depth, wide), source.dtype)
        for first in range(0, source.shape[0], step):
            rows = views[first : first + step, ..., group * deep : (group + 1) * deep].reshape(-1, depth)
            columns = result[first : first + step, ..., group * wide : (group + 1) * wide].reshape(-1, wide)
            product = np.empty_like(total)
            multiply(rows.T, columns, product)
            total += product
        out[..., group * wide : (group + 1) * wide] = total.reshape(*taps, deep, wide)
    flipped = tuple(axis for axis, dim in enumerate(window) if dim.is_reversed)
    return np.flip(out, flipped)


# ---- windows --------------------------------------------------------------------------------------------------------


def places_of(dim: WindowSpec, size: int) -> int:
    """Return how many places a window has along a dimension of `size` elements."""
    spread = (size - 1) * dim.base_dilation + 1 if size else 0
    left = dim.pad_low + spread + dim.pad_high - ((dim.size - 1) * dim.window_dilation + 1)
    return left // dim.stride + 1 if left >= 0 else 0


def windows(source: Array, window: Window, places: Sequence[int]) -> Array:
    """Return a view [batch, *places, *window, feature] of the padded source."""
    padded = _spread(source, window, places)
    batch, *steps, feature = padded.strides
    outer = [step * dim.stride for step, dim in zip(steps, window, strict=True)]
    inner = [step * dim.window_dilation for step, dim in zip(steps, window, strict=True)]
    shape = (padded.shape[0], *places, *(dim.size for dim in window), padded.shape[-1])
    return as_strided(padded, shape, (batch, *outer, *inner, feature), writeable=False)


def _spread(source: Array, window: Window, places: Sequence[int]) -> Array:
    """Return the source with holes and padding of zeros, as far as the windows reach; negative padding cuts off."""
    needed = [
        (count - 1) * dim.stride + (dim.size - 1) * dim.window_dilation + 1 if count else 0
        for dim, count in zip(window, places, strict=True)
    ]
    spatial = source.shape[1:-1]
    if all(
        dim.pad_low == 0 and dim.base_dilation == 1 and reach <= size
        for dim, reach, size in zip(window, needed, spatial, strict=True)
    ):
        return source
    out = np.zeros((source.shape[0], *needed, source.shape[-1]), source.dtype)
    taken: list[slice] = [slice(None)]
    put: list[slice] = [slice(None)]
    for dim, reach, size in zip(window, needed, spatial, strict=True):
        hole = dim.base_dilation
        first = max(0, -(dim.pad_low // hole))
        start = dim.pad_low + first * hole
        count = max(0, min(size - first, (reach - start + hole - 1) // hole))
        taken.append(slice(first, first + count))
        put.append(slice(start, start + count * hole, hole) if count else slice(0, 0))
    out[tuple(put)] = source[tuple(taken)]
    return out
