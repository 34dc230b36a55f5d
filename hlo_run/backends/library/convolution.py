"""`ConvolutionThunk` in its three directions: gather the windows as rows of a matrix (im2col), then multiply by BLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import numpy as np

from hlo_run.artifact import ConvolutionThunk, WindowSpec
from hlo_run.artifact.library_thunks import Activation
from hlo_run.backends.library.arrays import Array, LibraryCall, run_all, sparing
from hlo_run.backends.library.col2im import bind_scattered, is_scattered
from hlo_run.backends.library.im2col import Step, Window, bind_backward_filter, bind_forward
from hlo_run.elementary import functions
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace


def convolution_call(thunk: ConvolutionThunk) -> LibraryCall:
    """Return the call of a convolution. Internally arrays are [batch, *spatial, feature] and weights [*spatial, in, out]."""
    arrays = {"source": thunk.source, "weights": thunk.weights, "result": thunk.result}
    target = {"forward": "result", "backward-input": "source", "backward-filter": "weights"}[thunk.direction]
    given = [name for name in arrays if name != target]
    extras = [spec for spec in (thunk.bias, thunk.side) if spec is not None]
    inputs = (*(arrays[name] for name in given), *extras)
    is_integral = DTYPES[arrays[given[0]].dtype].is_integer
    # f64 holds sums of integers exactly.
    kind = np.dtype(np.float64 if is_integral or any(spec.dtype == "f64" for spec in arrays.values()) else np.float32)
    places = {name: _major_order(thunk, name) for name in arrays}
    work = _direction(thunk)
    has_extras = thunk.bias is not None or thunk.side is not None or thunk.scale != 1.0 or thunk.activation != "kNone"

    def bind(values: Sequence[Array], results: Sequence[Array]) -> Callable[[], object]:
        operands = [value.transpose(places[name]) for name, value in zip(given, values, strict=False)]
        needs_copy = has_extras or results[0].dtype != kind
        total: Array = np.empty(results[0].shape, kind) if needs_copy else results[0]
        steps = work(operands[0], operands[1], total.transpose(places[target]))
        if needs_copy:
            steps.append(lambda: np.copyto(results[0], _stored(thunk, total, values[2:], is_integral), "unsafe"))
        return steps[0] if len(steps) == 1 else partial(run_all, steps)

    return LibraryCall.prepared(inputs, (arrays[target],), sparing(bind))


def _major_order(thunk: ConvolutionThunk, name: str) -> tuple[int, ...]:
    """Return the permutation of an array to [batch, *spatial, feature], or of the weights to [*spatial, in, out]."""
    if name == "weights":
        inputs, outputs, *spatial = thunk.numbers.kernel
        return (*spatial, inputs, outputs)
    batch, feature, *spatial = thunk.numbers.source if name == "source" else thunk.numbers.result
    return (batch, *spatial, feature)


def _direction(thunk: ConvolutionThunk) -> Callable[[Array, Array, Array], list[Step]]:
    window, groups = thunk.window, thunk.feature_groups
    if thunk.direction == "backward-input":
        return partial(_bind_backward_input, window, groups)
    if thunk.direction == "backward-filter":
        return lambda source, result, out: bind_backward_filter(source, result, window, groups, out)
    if thunk.batch_groups > 1:
        return partial(_bind_batch_groups, window, thunk.batch_groups)
    return lambda source, weights, out: bind_forward(source, weights, window, groups, out)


def _bind_batch_groups(window: Window, groups: int, source: Array, weights: Array, out: Array) -> list[Step]:
    """Turn batch groups into feature groups: the source becomes [batch / groups, .., groups * features]."""
    parts = np.split(source, groups)
    beside = np.concatenate(parts, axis=-1)
    return [lambda: np.concatenate(parts, axis=-1, out=beside), *bind_forward(beside, weights, window, groups, out)]


def _bind_backward_input(window: Window, groups: int, weights: Array, result: Array, out: Array) -> list[Step]:
    """Bind the gradient of the source: a forward convolution of the dilated result under the reversed window, or col2im."""
    if is_scattered(window):
        return bind_scattered(weights, result, window, groups, out)
    turned: list[WindowSpec] = []
    for dim, size, places in zip(window, out.shape[1:-1], result.shape[1:-1], strict=True):
        reach = (dim.size - 1) * dim.window_dilation
        low = reach - dim.pad_low
        high = size + reach - 1 - low - (places - 1) * dim.stride
        turned.append(
            replace(dim, stride=1, base_dilation=dim.stride, pad_low=low, pad_high=high, is_reversed=not dim.is_reversed)
        )
    *taps, deep, outputs = weights.shape
    each = outputs // groups
    swapped = np.empty((*taps, each, groups, deep), weights.dtype)
    parts = [(swapped[..., group, :], np.swapaxes(weights[..., group * each :][..., :each], -1, -2)) for group in range(groups)]
    steps: list[Step] = [partial(np.copyto, *part) for part in parts]
    return steps + bind_forward(result, swapped.reshape(*taps, each, groups * deep), tuple(turned), groups, out)


def _stored(thunk: ConvolutionThunk, total: Array, extras: Sequence[Array], is_integral: bool) -> Array:
    """Return the stored value. Sums of integers become f32 before anything is applied; results of s8 are clamped."""
    if not is_integral:
        return _finish(thunk, total, extras)
    if thunk.result.dtype == "s32":
        sums = total.astype(np.int64).astype(np.int32)  # it wraps around
        return np.maximum(sums, 0) if thunk.activation == "kRelu" else sums
    value = _finish(thunk, total.astype(np.float32), extras)
    return np.trunc(np.clip(np.nan_to_num(value, nan=0.0), -128, 127)) if thunk.result.dtype == "s8" else value


def _finish(thunk: ConvolutionThunk, value: Array, extras: Sequence[Array]) -> Array:
    """Apply cuDNN's fused operations: scale, side input, bias, activation."""
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


def _activate(value: Array, activation: Activation, leaky_alpha: float) -> Array:
    number = value.dtype.type
    match activation:
        case "kRelu":
            return np.maximum(value, 0)
        case "kRelu6":
            return np.clip(value, 0, 6)
        case "kElu":
            return np.where(value > 0, value, functions.expm1.native(np.minimum(value, 0)))
        case "kLeakyRelu":
            return np.where(value > 0, value, value * number(leaky_alpha))
        case "kSigmoid":
            return functions.logistic.native(value)
        case "kTanh":
            return functions.tanh.native(value)
        case "kNone":
            return value
        case _:
            assert_never(activation)
