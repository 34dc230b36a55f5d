"""`convolution`: windows of the input as rows of a matrix, multiplied by the kernel as another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hlo_run.hlo.attributes import Window, WindowDim
from hlo_run.hlo.graph import HloInstruction
from hlo_run.ops.convolution import convolution_labels
from hlo_run.reference.contraction import operand_in, stacked_matmul
from hlo_run.reference.values import Array, arrays_row, narrow, table

# Windows are copied out this many bytes at a time: little enough to stay in the cache until BLAS has read them.
_PATCH_BYTES = 1 << 21


def _convolution(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    result, attrs = instruction.shape.dtype, instruction.attrs
    lhs, rhs = (operand_in(x, source.shape.dtype, result) for x, source in zip(operands, instruction.operands, strict=True))
    labels = convolution_labels(attrs["dim_labels"])
    window: Window = attrs.get("window") or Window()
    batch_groups: int = attrs.get("batch_group_count", 1)
    (batch, feature, spatial), (kernel_in, kernel_out, kernel_spatial) = labels.input, labels.kernel
    source = np.transpose(lhs, (batch, *spatial, feature))
    kernel = np.transpose(rhs, (*kernel_spatial, kernel_in, kernel_out))
    groups: int = attrs.get("feature_group_count", 1)
    if batch_groups > 1:
        source, groups = _batch_groups_as_features(source, batch_groups), batch_groups
    product = convolve(source, kernel, window.dims, groups)
    out_batch, out_feature, out_spatial = labels.output
    order = np.argsort(np.asarray((out_batch, *out_spatial, out_feature)))
    return narrow(np.transpose(product, order), result)


def _batch_groups_as_features(source: Array, groups: int) -> Array:
    """Let the blocks of the batch stand as groups of features: output block g then sees batch block g alone."""
    blocks = source.reshape(groups, source.shape[0] // groups, *source.shape[1:])
    moved = np.moveaxis(blocks, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def convolve(source: Array, kernel: Array, window: Sequence[WindowDim], groups: int) -> Array:
    """Return [batch, spatial.., out features] of [batch, spatial.., in features] and [spatial.., in / groups, out].

    Sums in the operands' type: floats in an order of BLAS' choosing, ints wrapping.
    """
    reversed_dims = tuple(k for k, dim in enumerate(window) if dim.reversal)
    kernel = np.flip(kernel, reversed_dims) if reversed_dims else kernel
    out_spatial = [output_size(dim, size) for dim, size in zip(window, source.shape[1:-1], strict=True)]
    out = np.zeros((source.shape[0], *out_spatial, kernel.shape[-1]), kernel.dtype)
    if out.size and kernel.size and source.size:
        windows = _window_view(_padded(source, window), window, out_spatial)
        if kernel.shape[-2] == 1 and groups == source.shape[-1] and out.dtype != np.bool_:
            _multiply_each_feature(out, windows, kernel)
        else:
            _multiply_windows(out, windows, kernel, groups)
    return out


def output_size(dim: WindowDim, size: int) -> int:
    """Return how many places the window has along a dimension of `size`."""
    padded = dim.pad_low + (size - 1) * dim.base_dilation + 1 + dim.pad_high if size else dim.pad_low + dim.pad_high
    reach = (dim.size - 1) * dim.window_dilation + 1 if dim.size else 0
    return 0 if padded < reach else (padded - reach) // dim.stride + 1


def _padded(source: Array, window: Sequence[WindowDim]) -> Array:
    """Return the input with its dilation holes and padding filled with zeros; negative padding cuts elements off."""
    if all(dim.pad_low <= 0 and dim.pad_high <= 0 and dim.base_dilation == 1 for dim in window):
        cut = [slice(-dim.pad_low, size + dim.pad_high) for dim, size in zip(window, source.shape[1:-1], strict=True)]
        return source[(slice(None), *cut)]
    dims = [
        dim.pad_low + (size - 1) * dim.base_dilation + 1 + dim.pad_high
        for dim, size in zip(window, source.shape[1:-1], strict=True)
    ]
    # In the input's own order of dimensions, which is mostly the better one to read windows from.
    order = np.argsort([-stride for stride in source.strides], kind="stable")
    shape = (source.shape[0], *dims, source.shape[-1])
    padded = np.zeros([shape[d] for d in order], source.dtype).transpose(np.argsort(order))
    places: list[slice] = [slice(None)]
    chosen: list[slice] = [slice(None)]
    for dim, size, padded_size in zip(window, source.shape[1:-1], dims, strict=True):
        step = dim.base_dilation
        first = max(0, -(dim.pad_low // step))
        last = min(size, (padded_size - 1 - dim.pad_low) // step + 1)
        start = dim.pad_low + first * step
        count = max(0, last - first)
        chosen.append(slice(first, first + count))
        places.append(slice(start, start + count * step, step) if count else slice(0, 0))
    padded[tuple(places)] = source[tuple(chosen)]
    return padded


def _window_view(padded: Array, window: Sequence[WindowDim], out_spatial: Sequence[int]) -> Array:
    """Return a view [batch, out spatial.., window spatial.., features]: what each place of the window sees."""
    batch_stride, *spatial, feature_stride = padded.strides
    outer = [stride * dim.stride for stride, dim in zip(spatial, window, strict=True)]
    inner = [stride * dim.window_dilation for stride, dim in zip(spatial, window, strict=True)]
    shape = (padded.shape[0], *out_spatial, *(dim.size for dim in window), padded.shape[-1])
    return as_strided(padded, shape, (batch_stride, *outer, *inner, feature_stride), writeable=False)


def _multiply_each_feature(out: Array, windows: Array, kernel: Array) -> None:
    """Each input feature alone makes its own output features (a depthwise convolution): there is nothing for BLAS to sum."""
    rank = kernel.ndim - 2
    spread = out.reshape(*out.shape[:-1], windows.shape[-1], -1)
    for place in np.ndindex(*kernel.shape[:-2]):
        seen = windows[(slice(None),) * (rank + 1) + place]
        spread += seen[..., None] * kernel[place].reshape(windows.shape[-1], -1)


def _multiply_windows(out: Array, windows: Array, kernel: Array, groups: int) -> None:
    """One product of matrices per group and part of the places: [places, window x features] x [window x features, out]."""
    rank = kernel.ndim - 2
    features, outputs = windows.shape[-1] // groups, out.shape[-1] // groups
    depth = math.prod(kernel.shape[:-1])
    for group in range(groups):
        mine = windows[..., group * features : (group + 1) * features]
        matrix = kernel[..., group * outputs : (group + 1) * outputs]
        if mine.strides[-1] > min(mine.strides[1 + rank : -1], default=0):
            # Features that lie far apart go outside the window, so that neighbours are copied together.
            mine, matrix = np.moveaxis(mine, -1, 1 + rank), np.moveaxis(matrix, -2, 0)
        matrix = matrix.reshape(depth, outputs)
        target = out[..., group * outputs : (group + 1) * outputs]
        for part in _parts(out.shape[: rank + 1], depth * out.itemsize):
            seen = mine[part]
            target[part] = stacked_matmul(seen.reshape(-1, depth), matrix).reshape(*seen.shape[: rank + 1], outputs)


def _parts(dims: tuple[int, ...], bytes_each: int) -> Iterator[tuple[slice, ...]]:
    """Yield parts of the places, cut along the leading dimensions, whose windows take about `_PATCH_BYTES`."""
    dim, inner = 0, math.prod(dims[1:]) * bytes_each
    while inner > _PATCH_BYTES and dim < len(dims) - 1:
        dim += 1
        inner //= dims[dim]
    step = max(1, _PATCH_BYTES // max(1, inner))
    for outer in np.ndindex(*dims[:dim]):
        for start in range(0, dims[dim], step):
            yield (*(slice(i, i + 1) for i in outer), slice(start, start + step))


EVALUATE = table(arrays_row("convolution", _convolution))
