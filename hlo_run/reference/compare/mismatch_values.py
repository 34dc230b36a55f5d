"""Describe wrong values: zero, NaN, negated, scaled, or the expected values of other elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.compare.element_errors import ErrorSpec, element_errors
from hlo_run.reference.compare.leaf_comparison import LeafComparison
from hlo_run.reference.values import Array, computing_type, narrow, widen

# The share of a sample that must fit a pattern.
_SHARE = 0.9
# The fewest samples that can show moved values. Values of narrow types agree by accident, so they need more.
_FEW, _FEW_NARROW = 6, 48
_MAX_PERMUTED_DIMS = 4
_SHIFTS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)


def value_patterns(leaf: LeafComparison, expected: Array, actual: Array, places: Array, spec: ErrorSpec) -> list[str]:
    """Return sentences on what the actual values at `places` (row-major numbers of mismatches) have in common."""
    if not places.size:
        return []
    dtype = leaf.shape.dtype
    index = np.unravel_index(places, expected.shape) if expected.ndim else ()
    want, got = expected[index].reshape(-1), actual[index].reshape(-1)
    if text := _plain_pattern(widen(want, dtype), widen(got, dtype), dtype):
        return [text]
    enough = places.size >= (_FEW_NARROW if dtype.bits <= 8 else _FEW)
    if not enough:
        return []
    if text := _moved_pattern(expected, got, places, dtype, spec):
        return [text]
    related = _related(want, got, dtype, spec) if dtype.kind != "pred" else ""
    return [related] if related else []


def agree(expected: Array, actual: Array, dtype: DType, spec: ErrorSpec) -> Array:
    """Return per element whether it agrees by the rules of the comparison."""
    if dtype.kind in ("float", "complex"):
        return ~element_errors(expected, actual, dtype, spec).mismatch
    return expected == actual


def _plain_pattern(want: Array, got: Array, dtype: DType) -> str:
    """Return the pattern of the values alone, or "": all zero, all NaN, all infinite, all the same."""
    if dtype.kind == "pred":
        return "" if got.size < 2 or got.min() != got.max() else f"every mismatch is {str(bool(got[0])).lower()}"
    if dtype.is_float or dtype.is_complex:
        if np.isnan(got).all():
            return "every mismatch is NaN"
        if np.isinf(got).all() and np.isfinite(want).all():
            return "every mismatch is infinite where a number is expected: an overflow?"
    if not got.any():
        return _zero_text(want, dtype)
    if got.size > 2 and (got == got[0]).all() and not (want == want[0]).all():
        return f"every mismatch has the same value, {got[0]}"
    return ""


def _zero_text(want: Array, dtype: DType) -> str:
    if dtype.is_float and (np.abs(want) < _smallest_normal(dtype)).all():
        return "every mismatch is 0 where a denormal is expected: flushed to zero?"
    return "every mismatch is 0: never written?"


def _smallest_normal(dtype: DType) -> float:
    return 2.0 ** (1 - dtype.float_format.bias)


def _moved_pattern(expected: Array, got: Array, places: Array, dtype: DType, spec: ErrorSpec) -> str:
    """Return the pattern by which actual values are expected values of other elements, or ""."""
    if not expected.ndim:
        return ""
    flat = np.ascontiguousarray(expected).reshape(-1)
    for text, sources in _sources(expected.shape, places):
        if np.mean(agree(flat[sources], got, dtype, spec)) >= _SHARE:
            return text
    return ""


def _sources(dims: tuple[int, ...], places: Array) -> Iterator[tuple[str, Array]]:
    """Yield pairs of a pattern and the elements (row-major numbers) whose expected values the actual ones would be."""
    index = np.unravel_index(places, dims)
    for dim, size in enumerate(dims):
        for shift in _SHIFTS:
            for signed in (shift, -shift) if 2 * shift < size else ():
                moved = (*index[:dim], (index[dim] + signed) % size, *index[dim + 1 :])
                text = f"actual values look shifted: index i of dimension {dim} holds what belongs to i {signed:+d}"
                yield text, np.ravel_multi_index(moved, dims)
        if size > 1:
            moved = (*index[:dim], size - 1 - index[dim], *index[dim + 1 :])
            yield f"actual values look reversed along dimension {dim}", np.ravel_multi_index(moved, dims)
            moved = (*index[:dim], np.zeros_like(index[dim]), *index[dim + 1 :])
            yield f"actual values look broadcast: all of dimension {dim} holds index 0", np.ravel_multi_index(moved, dims)
    yield from _transposed(dims, places)


def _transposed(dims: tuple[int, ...], places: Array) -> Iterator[tuple[str, Array]]:
    """Yield the pattern and the elements for every other order of dimensions in which the array may have been written."""
    wide = [dim for dim, size in enumerate(dims) if size > 1]
    if not 2 <= len(wide) <= _MAX_PERMUTED_DIMS:
        return
    for order in permutations(wide):
        if list(order) == wide:
            continue
        index: list[Array] = [np.zeros_like(places)] * len(dims)
        for dim, part in zip(order, np.unravel_index(places, [dims[dim] for dim in order]), strict=True):
            index[dim] = part
        moved = iter(order)
        permutation = [next(moved) if size > 1 else dim for dim, size in enumerate(dims)]
        text = f"actual values look transposed: as if written with dimensions={{{','.join(map(str, permutation))}}}"
        yield text, np.ravel_multi_index(tuple(index), dims)


def _related(want: Array, got: Array, dtype: DType, spec: ErrorSpec) -> str:
    """Return how the actual values follow from the expected ones: negated, conjugated, scaled, off by a constant; or ""."""
    with_sign = not dtype.is_unsigned and dtype.name != "f8e8m0fnu"
    wide_want, wide_got = widen(want, dtype), widen(got, dtype)
    if with_sign and np.mean(agree(narrow(-wide_want, dtype), got, dtype, spec)) >= _SHARE:
        return "actual values look negated"
    if dtype.is_complex:
        if np.mean(agree(np.conj(want), got, dtype, spec)) >= _SHARE:
            return "actual values look conjugated"
        return ""
    if dtype.is_integer:
        offset = _wrapped_difference(wide_want, wide_got, dtype)
        return f"actual values are off by {int(offset[0]):+d}" if (offset == offset[0]).all() else ""
    return _float_relation(wide_want, wide_got, dtype, spec)


def _wrapped_difference(want: Array, got: Array, dtype: DType) -> Array:
    """Return got - want modulo the type's width, as the signed number nearest to 0."""
    unused = np.int64(64 - dtype.bits)
    return ((got.astype(np.int64) - want.astype(np.int64)) << unused) >> unused


def _float_relation(want: Array, got: Array, dtype: DType, spec: ErrorSpec) -> str:
    numbers = np.isfinite(want) & np.isfinite(got) & (want != 0)
    if np.mean(numbers) < _SHARE or np.ptp(np.abs(want[numbers])) == 0:
        return ""
    want, got = want[numbers].astype(np.float64), got[numbers].astype(np.float64)
    factor, offset = float(np.median(got / want)), float(np.median(got - want))
    for text, guess in (
        (f"actual values look scaled by {factor:.6g}", want * factor),
        (f"actual values look off by {offset:+.6g}", want + offset),
    ):
        rounded, target = (narrow(side.astype(computing_type(dtype)), dtype) for side in (guess, got))
        if np.mean(agree(rounded, target, dtype, _tight(spec, dtype))) >= _SHARE:
            return text
    return ""


def _tight(spec: ErrorSpec, dtype: DType) -> ErrorSpec:
    """Bounds for a guess: an absolute bound as large as the values would prove any guess."""
    return ErrorSpec(0.0, max(min(spec.rel, 1e-2), 2.0 ** (1 - dtype.float_format.mantissa_bits)))
