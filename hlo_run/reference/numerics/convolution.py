"""Evaluate `convolution` as a matrix product: windows of the input are the rows, the kernel is the other matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hlo_run.hlo.attributes.table import WindowDim
from hlo_run.hlo.graph import HloInstruction
from hlo_run.ops.convolution import convolution_labels
from hlo_run.reference.numerics.blas import THREADED_PRODUCTS
from hlo_run.reference.numerics.contraction import convert_sums, operand_in, stacked_matmul, sum_type
from hlo_run.reference.values import Array, Kernel, in_threads, prepared_row, quiet, table

# Windows are copied in parts of this many bytes, which stay in the cache until BLAS has read them.
_PATCH_BYTES = 1 << 21


def _convolution(instruction: HloInstruction) -> Kernel:
    result, sums = instruction.shape.dtype, sum_type(instruction)
    left, right = (operand.shape.dtype for operand in instruction.operands)
    labels = convolution_labels(instruction.dim_labels)
    window = instruction.window
    batch_groups = instruction.batch_group_count
    groups = batch_groups if batch_groups > 1 else instruction.feature_group_count
    (batch, feature, spatial), (kernel_in, kernel_out, kernel_spatial) = labels.input, labels.kernel
    out_batch, out_feature, out_spatial = labels.output
    source_order, kernel_order = (batch, *spatial, feature), (*kernel_spatial, kernel_in, kernel_out)
    placed = (out_batch, *out_spatial, out_feature)
    order = tuple(sorted(range(len(placed)), key=placed.__getitem__))

    def kernel(lhs: Array, rhs: Array) -> Array:
        source = operand_in(lhs, left, sums).transpose(source_order)
        if batch_groups > 1:
            source = _batch_groups_as_features(source, batch_groups)
        weights = operand_in(rhs, right, sums).transpose(kernel_order)
        return convert_sums(convolve(source, weights, window.dims, groups).transpose(order), sums, result)

    return kernel


def _batch_groups_as_features(source: Array, groups: int) -> Array:
    """Turn the blocks of the batch into groups of features: output block g then depends on batch block g alone."""
    blocks = source.reshape(groups, source.shape[0] // groups, *source.shape[1:])
    moved = np.moveaxis(blocks, 0, -2)
    return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])


def convolve(source: Array, kernel: Array, window: Sequence[WindowDim], groups: int) -> Array:
    """Return the convolution [batch, spatial.., out features].

    `source` is [batch, spatial.., in features] and `kernel` is [spatial.., in features / groups, out features]. Sums are
    in the operands' type: floats in BLAS's order, ints wrapping.
    """
    reversed_dims = tuple(k for k, dim in enumerate(window) if dim.reversal)
    kernel = np.flip(kernel, reversed_dims) if reversed_dims else kernel
    out_spatial = [output_size(dim, size) for dim, size in zip(window, source.shape[1:-1], strict=True)]
    dims = (source.shape[0], *out_spatial, kernel.shape[-1])
    if not (math.prod(dims) and kernel.size and source.size):
        return np.zeros(dims, kernel.dtype)
    windows = _window_view(_padded(source, window), window, out_spatial)
    if groups > 1 and groups == source.shape[-1] and kernel.dtype != np.bool_ and kernel.dtype.kind != "c":
        return _multiply_each_feature(dims, windows, kernel)
    return _multiply_windows(dims, windows, kernel, groups)


def output_size(dim: WindowDim, size: int) -> int:
    """Return the output size of a dimension of `size`: the number of positions of the window."""
    padded = dim.pad_low + (size - 1) * dim.base_dilation + 1 + dim.pad_high if size else dim.pad_low + dim.pad_high
    reach = (dim.size - 1) * dim.window_dilation + 1 if dim.size else 0
    return 0 if padded < reach else (padded - reach) // dim.stride + 1


def _padded(source: Array, window: Sequence[WindowDim]) -> Array:
    """Return the input with zeros in dilation holes and padding; negative padding removes elements."""
    if all(dim.pad_low <= 0 and dim.pad_high <= 0 and dim.base_dilation == 1 for dim in window):
        cut = [slice(-dim.pad_low, size + dim.pad_high) for dim, size in zip(window, source.shape[1:-1], strict=True)]
        return source[(slice(None), *cut)]
    dims = [
        dim.pad_low + (size - 1) * dim.base_dilation + 1 + dim.pad_high
        for dim, size in zip(window, source.shape[1:-1], strict=True)
    ]
    # In the memory order of the input, in which windows are mostly read faster.
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
    """Return a view [batch, out spatial.., window spatial.., features]: the elements in the window at each position."""
    batch_stride, *spatial, feature_stride = padded.strides
    outer = [stride * dim.stride for stride, dim in zip(spatial, window, strict=True)]
    inner = [stride * dim.window_dilation for stride, dim in zip(spatial, window, strict=True)]
    shape = (padded.shape[0], *out_spatial, *(dim.size for dim in window), padded.shape[-1])
    return as_strided(padded, shape, (batch_stride, *outer, *inner, feature_stride), writeable=False)


def _multiply_each_feature(dims: tuple[int, ...], windows: Array, kernel: Array) -> Array:
    """Compute a depthwise convolution: each input feature has its own output features, so BLAS has nothing to sum."""
    rank = kernel.ndim - 2
    features = windows.shape[-1]
    out = np.zeros((*dims[:-1], features, dims[-1] // features), kernel.dtype)
    for place in np.ndindex(*kernel.shape[:-2]):
        seen = windows[(slice(None),) * (rank + 1) + place]
        out += seen[..., None] * kernel[place].reshape(features, -1)
    return out.reshape(dims)


def _multiply_windows(dims: tuple[int, ...], windows: Array, kernel: Array, groups: int) -> Array:
    """Compute a convolution as products [places, window x features] x [window x features, out], one per group."""
    rank = kernel.ndim - 2
    features, outputs = windows.shape[-1] // groups, dims[-1] // groups
    depth = math.prod(kernel.shape[:-1])
    # [batch, out spatial.., window.., groups, features] and [window.., features, groups, out features]
    seen = windows.reshape(*windows.shape[:-1], groups, features)
    weights = kernel.reshape(*kernel.shape[:-1], groups, outputs)
    places, places_in_kernel = tuple(range(rank + 1)), tuple(range(rank))
    inside = tuple(range(rank + 1, 2 * rank + 1))
    if seen.strides[-1] > min((seen.strides[d] for d in inside), default=0):
        # Features with a large stride are placed outside the window, so that neighbours are copied together.
        seen = seen.transpose(-2, *places, -1, *inside)
        weights = weights.transpose(-2, rank, *places_in_kernel, -1)
    else:
        seen = seen.transpose(-2, *places, *inside, -1)
        weights = weights.transpose(-2, *places_in_kernel, rank, -1)
    matrix = weights.reshape(groups, depth, outputs)
    parts = list(_parts(dims[:-1], groups * depth * kernel.itemsize))
    if len(parts) == 1:
        return _product(seen, matrix).reshape(dims)
    out = np.empty((*dims[:-1], groups * outputs), kernel.dtype)

    def fill(begin: int, end: int) -> None:
        # np.errstate holds for one thread.
        with quiet():
            for part in parts[begin:end]:
                out[part] = _product(seen[(slice(None), *part)], matrix).reshape(out[part].shape)

    if math.prod(dims[:-1]) * depth * outputs < THREADED_PRODUCTS:
        fill(0, len(parts))
    else:
        in_threads(fill, len(parts))
    return out


def _product(seen: Array, matrix: Array) -> Array:
    """Return the products [places, groups x out features], in row-major order, from `seen` [groups, places.., depth..]."""
    groups, depth, outputs = matrix.shape
    product = stacked_matmul(seen.reshape(groups, -1, depth), matrix)
    return product[0] if groups == 1 else np.ascontiguousarray(product.transpose(1, 0, 2)).reshape(-1, groups * outputs)


def _parts(dims: tuple[int, ...], bytes_each: int) -> Iterator[tuple[slice, ...]]:
    """Yield parts of the output positions, cut along the leading dimensions, whose windows take about `_PATCH_BYTES`."""
    dim, inner = 0, math.prod(dims[1:]) * bytes_each
    while inner > _PATCH_BYTES and dim < len(dims) - 1:
        dim += 1
        inner //= dims[dim]
    step = max(1, _PATCH_BYTES // max(1, inner))
    for outer in np.ndindex(*dims[:dim]):
        for start in range(0, dims[dim], step):
            yield (*(slice(i, i + 1) for i in outer), slice(start, start + step))


EVALUATE = table(prepared_row("convolution", _convolution))
