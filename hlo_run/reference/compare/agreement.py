"""Find the disagreements of a kernel with the reference, by one error bound per element type; for tests and corpus runs.

The command line uses XLA's fixed bounds. The bounds here are narrower for wide types and scale with the data.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.values import Value

# Relative bounds; floats below 16 bits have NARROW_FLOAT_BOUND, other types must be equal.
BOUNDS = {"f64": 1e-9, "c128": 1e-9, "f32": 2e-4, "c64": 2e-4, "f16": 2e-2, "bf16": 6e-2}
NARROW_FLOAT_BOUND = 0.3


def disagreements(expected: Value, actual: Value, shape: Shape) -> list[tuple[tuple[int, ...], Comparison]]:
    """Return (shape index, comparison) of every leaf that differs.

    An element differs if its relative error exceeds the bound of its type, and its absolute error exceeds that bound
    times the largest finite expected magnitude in the leaf.
    """
    found: list[tuple[tuple[int, ...], Comparison]] = []
    for index, leaf, one, other in _leaves(shape, expected, actual, ()):
        bound = BOUNDS.get(leaf.element_type, NARROW_FLOAT_BOUND if leaf.dtype.is_float else 0.0)
        comparison = compare(one, other, leaf, ErrorSpec(abs=bound * _largest(one, leaf), rel=bound))
        if not comparison.ok:
            found.append((index, comparison))
    return found


def _largest(value: Value, shape: Shape) -> float:
    magnitudes = np.abs(np.asarray(value).astype(np.complex128 if shape.dtype.is_complex else np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def _leaves(
    shape: Shape, one: Value, other: Value, index: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Shape, Value, Value]]:
    if not shape.is_tuple:
        if shape.is_array:
            yield index, shape, one, other
        return
    assert isinstance(one, tuple)
    assert isinstance(other, tuple)
    for number, (part, first, second) in enumerate(zip(shape.tuple_shapes, one, other, strict=True)):
        yield from _leaves(part, first, second, (*index, number))
