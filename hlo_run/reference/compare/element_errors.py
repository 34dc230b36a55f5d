"""Compute the errors of floats by XLA's rules: absolute, relative and ulp errors, NaNs and infinities."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.reference.bits import element_bits, from_element_bits
from hlo_run.reference.convert import convert
from hlo_run.reference.values import Array, narrow, widen


class ErrorSpec(Struct, frozen=True):
    """The bounds of a comparison; an element is wrong only if it exceeds both `abs` and `rel`.

    `relaxed_nans`: where NaN is expected, any actual value agrees. `fewer_infs_ok`: an actual infinity counts as
    the largest finite number where a finite one is expected. `low_precision` (a float type's name, n): values at most n
    steps of that type apart agree, whatever the bounds are.
    """

    abs: float = 0.0
    rel: float = 0.0
    all_nans_are_equivalent: bool = True
    relaxed_nans: bool = False
    fewer_infs_ok: bool = False
    low_precision: tuple[str, int] | None = None


class ElementErrors(Struct, frozen=True):
    """Per element: its errors in f64, whether it is wrong, and whether it is wrong because of a NaN.

    `ulp_error` is the number of steps of the element type between the two values, or infinite.
    """

    abs_error: Array
    rel_error: Array
    ulp_error: Array
    mismatch: Array
    nan_mismatch: Array


def element_errors(expected: Array, actual: Array, dtype: DType, spec: ErrorSpec) -> ElementErrors:
    """Return the errors of 1-d arrays of floats; a complex number has the errors of its worse part."""
    if dtype.is_complex:
        part = DTYPES["f32" if dtype.bits == 64 else "f64"]
        sides = [side.view(part.numpy).reshape(-1, 2) for side in (expected, actual)]
        parts = [element_errors(sides[0][:, k].copy(), sides[1][:, k].copy(), part, spec) for k in (0, 1)]
        return ElementErrors(
            np.maximum(parts[0].abs_error, parts[1].abs_error),
            np.maximum(parts[0].rel_error, parts[1].rel_error),
            np.maximum(parts[0].ulp_error, parts[1].ulp_error),
            parts[0].mismatch | parts[1].mismatch,
            parts[0].nan_mismatch | parts[1].nan_mismatch,
        )
    same = same_bits(expected, actual)
    places = np.flatnonzero(~same)
    if places.size * 2 > same.size:
        # To select most of the elements costs more than to compute the errors of the few equal ones.
        want, got = widen(expected, dtype), widen(actual, dtype)
        if np.isfinite(want).all() and np.isfinite(got).all():
            return _unequal_errors(want, got, dtype, spec)
    line = ElementErrors(*(np.zeros(expected.shape, kind) for kind in (*(np.float64,) * 3, np.bool_, np.bool_)))
    if places.size:
        some = _unequal_errors(widen(expected[places], dtype), widen(actual[places], dtype), dtype, spec)
        line.abs_error[places], line.rel_error[places] = some.abs_error, some.rel_error
        line.ulp_error[places] = some.ulp_error
        line.mismatch[places], line.nan_mismatch[places] = some.mismatch, some.nan_mismatch
    return line


def same_bits(expected: Array, actual: Array) -> Array:
    """Return per element whether both have the same bits."""
    bits = np.dtype(f"u{min(expected.dtype.itemsize, 8)}")
    same = expected.view(bits) == actual.view(bits)
    return same if expected.dtype.itemsize <= 8 else same.reshape(-1, 2).all(axis=1)


def _unequal_errors(want: Array, got: Array, dtype: DType, spec: ErrorSpec) -> ElementErrors:
    """Return the errors of elements in the computing type; finite elements may be equal, others must differ in bits."""
    ordinary = np.isfinite(want) & np.isfinite(got)
    if ordinary.all():
        errors = _finite_errors(want, got, dtype)
        nan_mismatch = np.zeros(want.shape, np.bool_)
    else:
        want_nan, got_nan = np.isnan(want), np.isnan(got)
        nan_mismatch = _nan_mismatch(want_nan, got_nan, spec)
        if spec.fewer_infs_ok:
            got = np.where(np.isinf(got) & np.isfinite(want), np.copysign(largest_finite(dtype), got), got)
        infinite = np.isinf(want) | np.isinf(got) | nan_mismatch
        equal = ~nan_mismatch & (want_nan | got_nan)
        errors = [np.where(equal, 0.0, np.where(infinite, np.inf, error)) for error in _finite_errors(want, got, dtype)]
    mismatch = (errors[0] > spec.abs) & (errors[1] > spec.rel)
    if spec.low_precision:
        name, count = spec.low_precision
        mismatch &= float_distance(want, got, DTYPES[name]) > np.uint64(count)
    return ElementErrors(errors[0], errors[1], errors[2], mismatch, nan_mismatch)


def _nan_mismatch(want_nan: Array, got_nan: Array, spec: ErrorSpec) -> Array:
    if spec.relaxed_nans:
        return ~want_nan & got_nan
    return want_nan != got_nan if spec.all_nans_are_equivalent else want_nan | got_nan


def _finite_errors(want: Array, got: Array, dtype: DType) -> list[Array]:
    """Return the absolute, relative and ulp error of finite elements; other elements have undefined ones."""
    # The difference is rounded to the element type, in which XLA computes it; one out of range is infinite.
    difference = np.abs(widen(narrow(np.abs(got - want), dtype), dtype)).astype(np.float64)
    if dtype.bits < 16:
        difference[np.isnan(difference)] = np.inf
        difference[want == got] = 0.0  # f8e8m0fnu has no zero
    relative = difference / np.abs(want)
    relative[(want == 0) & (difference == 0)] = 0.0
    return [difference, relative, float_distance(want, got, dtype).astype(np.float64)]


def largest_finite(dtype: DType) -> Array:
    """Return the largest finite number of a float type, in its computing type."""
    if dtype.bits >= 32:
        return np.asarray(np.finfo(dtype.numpy).max)
    numbers = widen(from_element_bits(np.arange(1 << dtype.bits), dtype), dtype)
    return np.max(numbers[np.isfinite(numbers)])


def float_distance(x: Array, y: Array, dtype: DType) -> Array:
    """Return the number of steps of `dtype` between x and y, both rounded to it, as u64; +0 and -0 are one number."""
    first, second = (_ordinal(convert(side, _computing_dtype(side), dtype), dtype) for side in (x, y))
    if dtype.bits < 64:
        return np.abs(first - second).view(np.uint64)
    # The distance of two f64 may need 64 bits: it is the larger minus the smaller ordinal modulo 2^64.
    return np.where(first > second, first - second, second - first).view(np.uint64)


def float_distance_between(x: object, y: object, name: str) -> int:
    """Return the number of steps of the float type `name` between two numbers of any float type."""
    first, second = (np.asarray(side).astype(np.float64).reshape(1) for side in (x, y))
    return int(float_distance(first, second, DTYPES[name])[0])


def _computing_dtype(array: Array) -> DType:
    return DTYPES["f64" if array.dtype == np.float64 else "f32"]


def _ordinal(x: Array, dtype: DType) -> Array:
    """Return the ordinal of each number among all numbers of its type, as s64; zero has 0."""
    if dtype.bits >= 16:
        bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
        negative = bits >> (dtype.bits - 1)
        # In a negative number all bits but the sign are inverted, which makes -0 a -1: 1 is added.
        return ((bits ^ (negative & np.iinfo(bits.dtype).max)) - negative).astype(np.int64)
    bits = element_bits(x, dtype).astype(np.int64)
    if dtype.name == "f8e8m0fnu":
        return bits  # has no sign
    size = bits & ((1 << (dtype.bits - 1)) - 1)
    return np.where(bits >> (dtype.bits - 1) != 0, -size, size)
