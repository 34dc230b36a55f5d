"""The comparison of one array of a result, step by step through large ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hlo_run.hlo.dtype import DTYPES
from hlo_run.hlo.shape import Shape
from hlo_run.reference.element_errors import ErrorSpec, element_errors
from hlo_run.reference.values import CHUNK_ELEMENTS, Array, Value


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that errs most in one respect: its index and both values."""

    error: float
    index: tuple[int, ...]
    expected: object
    actual: object


@dataclass(frozen=True, slots=True)
class LeafComparison:
    """One array of the result, at shape index `path`.

    `problem` says why the arrays cannot be compared at all (types or dimensions differ). `first` is the first wrong
    element in row-major order; `worst_abs` and `worst_rel` are over all elements, right ones too, None for an array
    without elements and for types that are compared exactly.
    """

    path: tuple[int, ...]
    shape: Shape
    expected: Value
    actual: Value
    mismatches: int = 0
    nan_mismatches: int = 0
    first: Worst | None = None
    worst_abs: Worst | None = None
    worst_rel: Worst | None = None
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and not self.mismatches


def compare_leaf(expected: Value, actual: Value, shape: Shape, path: tuple[int, ...], spec: ErrorSpec) -> LeafComparison:
    """Compare two values that should be arrays of `shape`: floats and complex numbers near, others exactly."""
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return LeafComparison(path, shape, expected, actual, problem="one is an array, the other is not")
    problem = _shape_problem(expected, actual, shape)
    if problem:
        return LeafComparison(path, shape, expected, actual, problem=problem)
    if shape.dtype.kind in ("float", "complex"):
        return _compare_floats(expected, actual, shape, path, spec)
    return _compare_exactly(expected, actual, shape, path)


def _shape_problem(expected: Array, actual: Array, shape: Shape) -> str:
    """Return XLA's words for arrays that are not of the same shape; empty if they are."""
    names = {dtype.numpy: name for name, dtype in DTYPES.items()}
    want, got = (f"{names[array.dtype]}[{','.join(map(str, array.shape))}]" for array in (expected, actual))
    if expected.dtype != actual.dtype or expected.dtype != shape.dtype.numpy:
        return f"element type mismatch, want: {want} got {got}"
    if expected.ndim != actual.ndim:
        return f"want rank of {want} got rank of {got}"
    for number, (size, other) in enumerate(zip(expected.shape, actual.shape, strict=True)):
        if size != other:
            return f"mismatch in dimension #{number} expected: {want} actual: {got}"
    return ""


def _compare_exactly(expected: Array, actual: Array, shape: Shape, path: tuple[int, ...]) -> LeafComparison:
    mismatches = 0
    first: Worst | None = None
    for start, want, got in steps(expected, actual):
        wrong = want != got
        count = int(np.count_nonzero(wrong))
        if count and first is None:
            first = _worst(math.inf, start + int(np.argmax(wrong)), expected, actual)
        mismatches += count
    return LeafComparison(path, shape, expected, actual, mismatches, first=first)


def _compare_floats(expected: Array, actual: Array, shape: Shape, path: tuple[int, ...], spec: ErrorSpec) -> LeafComparison:
    mismatches = nan_mismatches = 0
    first: Worst | None = None
    worst_abs: Worst | None = None
    worst_rel: Worst | None = None
    for start, want, got in steps(expected, actual):
        errors = element_errors(want, got, shape.dtype, spec)
        worst_abs = _worse(worst_abs, errors.abs_error, start, expected, actual)
        worst_rel = _worse(worst_rel, errors.rel_error, start, expected, actual)
        count = int(np.count_nonzero(errors.mismatch))
        if count and first is None:
            place = int(np.argmax(errors.mismatch))
            first = _worst(float(errors.rel_error[place]), start + place, expected, actual)
        mismatches += count
        nan_mismatches += int(np.count_nonzero(errors.nan_mismatch))
    return LeafComparison(path, shape, expected, actual, mismatches, nan_mismatches, first, worst_abs, worst_rel)


def steps(expected: Array, actual: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield (number of the first element, elements, elements) of two arrays of one shape, in row-major order."""
    flat_expected = np.ascontiguousarray(expected).reshape(-1)
    flat_actual = np.ascontiguousarray(actual).reshape(-1)
    for start in range(0, flat_expected.size, CHUNK_ELEMENTS):
        yield start, flat_expected[start : start + CHUNK_ELEMENTS], flat_actual[start : start + CHUNK_ELEMENTS]


def _worse(known: Worst | None, errors: Array, start: int, expected: Array, actual: Array) -> Worst | None:
    """Return the worse of the worst element so far and the worst of a step."""
    place = int(np.argmax(errors))
    error = float(errors[place])
    return known if known and known.error >= error else _worst(error, start + place, expected, actual)


def _worst(error: float, place: int, expected: Array, actual: Array) -> Worst:
    index = tuple(int(i) for i in np.unravel_index(place, expected.shape)) if expected.ndim else ()
    return Worst(error, index, expected[index], actual[index])
