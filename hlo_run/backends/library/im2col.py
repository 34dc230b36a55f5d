"""Sums over windows as matrix products: gather the elements of the windows as rows (im2col), then multiply by BLAS.

All work is prepared once for arrays at fixed addresses. Rows and columns of the matrices follow the memory order of the arrays.
So results need no copy, and the source needs none if windows are single elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hlo_run.artifact import WindowSpec
from hlo_run.backends.library.arrays import Array
from hlo_run.backends.library.blas import product

# The bytes of windows that are gathered at a time: about the size of a second-level cache.
_GATHERED_BYTES = 1 << 20
Window = tuple[WindowSpec, ...]
Step: TypeAlias = "Callable[[], object]"


def bind_forward(source: Array, weights: Array, window: Window, groups: int, out: Array) -> list[Step]:
    """Return the steps that fill out[batch, *places, out].

    `source` is [batch, *spatial, in], `weights` is [*window, in / groups, out].
    """
    rank = len(window)
    flipped = tuple(axis for axis, dim in enumerate(window) if dim.is_reversed)
    weights = np.flip(weights, flipped)
    if not out.size or not source.size or not weights.size:
        return [partial(np.copyto, out, 0)]
    views, steps = _bind_windows(source, window, out.shape[1:-1], out.dtype)
    if groups == source.shape[-1] and groups > 1:
        return [*steps, partial(_each_feature_alone, views, weights, out)]
    wide, deep = weights.shape[-1] // groups, weights.shape[-2]
    for group in range(groups):
        columns = slice(group * wide, (group + 1) * wide)
        seen = views[..., group * deep : (group + 1) * deep]
        steps += _bind_sums(seen, range(rank + 1), weights[..., columns], out[..., columns])
    return steps


def bind_backward_filter(source: Array, result: Array, window: Window, groups: int, out: Array) -> list[Step]:
    """Return the steps that fill out[*window, in / groups, out], the gradient of the weights.

    `source` is [batch, *spatial, in], `result` is the gradient of the result [batch, *places, out].
    """
    rank = len(window)
    flipped = tuple(axis for axis, dim in enumerate(window) if dim.is_reversed)
    out = np.flip(out, flipped)
    if not out.size or not source.size or not result.size:
        return [partial(np.copyto, out, 0)]
    views, steps = _bind_windows(source, window, result.shape[1:-1], out.dtype)
    deep, wide = source.shape[-1] // groups, result.shape[-1] // groups
    for group in range(groups):
        columns = slice(group * wide, (group + 1) * wide)
        seen = views[..., group * deep : (group + 1) * deep]
        steps += _bind_sums(seen, range(rank + 1, 2 * rank + 2), result[..., columns], out[..., columns])
    return steps


def _each_feature_alone(views: Array, weights: Array, out: Array) -> None:
    """Depthwise convolution: every input feature has its own outputs, so only the window is summed."""
    features = views.shape[-1]
    each = weights.shape[-1] // features
    shape = (*out.shape[:-1], features, each)
    total = np.zeros(shape, out.dtype)
    rank = weights.ndim - 2
    for place in np.ndindex(*weights.shape[:rank]):
        seen = views[(slice(None),) * (rank + 1) + place]
        # The operands' own type may be too narrow for their product.
        total += seen[..., None].astype(out.dtype) * weights[place].reshape(features, each)
    out[...] = total.reshape(out.shape)


# ---- products -------------------------------------------------------------------------------------------------------


def _bind_sums(views: Array, rows: Sequence[int], kernel: Array, out: Array) -> list[Step]:
    """Return the steps that sum views * kernel over all axes of `views` except `rows`.

    `out` has the axes `rows`, then the columns. The kernel has the summed axes in their order, then the columns.
    """
    depth = [axis for axis in range(views.ndim) if axis not in rows]
    row_order, depth_order = _by_place(out), _by_place(kernel)
    kernel = kernel.transpose(*depth_order, kernel.ndim - 1)
    target = out.transpose(*row_order, out.ndim - 1)
    seen = views.transpose([rows[axis] for axis in row_order] + [depth[axis] for axis in depth_order])
    matrix, refresh = _matrix(kernel, out.dtype)
    steps: list[Step] = [] if refresh is None else [refresh]
    return steps + _bind_rows(seen, matrix, target, len(rows), {})


def _by_place(array: Array) -> list[int]:
    """Return all axes but the last by decreasing stride in memory; axes of size 1 come last."""
    return sorted(range(array.ndim - 1), key=lambda axis: (array.shape[axis] == 1, -abs(array.strides[axis])))


def _matrix(array: Array, kind: np.dtype[np.generic]) -> tuple[Array, Step | None]:
    """Return [everything else, last axis] in type `kind`, and the step that refreshes it if it is a copy."""
    shape = (-1, array.shape[-1])
    seen = _reshaped(array, shape)
    if seen is not None and array.dtype == kind and min(seen.strides) >= 0:
        return seen, None
    copy = np.empty(array.shape, kind)
    return copy.reshape(shape), partial(np.copyto, copy, array, "unsafe")


def _reshaped(array: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a view of the array in another shape; None if that needs a copy."""
    try:
        return np.reshape(array, shape, copy=False)
    except ValueError:
        return None


