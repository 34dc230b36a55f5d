"""The gradient of a convolution's input for strides above 1 (col2im): matrix products, then sums of overlapping windows.

A forward convolution with base dilation would multiply by the zeros between the elements of the result's gradient. With stride 2
in two dimensions, three of four products would be by zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from hlo_run.artifact import WindowSpec
from hlo_run.backends.library.arrays import Array
from hlo_run.backends.library.blas import product

# The bytes of products that are held at a time before they are added up.
_PRODUCT_BYTES = 4 << 20
Step: TypeAlias = "Callable[[], object]"


def is_scattered(window: tuple[WindowSpec, ...]) -> bool:
    """True if col2im is less work than a forward convolution with base dilation."""
    is_plain = all(dim.base_dilation == 1 and dim.pad_low >= 0 and dim.pad_high >= 0 for dim in window)
    return is_plain and any(dim.stride > 1 for dim in window)


def bind_scattered(weights: Array, result: Array, window: tuple[WindowSpec, ...], groups: int, out: Array) -> list[Step]:
    """Return the steps that fill out[batch, *spatial, in].

    `weights` is [*window, in / groups, out], `result` is the gradient of the result [batch, *places, out].
    """
    if not out.size or not result.size or not weights.size:
        return [partial(np.copyto, out, 0)]
    *taps, deep, outputs = weights.shape
    each, places, kind = outputs // groups, result.shape[1:-1], out.dtype
    matrices = np.empty((groups, each, *taps, deep), kind)
    turned = np.flip(weights, tuple(axis for axis, dim in enumerate(window) if dim.is_reversed))
    steps: list[Step] = []
    for group in range(groups):
        part = np.moveaxis(turned[..., group * each : (group + 1) * each], -1, 0)
        steps.append(partial(np.copyto, matrices[group], part, "unsafe"))
    columns = int(np.prod(taps)) * deep
    rows = int(np.prod(places))
    count = max(1, min(result.shape[0], _PRODUCT_BYTES // (rows * columns * kind.itemsize)))
    padded = np.empty((count, *_sizes(window, places, out.shape[1:-1]), out.shape[-1]), kind)
    made = np.empty((count * rows, columns), kind)
    gathered = np.empty((count, *places, each), kind)
    inner = tuple(slice(dim.pad_low, dim.pad_low + size) for dim, size in zip(window, out.shape[1:-1], strict=True))
    for first in range(0, result.shape[0], count):
        size = min(count, result.shape[0] - first)
        sums, products = padded[:size], made[: size * rows]
        steps.append(partial(sums.fill, 0))
        for group in range(groups):
            source = result[first : first + size, ..., group * each : (group + 1) * each]
            steps.append(partial(np.copyto, gathered[:size], source, "unsafe"))
            matrix = matrices[group].reshape(each, columns)
            steps.append(product(gathered[:size].reshape(size * rows, each), matrix, products))
            target = sums[..., group * deep : (group + 1) * deep]
            steps.append(partial(_add_up, target, products.reshape(size, *places, *taps, deep), window, places))
        steps.append(partial(np.copyto, out[first : first + size], sums[(slice(None), *inner)], "unsafe"))
    return steps


def _sizes(window: tuple[WindowSpec, ...], places: tuple[int, ...], spatial: tuple[int, ...]) -> list[int]:
    """Return the spatial sizes of the padded input: up to the end of the last window or of the input, whichever is larger."""
    return [
        max((count - 1) * dim.stride + (dim.size - 1) * dim.window_dilation + 1, dim.pad_low + size)
        for dim, count, size in zip(window, places, spatial, strict=True)
    ]


def _add_up(target: Array, products: Array, window: tuple[WindowSpec, ...], places: tuple[int, ...]) -> None:
    """Add the products [batch, *places, *window, in] to their positions in the padded input `target`."""
    rank = len(window)
    for tap in np.ndindex(*(dim.size for dim in window)):
        seen: list[slice] = [slice(None)]
        for dim, at, count in zip(window, tap, places, strict=True):
            start = at * dim.window_dilation
            seen.append(slice(start, start + (count - 1) * dim.stride + 1, dim.stride))
        view = target[tuple(seen)]
        view += products[(slice(None),) * (rank + 1) + tap]
