"""Compare one array of a result, in chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.reference.compare.element_errors import ElementErrors, ErrorSpec, element_errors, same_bits
from hlo_run.reference.values import CHUNK_ELEMENTS, Array, Value


class Worst(Struct, frozen=True):
    """The element with the largest error of one kind: its index and both values."""

    error: float
    index: tuple[int, ...]
    expected: object
    actual: object


class Allowance(Struct, frozen=True):
    """The allowance of rounding for an element: its distance from the float64 value `precise` (None: the expected one), and why.

    `allowed` counts numbers of the type between two if `in_steps`. `is_jump`: rounding turns a decision, such as which of
    two numbers is larger, in evaluations with random roundings. `roundings` is `allowed` in roundings of the value.
    """

    index: tuple[int, ...]
    expected: object
    actual: object
    precise: object
    allowed: float
    roundings: float
    in_steps: bool = False
    is_jump: bool = False


class RoundingVerdict(Struct, frozen=True):
    """The verdict of the type's rounding on elements in doubt; see `rounding.py`.

    `explained` elements exceed the bounds and agree all the same, `unexplained` ones are within the bounds and differ.
    `largest` is the largest relative difference of an explained element. Of the explained ones, `lost` may be off by more
    than they are large, so they tell nothing, and `first` is the first one.
    """

    explained: int
    unexplained: int
    largest: float
    lost: int = 0
    first: Allowance | None = None


class LeafComparison(Struct, frozen=True):
    """One array of the result, at shape index `path`.

    `problem` says why the arrays cannot be compared (types or dimensions differ). `shape` has the run-time sizes of
    dynamic dimensions. `first` is the first wrong element in row-major order. The worst elements include right ones;
    they are None for an array without elements. Integers have only `worst_abs`, pred has none. If rounding decided about
    some elements, `rounding` has the counts, and `wrong` is the mask of the wrong elements in row-major order.
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
    worst_ulp: Worst | None = None
    problem: str = ""
    wrong: Array | None = None
    rounding: RoundingVerdict | None = None

    @property
    def ok(self) -> bool:
        """True if the arrays can be compared and no element is wrong."""
        return not self.problem and not self.mismatches

    @property
    def is_near(self) -> bool:
        """True if elements of this type must be near each other, False if they must be equal."""
        return self.shape.dtype.kind in ("float", "complex")


def compare_leaf(expected: Value, actual: Value, shape: Shape, path: tuple[int, ...], spec: ErrorSpec) -> LeafComparison:
    """Compare two values, expected to be arrays of `shape`: floats and complex numbers by `spec`, others exactly."""
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return LeafComparison(path, shape, expected, actual, problem="one is an array, the other is not")
    problem = _shape_problem(expected, actual, shape)
    if problem:
        return LeafComparison(path, shape, expected, actual, problem=problem)
    if shape.dims != expected.shape:
        shape = replace(shape, dims=expected.shape, dynamic_dims=())
    if shape.dtype.kind in ("float", "complex"):
        return _compare_floats(expected, actual, shape, path, spec)
    return _compare_exactly(expected, actual, shape, path)


def _shape_problem(expected: Array, actual: Array, shape: Shape) -> str:
    """Return the difference of the arrays' shapes in XLA's words, or ""."""
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
    worst: Worst | None = None
    for start, want, got in steps(expected, actual):
        wrong = unequal(want, got)
        count = int(np.count_nonzero(wrong))
        if count and first is None:
            first = _worst(math.inf, start + int(np.argmax(wrong)), expected, actual)
        if shape.dtype.is_integer and (count or worst is None):
            worst = _worse(worst, integer_distance(want, got, shape.dtype), start, expected, actual)
        mismatches += count
    return LeafComparison(path, shape, expected, actual, mismatches, first=first, worst_abs=worst)


def unequal(want: Array, got: Array) -> Array:
    """Return per integer or pred whether they differ. A byte of a pred that is neither 0 nor 1 differs from both."""
    return want.view(np.uint8) != got.view(np.uint8) if want.dtype == np.bool_ else want != got


