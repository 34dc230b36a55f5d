"""Tells whether the comparison would notice that a part of the result has other values, by its own rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.compare.leaf_comparison import LeafComparison, compare_leaf
from hlo_run.reference.compare.rounding import RoundingSamples, judge
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.sensitivity.recorded_run import Exit
from hlo_run.reference.values import Array, Value, as_array, widen

# Elements of an array that rounding judges: those with the largest errors of either kind.
_JUDGED = 512
# The errors of one sample are enlarged to what those of many are at most.
_OF_ONE = 3.0


class Notices:
    """The rules of a run: the bounds, and with `samples` the rounding of the result's type too.

    One sample serves for all comparisons, so its errors are enlarged. Of a large array, rounding judges the elements with the
    largest errors alone.
    """

    def __init__(self, shape: Shape, spec: ErrorSpec, samples: RoundingSamples | None) -> None:
        self._shape, self._spec, self._source = shape, spec, samples
        self._pair: tuple[Value, Value] | None = None

    def __call__(self, place: Exit, expected: Value, actual: Value) -> bool:
        """True if the comparison refuses `actual` in the place of `expected`."""
        shape = self._shape
        for number in place.path:
            shape = shape.tuple_shapes[number]
        return any(self._differs(leaf) for leaf in _leaves(expected, actual, shape, place.path, self._spec))

    def count(self, place: Exit, expected: Array, actual: Array) -> int:
        """Return how many of some elements of the array at an exit the bounds refuse."""
        shape = self._shape
        for number in place.path:
            shape = shape.tuple_shapes[number]
        part = Shape.array(shape.element_type, expected.shape)
        return sum(leaf.mismatches for leaf in compare(expected, actual, part, self._spec).leaves)

    def _differs(self, leaf: LeafComparison) -> bool:
        if leaf.problem or leaf.nan_mismatches or not leaf.is_near or self._source is None:
            return not leaf.ok
        pair = self._samples(self._source)
        if pair is None:
            return not leaf.ok
        small, precise, rounded = _selected(leaf, *pair, self._spec)
        enlarged = np.asarray(precise + _OF_ONE * (rounded - precise)) if precise.dtype.kind in "fc" else rounded
        (judged,) = judge([small], self._spec, RoundingSamples(lambda: precise, lambda: enlarged))
        return not judged.ok

    def _samples(self, source: RoundingSamples) -> tuple[Value, Value] | None:
        """Return the exact result and one with random roundings."""
        if self._pair is None:
            precise = source.precise()
            rounded = None if precise is None else source.draw()
            self._pair = None if precise is None or rounded is None else (precise, rounded)
        return self._pair


def _leaves(expected: Value, actual: Value, shape: Shape, path: tuple[int, ...], spec: ErrorSpec) -> list[LeafComparison]:
    if shape.is_tuple:
        assert isinstance(expected, tuple), "the value has the structure of the shape"
        assert isinstance(actual, tuple), "the value has the structure of the shape"
        parts = enumerate(zip(expected, actual, shape.tuple_shapes, strict=True))
        return [leaf for n, (one, two, inner) in parts for leaf in _leaves(one, two, inner, (*path, n), spec)]
    if not shape.is_array:
        return []
    return [compare_leaf(dynamic.leave(as_array(expected)), dynamic.leave(as_array(actual)), shape, path, spec)]


def _selected(leaf: LeafComparison, precise: Value, rounded: Value, spec: ErrorSpec) -> tuple[LeafComparison, Array, Array]:
    """Return a leaf with the elements that have the largest errors, and the largest number, and the samples of these."""
    expected, actual = as_array(leaf.expected), as_array(leaf.actual)
    samples = [_at(value, leaf.path) for value in (precise, rounded)]
    if expected.size <= 2 * _JUDGED or any(value.shape != expected.shape for value in samples):
        return replace(leaf, path=()), samples[0], samples[1]
    dtype = leaf.shape.dtype
    want, got = widen(expected.reshape(-1), dtype), widen(actual.reshape(-1), dtype)
    off, size = np.abs(want - got), np.abs(want)
    off[~np.isfinite(off)] = 0
    relative = np.where(size > 0, off / size, 0)
    places = np.concatenate([_largest(off), _largest(relative), [int(np.argmax(np.where(np.isfinite(size), size, 0)))]])
    places = np.array(sorted(set(places.tolist())))
    shape = Shape.array(leaf.shape.element_type, (places.size,))
    chosen = compare(expected.reshape(-1)[places], actual.reshape(-1)[places], shape, spec).leaves[0]
    return chosen, samples[0].reshape(-1)[places], samples[1].reshape(-1)[places]


def _largest(errors: Array) -> Array:
    return np.argpartition(errors, errors.size - _JUDGED)[-_JUDGED:]


def _at(value: Value, path: Sequence[int]) -> Array:
    for number in path:
        assert isinstance(value, tuple), "samples have the structure of the result"
        value = value[number]
    return as_array(value)
