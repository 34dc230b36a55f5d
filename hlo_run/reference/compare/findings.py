"""Examine a failed comparison: counts, histograms, the top mismatches, bounds with which it would pass.

This is a second pass over the arrays, made only for a report. The results are plain data; `report.py` and
`report_json.py` print them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.element_errors import ElementErrors, ErrorSpec
from hlo_run.reference.compare.error_bounds import BoundFinder
from hlo_run.reference.compare.leaf_comparison import LeafComparison, integer_distance, leaf_errors, multi_index, steps, unequal
from hlo_run.reference.compare.patterns import PatternFinder, leaf_patterns
from hlo_run.reference.compare.precise_values import PreciseLeaf, distance, precise_leaf
from hlo_run.reference.compare.special_values import SpecialValues
from hlo_run.reference.values import Array, Value, as_array, quiet, widen

MAGNITUDE_BOUNDS = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, math.inf)
ERROR_BOUNDS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
# The number kept for files; texts show fewer.
MAX_TOP_MISMATCHES = 100

PreciseSource: TypeAlias = Callable[[], "Value | None"]


class TopMismatch(Struct, frozen=True):
    """One wrong element; `precise` is the reference's value in float64, or None if it was not computed."""

    index: tuple[int, ...]
    expected: object
    actual: object
    abs_error: float
    rel_error: float
    ulp_error: float
    precise: object = None

    @property
    def nearer(self) -> str:
        """The side that is nearer to the float64 value: `expected`, `actual`, or "" if neither is."""
        if self.precise is None:
            return ""
        distances = [float(distance(np.asarray([side]), np.asarray([self.precise]))[0]) for side in (self.expected, self.actual)]
        if distances[0] == distances[1]:
            return ""
        return "expected" if distances[0] < distances[1] else "actual"


class Histograms(Struct):
    """Counts in XLA's buckets: magnitudes of actual values, and one error of the elements that exceed the other's bound.

    The error buckets are cumulative: they count errors of at least `ERROR_BOUNDS[i]`.
    """

    magnitudes: Array = field(default_factory=lambda: np.zeros(len(MAGNITUDE_BOUNDS) - 1, np.int64))
    wrong_magnitudes: Array = field(default_factory=lambda: np.zeros(len(MAGNITUDE_BOUNDS) - 1, np.int64))
    exceeding_abs: int = 0
    exceeding_rel: int = 0
    rel_of_exceeding_abs: Array = field(default_factory=lambda: np.zeros(len(ERROR_BOUNDS), np.int64))
    abs_of_exceeding_rel: Array = field(default_factory=lambda: np.zeros(len(ERROR_BOUNDS), np.int64))

    def add(self, magnitude: Array, errors: ElementErrors, spec: ErrorSpec) -> None:
        """Count more elements."""
        self.magnitudes += np.histogram(magnitude[np.isfinite(magnitude)], MAGNITUDE_BOUNDS)[0]
        wrong = magnitude[errors.mismatch]
        self.wrong_magnitudes += np.histogram(wrong[np.isfinite(wrong)], MAGNITUDE_BOUNDS)[0]
        over_abs, over_rel = errors.abs_error > spec.abs, errors.rel_error > spec.rel
        self.exceeding_abs += int(np.count_nonzero(over_abs))
        self.exceeding_rel += int(np.count_nonzero(over_rel))
        self.rel_of_exceeding_abs += [np.count_nonzero(errors.rel_error[over_abs] >= bound) for bound in ERROR_BOUNDS]
        self.abs_of_exceeding_rel += [np.count_nonzero(errors.abs_error[over_rel] >= bound) for bound in ERROR_BOUNDS]


class LeafFindings(Struct, frozen=True):
    """The findings on one array that differs. Integers and pred have no histograms and no bounds.

    `bounds` are pairs (abs, rel) with which it would pass, by ascending abs; none if a NaN or infinity is on one side only.
    """

    leaf: LeafComparison
    top: tuple[TopMismatch, ...] = ()
    histograms: Histograms | None = None
    special: SpecialValues | None = None
    bounds: tuple[tuple[float, float], ...] = ()
    patterns: tuple[str, ...] = ()
    precise: PreciseLeaf | None = None