def integer_distance(first: Array, second: Array, dtype: DType) -> Array:
    """Return the distances of integers as u64: exact, even from one end of s64 to the other."""
    kind = np.int64 if dtype.is_signed else np.uint64
    one, other = first.astype(kind), second.astype(kind)
    return np.where(one > other, one - other, other - one).view(np.uint64)


def _compare_floats(expected: Array, actual: Array, shape: Shape, path: tuple[int, ...], spec: ErrorSpec) -> LeafComparison:
    mismatches = nan_mismatches = 0
    first: Worst | None = None
    worst: list[Worst | None] = [None, None, None]
    for start, want, got in steps(expected, actual):
        if worst[0] is not None and same_bits(want, got).all():
            continue
        errors = element_errors(want, got, shape.dtype, spec)
        kinds = (errors.abs_error, errors.rel_error, errors.ulp_error)
        worst = [_worse(known, kind, start, expected, actual) for known, kind in zip(worst, kinds, strict=True)]
        count = int(np.count_nonzero(errors.mismatch))
        if count and first is None:
            place = int(np.argmax(errors.mismatch))
            first = _worst(float(errors.rel_error[place]), start + place, expected, actual)
        mismatches += count
        nan_mismatches += int(np.count_nonzero(errors.nan_mismatch))
    worst_abs, worst_rel, worst_ulp = worst
    return LeafComparison(path, shape, expected, actual, mismatches, nan_mismatches, first, worst_abs, worst_rel, worst_ulp)


def leaf_errors(leaf: LeafComparison, start: int, want: Array, got: Array, spec: ErrorSpec) -> ElementErrors:
    """Return the errors of a chunk of a float leaf that begins at element `start`, with the verdicts of `leaf.wrong`."""
    errors = element_errors(want, got, leaf.shape.dtype, spec)
    return errors if leaf.wrong is None else replace(errors, mismatch=leaf.wrong[start : start + want.size])


def mismatch_mask(leaf: LeafComparison, spec: ErrorSpec) -> Array:
    """Return a mask of the wrong elements of a leaf; if it cannot be compared, all elements of its shape are."""
    expected, actual = leaf.expected, leaf.actual
    if leaf.problem or not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return np.ones(leaf.shape.dims, np.bool_)
    mask = np.zeros(expected.size, np.bool_)
    if leaf.mismatches:
        for start, want, got in steps(expected, actual):
            if leaf.wrong is not None:
                wrong = leaf.wrong[start : start + want.size]
            else:
                wrong = element_errors(want, got, leaf.shape.dtype, spec).mismatch if leaf.is_near else unequal(want, got)
            mask[start : start + want.size] = wrong
    return mask.reshape(expected.shape)


def steps(expected: Array, actual: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield chunks of two arrays of one shape in row-major order: (number of the first element, elements, elements)."""
    flat_expected = np.ascontiguousarray(expected).reshape(-1)
    flat_actual = np.ascontiguousarray(actual).reshape(-1)
    for start in range(0, flat_expected.size, CHUNK_ELEMENTS):
        yield start, flat_expected[start : start + CHUNK_ELEMENTS], flat_actual[start : start + CHUNK_ELEMENTS]


def _worse(known: Worst | None, errors: Array, start: int, expected: Array, actual: Array) -> Worst | None:
    """Return the worse of the worst element so far and the worst one of a chunk."""
    place = int(np.argmax(errors))
    error = float(errors[place])
    return known if known and known.error >= error else _worst(error, start + place, expected, actual)


def _worst(error: float, place: int, expected: Array, actual: Array) -> Worst:
    index = multi_index(place, expected.shape)
    return Worst(error, index, expected[index], actual[index])


def multi_index(place: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of element number `place` in row-major order."""
    return tuple(int(i) for i in np.unravel_index(place, dims)) if dims else ()


def how_it_differs(leaf: LeafComparison) -> str:
    """Return `shape`, `NaN` or `wrong values` for an array that differs."""
    return "shape" if leaf.problem else "NaN" if leaf.nan_mismatches else "wrong values"
