"""How arrays look to libraries that store matrices column by column: sizes, leading dimensions, transpositions, strides.

f32[4,64,32]{2,1,0} as 4 matrices of 64 x 32:    stored 32 x 64, leading dimension 32, to be transposed, 2048 apart
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_run.artifact import ArraySpec


@dataclass(frozen=True, slots=True)
class Axis:
    """Dimensions that memory holds as one: how many elements, and how far apart they are (in elements)."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch of matrices as they lie: column by column, `leading` elements from one column to the next.

    What is meant is the transposed matrix if `is_transposed`.
    """

    rows: int
    columns: int
    leading: int
    batch: int
    batch_stride: int
    is_transposed: bool


def strides(spec: ArraySpec) -> tuple[int, ...]:
    """Return how many elements apart the neighbours along each dimension are."""
    found, stride = [0] * len(spec.dims), 1
    for d in spec.minor_to_major:
        found[d] = stride
        stride *= spec.dims[d]
    return tuple(found)


def merged(spec: ArraySpec, dims: Sequence[int]) -> Axis | None:
    """Return `dims` (major first) as one axis; None if memory does not hold them in that order."""
    steps = strides(spec)
    axis = Axis(1, 0)
    for d in reversed([d for d in dims if spec.dims[d] != 1]):
        if axis.size > 1 and steps[d] != axis.size * axis.stride:
            return None
        axis = Axis(axis.size * spec.dims[d], axis.stride if axis.size > 1 else steps[d])
    return axis


def stored(rows: Axis, columns: Axis, batch: Axis) -> Stored | None:
    """Return a batch of matrices as a library wants them; None if neither rows nor columns lie together.

    A matrix that can be read both ways is not transposed.
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
