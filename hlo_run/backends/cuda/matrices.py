"""Describe arrays as column-major matrices for libraries: sizes, leading dimension, transposition, strides.

f32[4,64,32]{2,1,0} as 4 matrices of 64 x 32:    stored 32 x 64, leading dimension 32, transposed, batch stride 2048
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.artifact import ArraySpec


class Axis(Struct, frozen=True):
    """Dimensions that memory holds as one: the number of elements and their stride (in elements)."""

    size: int
    stride: int


class Stored(Struct, frozen=True):
    """A batch of column-major matrices in memory, with `leading` elements from one column to the next.

    If `is_transposed`, the operand is the transpose of the stored matrix.
    """

    rows: int
    columns: int
    leading: int
    batch: int
    batch_stride: int
    is_transposed: bool


def strides(spec: ArraySpec) -> tuple[int, ...]:
    """Return the stride of each dimension, in elements."""
    found, stride = [0] * len(spec.dims), 1
    for d in spec.minor_to_major:
        found[d] = stride
        stride *= spec.dims[d]
    return tuple(found)


def merged(spec: ArraySpec, dims: Sequence[int]) -> Axis | None:
    """Return `dims` (major to minor) as one axis; None if memory does not hold them in that order."""
    steps = strides(spec)
    axis = Axis(1, 0)
    for d in reversed([d for d in dims if spec.dims[d] != 1]):
        if axis.size > 1 and steps[d] != axis.size * axis.stride:
            return None
        axis = Axis(axis.size * spec.dims[d], axis.stride if axis.size > 1 else steps[d])
    return axis


def stored(rows: Axis, columns: Axis, batch: Axis) -> Stored | None:
    """Return a batch of matrices in a library's form; None if neither rows nor columns are contiguous.

    A matrix that fits both ways is not transposed.
    """
    if rows.size == 1 or rows.stride == 1:
        leading = columns.stride if columns.size > 1 else rows.size
        if leading >= rows.size:
            return Stored(rows.size, columns.size, leading, batch.size, batch.stride, False)
    if columns.size == 1 or columns.stride == 1:
        leading = rows.stride if rows.size > 1 else columns.size
        if leading >= columns.size:
            return Stored(columns.size, rows.size, leading, batch.size, batch.stride, True)
    return None
