"""`ResizeThunk` by numpy: pad arrays of dynamic size to their bounds, or slice arrays of the bounds to dynamic sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.artifact import ArraySpec, ResizeThunk
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.backends.literals import dynamic_from_bytes, dynamic_to_bytes


def resize_call(thunk: ResizeThunk) -> LibraryCall:
    """Return the call that pads or slices, by `is_padding`."""
    return _pad(thunk) if thunk.is_padding else _cut(thunk)


def _bytes_of(spec: ArraySpec) -> ArraySpec:
    return ArraySpec("u8", (spec.slice.size_bytes,), (0,), spec.slice)


def _pad(thunk: ResizeThunk) -> LibraryCall:
    source = thunk.source

    def compute(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        array = dynamic_from_bytes(inputs[0], source.dtype, source.dims, source.minor_to_major)
        outputs[0][...] = np.zeros((), outputs[0].dtype)
        outputs[0][tuple(slice(0, size) for size in array.shape)] = array
        for size, output in zip(array.shape, outputs[1:], strict=True):
            output[...] = size

    return LibraryCall((_bytes_of(source),), (thunk.result, *thunk.sizes), compute)


def _cut(thunk: ResizeThunk) -> LibraryCall:
    result = thunk.result

    def compute(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        bounds = zip(inputs[1:], result.dims, strict=True)
        sizes = [min(max(int(size), 0), bound) for size, bound in bounds]
        array = inputs[0][tuple(slice(0, size) for size in sizes)]
        outputs[0][...] = dynamic_to_bytes(array, result.dtype, result.dims, result.minor_to_major)

    return LibraryCall((thunk.source, *thunk.sizes), (_bytes_of(result),), compute)