def _bind_rows(seen: Array, matrix: Array, target: Array, row_axes: int, kept: dict[int, Array]) -> list[Step]:
    """Return the steps that gather `seen` as rows, block by block, and multiply them. `kept` maps block sizes to their memory."""
    depth = matrix.shape[0]
    rows = _reshaped(seen, (-1, depth))
    if rows is not None and seen.dtype == matrix.dtype:
        return _bind_product(rows, matrix, target)
    each = seen[0].size * matrix.itemsize
    steps: list[Step] = []
    if each > _GATHERED_BYTES and row_axes > 1:
        for number in range(seen.shape[0]):
            steps += _bind_rows(seen[number], matrix, target[number], row_axes - 1, kept)
        return steps
    count = max(1, _GATHERED_BYTES // max(each, 1))
    for first in range(0, seen.shape[0], count):
        part = seen[first : first + count]
        gathered = kept.setdefault(part.size, np.empty((part.size // depth, depth), matrix.dtype))
        steps.append(partial(np.copyto, gathered.reshape(part.shape), part, "unsafe"))
        steps += _bind_product(gathered, matrix, target[first : first + count])
    return steps


def _bind_product(rows: Array, matrix: Array, target: Array) -> list[Step]:
    shape = (rows.shape[0], matrix.shape[1])
    seen = _reshaped(target, shape)
    if seen is not None:
        return [product(rows, matrix, seen)]
    apart = np.empty(shape, matrix.dtype)
    return [product(rows, matrix, apart), partial(np.copyto, target, apart.reshape(target.shape))]


# ---- windows --------------------------------------------------------------------------------------------------------


def _bind_windows(source: Array, window: Window, places: Sequence[int], kind: np.dtype[np.generic]) -> tuple[Array, list[Step]]:
    """Return a view [batch, *places, *window, feature] of the padded source, and the steps that pad it."""
    padded, steps = _bind_padding(source, window, places, kind)
    batch, *strides, feature = padded.strides
    outer = [stride * dim.stride for stride, dim in zip(strides, window, strict=True)]
    inner = [stride * dim.window_dilation for stride, dim in zip(strides, window, strict=True)]
    shape = (padded.shape[0], *places, *(dim.size for dim in window), padded.shape[-1])
    return as_strided(padded, shape, (batch, *outer, *inner, feature), writeable=False), steps


def _bind_padding(source: Array, window: Window, places: Sequence[int], kind: np.dtype[np.generic]) -> tuple[Array, list[Step]]:
    """Return the source with base dilation and zero padding, up to the last window's end, and the steps that fill it.

    Negative padding crops.
    """
    needed = [
        (count - 1) * dim.stride + (dim.size - 1) * dim.window_dilation + 1 if count else 0
        for dim, count in zip(window, places, strict=True)
    ]
    spatial = source.shape[1:-1]
    if all(
        dim.pad_low == 0 and dim.base_dilation == 1 and reach <= size
        for dim, reach, size in zip(window, needed, spatial, strict=True)
    ):
        return source, []
    out = np.zeros((source.shape[0], *needed, source.shape[-1]), kind)
    taken: list[slice] = [slice(None)]
    put: list[slice] = [slice(None)]
    for dim, reach, size in zip(window, needed, spatial, strict=True):
        hole = dim.base_dilation
        first = max(0, -(dim.pad_low // hole))
        start = dim.pad_low + first * hole
        count = max(0, min(size - first, (reach - start + hole - 1) // hole))
        taken.append(slice(first, first + count))
        put.append(slice(start, start + count * hole, hole) if count else slice(0, 0))
    return out, [partial(np.copyto, out[tuple(put)], source[tuple(taken)], "unsafe")]
