"""Errors of single elements, over every pair of numbers of the small types and generated ones of the large."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_running import INF

from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.reference.bits import from_element_bits
from hlo_run.reference.compare.element_errors import ErrorSpec, element_errors, float_distance
from hlo_run.reference.compare.leaf_comparison import integer_distance
from hlo_run.reference.compare.special_values import SpecialValues
from hlo_run.reference.values import Array, quiet, widen

SMALL_FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float and dtype.bits <= 8]


def _numbers(name: str) -> Array:
    """Return the finite numbers of a type in ascending order, ±0 once."""
    dtype = DTYPES[name]
    line = from_element_bits(np.arange(1 << dtype.bits).astype(np.uint16 if dtype.bits > 8 else np.uint8), dtype)
    with quiet():
        wide = widen(line, dtype).astype(np.float64)
    _, first = np.unique(np.where(np.isfinite(wide), wide + 0.0, np.inf), return_index=True)
    return line[first][np.isfinite(wide[first])]


@pytest.mark.parametrize("name", [*SMALL_FLOATS, "f16", "bf16"])
def test_neighbours_are_one_step_apart(name: str) -> None:
    line = _numbers(name)
    wide = widen(line, DTYPES[name])
    assert (float_distance(wide[1:], wide[:-1], DTYPES[name]) == 1).all()
    assert int(float_distance(wide[-1:], wide[:1], DTYPES[name])[0]) == len(line) - 1


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_every_pair_of_a_small_type(name: str) -> None:
    dtype = DTYPES[name]
    line = _numbers(name)
    want, got = (side.reshape(-1) for side in np.meshgrid(line, line))
    with quiet():
        errors = element_errors(want.copy(), got.copy(), dtype, ErrorSpec(0.25, 0.25))
    exact = np.abs(widen(got, dtype).astype(np.float64) - widen(want, dtype).astype(np.float64))
    with quiet():
        rounded = exact.astype(np.float32).astype(dtype.numpy).astype(np.float64)
    rounded = np.where(exact == 0, 0.0, np.where(np.isnan(rounded), np.inf, rounded))
    assert errors.abs_error.tolist() == rounded.tolist()
    places = np.searchsorted(line.astype(np.float64), [want.astype(np.float64), got.astype(np.float64)])
    assert errors.ulp_error.tolist() == np.abs(places[0] - places[1]).tolist()
    assert not errors.nan_mismatch.any()


_f64 = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(_f64, _f64)
def test_steps_between_doubles_are_counted_exactly(x: float, y: float) -> None:
    def place(number: float) -> int:
        bits = int(np.float64(abs(number)).view(np.int64))
        return bits if math.copysign(1, number) > 0 else -bits

    found = float_distance(np.array([x]), np.array([y]), DTYPES["f64"])
    assert int(found[0]) == abs(place(x) - place(y))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=9), st.floats(0, 10), st.floats(0, 10))
def test_the_rule_element_by_element(pairs: list[tuple[float, float]], abs_bound: float, rel_bound: float) -> None:
    want, got = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    with quiet():
        found = element_errors(want, got, DTYPES["f32"], ErrorSpec(abs_bound, rel_bound))
    for number, (x, y) in enumerate(pairs):
        abs_error, rel_error = _expected_errors(x, y)
        assert float(found.abs_error[number]) == abs_error
        assert float(found.rel_error[number]) == pytest.approx(rel_error, rel=1e-12)
        assert bool(found.mismatch[number]) == (abs_error > abs_bound and float(found.rel_error[number]) > rel_bound)


def _expected_errors(x: float, y: float) -> tuple[float, float]:
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0, 0.0
    if not math.isfinite(x) or not math.isfinite(y):
        return INF, INF
    with quiet():
        difference = float(np.abs(np.float32(y) - np.float32(x)))
    if not math.isfinite(difference):
        return INF, INF
    return difference, float(Fraction(difference) / abs(Fraction(x))) if x else INF


CLASSES: dict[str, list[tuple[Any, Any]]] = {
    "nan_on_both_sides": [(math.nan, math.nan)],
    "nan_expected_only": [(math.nan, 1.0), (math.nan, INF)],
    "nan_actual_only": [(2.0, math.nan), (-INF, math.nan)],
    "same_infinity": [(INF, INF), (-INF, -INF)],
    "opposite_infinity": [(INF, -INF)],
    "infinity_expected_only": [(INF, 1.0), (-INF, 3e38)],
    "infinity_actual_only": [(1.0, -INF)],
}


def test_classes_of_special_values() -> None:
    for name, pairs in CLASSES.items():
        found = SpecialValues()
        for dtype in (np.float32, np.float64):
            found.add(*(np.array([*side, 1.0], dtype) for side in zip(*pairs, strict=True)))
        assert {key: count for key, count in found.counts().items() if count} == {name: 2 * len(pairs)}


@pytest.mark.parametrize("dtype", ["s64", "u64", "s4", "u2"])
def test_distances_of_integers_do_not_overflow(dtype: str) -> None:
    row = DTYPES[dtype]
    low = -(1 << (row.bits - 1)) if row.is_signed else 0
    high = low + (1 << row.bits) - 1
    ends: list[Any] = [
        np.array([v], object).astype(np.int64 if row.is_signed else np.uint64).astype(row.numpy) for v in (low, high)
    ]
    assert int(integer_distance(ends[0], ends[1], row)[0]) == high - low
    assert int(integer_distance(ends[1], ends[0], row)[0]) == high - low
