"""Compare both sides of a leaf with its float64 value: which side is nearer, and where the reference itself is off."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from hlo_run.reference.compare.element_errors import ErrorSpec, element_errors
from hlo_run.reference.compare.leaf_comparison import LeafComparison, leaf_errors, steps
from hlo_run.reference.values import CHUNK_ELEMENTS, Array, Value, as_array, narrow


class PreciseLeaf(Struct, frozen=True):
    """One leaf in float64 (complex: c128), and how many of its mismatches are nearer to either side.

    `expected_off` counts the mismatches whose expected value differs by more than the bounds from the float64 value
    rounded to the type: the module is ill-conditioned there, or the expected value is wrong.
    """

    values: Array
    nearer_to_expected: int
    nearer_to_actual: int
    expected_off: int

    @property
    def verdict(self) -> str:
        """A sentence on what the float64 value says about the mismatches."""
        text = f"nearer to expected at {self.nearer_to_expected}, to actual at {self.nearer_to_actual} of the mismatches"
        if self.expected_off:
            text += f"; the expected value itself is out of bounds at {self.expected_off} (ill-conditioned there, or wrong)"
        return text


def precise_leaf(leaf: LeafComparison, value: Value | None, spec: ErrorSpec) -> PreciseLeaf | None:
    """Return the findings for a leaf; `value` is the whole result in float64. None if it has no array of the leaf's sizes."""
    for number in leaf.path:
        if not isinstance(value, tuple):
            return None
        value = value[number]
    expected = as_array(leaf.expected)
    if not isinstance(value, np.ndarray) or value.shape != expected.shape:
        return None
    flat = np.ascontiguousarray(value).reshape(-1)
    nearer = [0, 0, 0]
    for start, want, got in steps(expected, as_array(leaf.actual)):
        wrong = np.flatnonzero(leaf_errors(leaf, start, want, got, spec).mismatch)
        if wrong.size:
            some = _count(want[wrong], got[wrong], flat[start : start + CHUNK_ELEMENTS][wrong], leaf, spec)
            nearer = [known + new for known, new in zip(nearer, some, strict=True)]
    return PreciseLeaf(value, *nearer)


def _count(want: Array, got: Array, precise: Array, leaf: LeafComparison, spec: ErrorSpec) -> tuple[int, int, int]:
    dtype = leaf.shape.dtype
    to_expected, to_actual = distance(want, precise), distance(got, precise)
    off = element_errors(narrow(precise, dtype), want, dtype, spec).mismatch
    closer = np.count_nonzero(to_expected < to_actual), np.count_nonzero(to_actual < to_expected)
    return int(closer[0]), int(closer[1]), int(np.count_nonzero(off))


def distance(values: Array, precise: Array) -> Array:
    """Return elementwise distances. Two NaNs, or two equal infinities, have distance 0; they are infinitely far from others."""
    wide = values.astype(precise.dtype)
    same = (wide == precise) | (np.isnan(wide) & np.isnan(precise))
    found = np.where(same, 0.0, np.abs(wide - precise))
    return np.where(np.isnan(found), np.inf, found)