class Findings(Struct, frozen=True):
    """The result of `examine` on a result of `shape`: one record per leaf that differs, and patterns over all leaves.

    `problem` is set instead if the two results have different tuple structures.
    """

    shape: Shape
    spec: ErrorSpec
    compared: tuple[LeafComparison, ...]
    leaves: tuple[LeafFindings, ...]
    patterns: tuple[str, ...] = ()
    problem: str = ""


def examine(
    leaves: Sequence[LeafComparison], shape: Shape, spec: ErrorSpec, problem: str = "", precise: PreciseSource | None = None
) -> Findings:
    """Examine every leaf that differs.

    `precise` returns the result in float64, or None. It is called once, and only if a float leaf differs.
    """
    compared = tuple(leaves)
    wrong = [leaf for leaf in compared if not leaf.ok]
    value: Value | None = None
    if precise is not None and any(leaf.mismatches and leaf.is_near for leaf in wrong):
        value = precise()
    with quiet():
        found = tuple(_examine_leaf(leaf, spec, value) for leaf in wrong)
        return Findings(shape, spec, compared, found, leaf_patterns(compared, spec), problem)


def _examine_leaf(leaf: LeafComparison, spec: ErrorSpec, precise: Value | None) -> LeafFindings:
    if leaf.problem:
        return LeafFindings(leaf)
    walk = _Walk(leaf, spec)
    found = precise_leaf(leaf, precise, spec) if leaf.is_near else None
    patterns = walk.patterns.found()
    if not leaf.is_near:
        return LeafFindings(leaf, walk.top(None), patterns=patterns)
    bounds = tuple(walk.bounds.options())
    return LeafFindings(leaf, walk.top(found), walk.histograms, walk.special, bounds, patterns, found)


class _Walk:
    """The second pass over two arrays."""

    def __init__(self, leaf: LeafComparison, spec: ErrorSpec) -> None:
        self.histograms = Histograms()
        self.special = SpecialValues()
        self.bounds = BoundFinder()
        self.patterns = PatternFinder(leaf, spec)
        self._leaf, self._spec = leaf, spec
        self._expected, self._actual = as_array(leaf.expected), as_array(leaf.actual)
        self._top: list[tuple[float, int, float, float]] = []
        for start, want, got in steps(self._expected, self._actual):
            errors = leaf_errors(leaf, start, want, got, spec) if leaf.is_near else self._exact_errors(want, got)
            if leaf.is_near:
                self._add_floats(want, got, errors)
            places = np.flatnonzero(errors.mismatch)
            self.patterns.add(start, errors.mismatch, places)
            if places.size:
                self._add_top(start, places, errors)

    def _exact_errors(self, want: Array, got: Array) -> ElementErrors:
        wrong = unequal(want, got)
        dtype = self._leaf.shape.dtype
        error = integer_distance(want, got, dtype).astype(np.float64) if dtype.is_integer else wrong.astype(np.float64)
        return ElementErrors(error, error, error, wrong, np.zeros(want.shape, np.bool_))

    def _add_floats(self, want: Array, got: Array, errors: ElementErrors) -> None:
        magnitude = np.abs(widen(got, self._leaf.shape.dtype)).astype(np.float64)
        self.histograms.add(magnitude, errors, self._spec)
        self.special.add(widen(want, self._leaf.shape.dtype), widen(got, self._leaf.shape.dtype))
        self.bounds.add(errors.abs_error, errors.rel_error)

    def _add_top(self, start: int, places: Array, errors: ElementErrors) -> None:
        if len(self._top) == MAX_TOP_MISMATCHES:
            places = places[errors.rel_error[places] > self._top[-1][0]]
        worst = places[np.argsort(-errors.rel_error[places], kind="stable")[:MAX_TOP_MISMATCHES]]
        self._top += [
            (float(errors.rel_error[p]), -(start + int(p)), float(errors.abs_error[p]), float(errors.ulp_error[p])) for p in worst
        ]
        self._top = heapq.nlargest(MAX_TOP_MISMATCHES, self._top)

    def top(self, precise: PreciseLeaf | None) -> tuple[TopMismatch, ...]:
        """Return the mismatches with the largest relative errors; equal errors are in the order of the elements."""
        found: list[TopMismatch] = []
        for rel_error, place, abs_error, ulp_error in self._top:
            index = multi_index(-place, self._expected.shape)
            value = precise.values[index] if precise is not None else None
            element = self._expected[index], self._actual[index]
            found.append(TopMismatch(index, *element, abs_error, rel_error, ulp_error, value))
        return tuple(found)
