"""Judge the elements in doubt by the rounding that their type allows, not by the fixed bounds alone.

Two kinds of elements are in doubt. *Beyond* the bounds: a long sum in bf16 may be off by more than 1e-3 although every op
rounds as it should. *Small*: the relative bound is exceeded, and only the absolute bound, which does not know the size of
the data, lets the element pass. The module's result in float64 and copies of it with random rounding errors
(`evaluate/perturbed.py`) tell how far off each element may be. Both sides must be that near to the float64 value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.reference.compare.element_errors import ErrorSpec, element_errors, float_distance
from hlo_run.reference.compare.leaf_comparison import LeafComparison, RoundingVerdict, Worst, multi_index, steps
from hlo_run.reference.values import Array, Value, as_array, narrow, quiet, widen

# An element may be off by the first factor times the largest error of the samples; by a smaller one, if the first makes the
# bounds of all elements as large as the elements themselves.
_FACTORS = (8.0, 4.0, 2.0)
# An error below this many roundings of the leaf's largest number is what cancellation leaves.
_CANCELLED_ROUNDINGS = 4.0
_MOST_CANCELLED = 2.0**-10
# So many samples, of this part of the elements, may by chance all be near the precise value; further ones tell.
_FURTHER_SAMPLES = 12
_PATIENCE = 3
_BY_CHANCE = 0.01
# Steps of the element type that are no reason for doubt.
_FEW_STEPS = 2


class RoundingSamples(Struct, frozen=True):
    """A result in float64, and the same with random roundings in every op; one value each, of the whole result.

    `further`, if given, returns another sample at each call.
    """

    precise: Value
    rounded: tuple[Value, ...]
    further: Callable[[], Value] | None = None


SampleSource: TypeAlias = "Callable[[], RoundingSamples | None]"
# The largest error of up to sixteen samples is seldom more than so many times that of one.
_OF_ONE = 4.0


def one_sample(precise: Value, rounded: Value) -> RoundingSamples:
    """Return samples with one rounded result, whose errors are enlarged to what those of several would be."""
    return RoundingSamples(precise, (_enlarged(precise, rounded),))


def _enlarged(precise: Value, rounded: Value) -> Value:
    if isinstance(precise, tuple) or isinstance(rounded, tuple):
        assert isinstance(precise, tuple), "samples have the structure of the result"
        assert isinstance(rounded, tuple), "samples have the structure of the result"
        return tuple(_enlarged(*parts) for parts in zip(precise, rounded, strict=True))
    if precise.dtype.kind not in "fc" or precise.shape != rounded.shape:
        return rounded
    with quiet():
        return np.asarray(precise + _OF_ONE * (rounded - precise))


def rounding(dtype: DType) -> float:
    """Return the largest relative error of one rounding to a float or complex type."""
    return 2.0 ** -(_part(dtype).float_format.mantissa_bits + 1)


def cancellation_floor(leaf: LeafComparison) -> float:
    """Return the size below which an error is the rounding of the leaf's largest finite number."""
    dtype = leaf.shape.dtype
    magnitude = np.abs(widen(as_array(leaf.expected), dtype))
    largest = float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))
    return min(_CANCELLED_ROUNDINGS * rounding(dtype), _MOST_CANCELLED) * largest


def judge(leaves: Sequence[LeafComparison], spec: ErrorSpec, source: SampleSource) -> tuple[LeafComparison, ...]:
    """Return the comparisons of the leaves with the verdicts on elements in doubt; `source` is called only if one is."""
    with quiet():
        doubts = [_doubts(leaf, spec) for leaf in leaves]
        if not any(found.size for pair in doubts for found in pair):
            return tuple(leaves)
        samples = source()
        if samples is None:
            return tuple(leaves)
        judged = tuple(_judged(leaf, pair, samples) for leaf, pair in zip(leaves, doubts, strict=True))
        elements = sum(as_array(leaf.expected).size for leaf in leaves if not leaf.problem)
        counts: list[int] = []
        for _ in range(_FURTHER_SAMPLES if samples.further else 0):
            counts.append(sum(leaf.mismatches for leaf in judged))
            # Real faults stay, and are rarely so few.
            stays = len(counts) > _PATIENCE and counts[-1] == counts[-1 - _PATIENCE]
            if not 0 < counts[-1] <= _BY_CHANCE * elements or stays:
                break
            samples = _with_further(samples)
            judged = tuple(_judged(leaf, pair, samples) for leaf, pair in zip(leaves, doubts, strict=True))
        return judged


_NONE: Array = np.zeros(0, np.int64)


def _doubts(leaf: LeafComparison, spec: ErrorSpec) -> tuple[Array, Array]:
    """Return the places of the elements beyond the bounds, and of the small ones."""
    if leaf.problem or not leaf.is_near or leaf.worst_rel is None or not leaf.worst_rel.error > spec.rel:
        return _NONE, _NONE
    floor = cancellation_floor(leaf)
    beyond, small = [_NONE], [_NONE]
    for start, want, got in steps(as_array(leaf.expected), as_array(leaf.actual)):
        errors = element_errors(want, got, leaf.shape.dtype, spec)
        finite = np.isfinite(errors.abs_error)
        beyond.append(start + np.flatnonzero(errors.mismatch & finite))
        small.append(
            start + np.flatnonzero(~errors.mismatch & finite & (errors.rel_error > spec.rel) & (errors.abs_error > floor))
        )
    return np.concatenate(beyond), np.concatenate(small)


def _with_further(samples: RoundingSamples) -> RoundingSamples:
    """Return the samples with one more, which takes the place of another where it is farther from the precise value."""
    assert samples.further is not None, "the caller asked for one"
    first, *rest = samples.rounded
    return replace(samples, rounded=(_farther(samples.precise, first, samples.further()), *rest))


def _farther(precise: Value, one: Value, two: Value) -> Value:
    if isinstance(precise, tuple) or isinstance(one, tuple) or isinstance(two, tuple):
        assert isinstance(precise, tuple), "samples have the structure of the result"
        assert isinstance(one, tuple), "samples have the structure of the result"
        assert isinstance(two, tuple), "samples have the structure of the result"
        return tuple(_farther(*parts) for parts in zip(precise, one, two, strict=True))
    first = as_array(one)
    if first.dtype.name not in ("float64", "complex128"):
        return one
    exact, old, new = (_parts(as_array(value)) for value in (precise, one, two))
    chosen: Array = np.where(np.isnan(old) | (np.abs(new - exact) <= np.abs(old - exact)), old, new)
    return chosen.view(first.dtype).reshape(first.shape)


def _judged(leaf: LeafComparison, doubts: tuple[Array, Array], samples: RoundingSamples) -> LeafComparison:
    beyond, small = doubts
    values = [_leaf_value(value, leaf) for value in (samples.precise, *samples.rounded)]
    if not (beyond.size or small.size) or any(value is None for value in values):
        return leaf
    precise, *rounded = (as_array(value).reshape(-1) for value in values if value is not None)
    expected, actual = as_array(leaf.expected).reshape(-1), as_array(leaf.actual).reshape(-1)
    measure = _in_steps if leaf.shape.dtype.bits < 16 else _in_values
    errors = measure(expected, actual, precise, rounded, leaf.shape.dtype)
    near_expected: Array = np.all(errors.of_expected <= errors.allowed, axis=-1)
    # A leaf whose numbers are all lost in rounding tells nothing about itself.
    is_lost = not (errors.allowed < errors.size).any()
    is_bounded: Array = np.all(np.isfinite(errors.allowed), axis=-1)
    near_actual: Array = np.all(errors.of_actual <= errors.allowed, axis=-1)
    # Both sides are the float64 value but for the rounding of the result: right, however lost other roundings may be.
    is_right: Array = np.all((errors.of_expected <= errors.last) & (errors.of_actual <= errors.last), axis=-1)
    explained = is_right | (near_expected & near_actual & is_bounded & (not is_lost))
    far: Array = np.any((errors.apart > errors.allowed) & (errors.of_actual > errors.allowed), axis=-1)
    unexplained = near_expected & far
    if is_lost and beyond.size and not explained[beyond].all():
        return replace(leaf, rounding=RoundingVerdict(0, 0, 0.0, is_lost=True))
    accepted, rejected = beyond[explained[beyond]], small[unexplained[small]]
    if not accepted.size and not rejected.size:
        return leaf
    wide = np.abs(_parts(precise[accepted].astype(np.complex128 if leaf.shape.dtype.is_complex else np.float64)))
    off = np.abs(_parts(_wide(actual[accepted], leaf.shape.dtype)) - _parts(_wide(expected[accepted], leaf.shape.dtype)))
    largest = float(np.max(off / wide, initial=0.0, where=wide > 0))
    return _with_verdict(leaf, beyond, accepted, rejected, largest)


class _Errors(Struct, frozen=True):
    """Per element and part: what rounding allows, and that of the result alone; the errors of both sides; their distance;
    and the distance from zero.
    """

    allowed: Array
    last: Array
    of_expected: Array
    of_actual: Array
    apart: Array
    size: Array


def _in_values(expected: Array, actual: Array, precise: Array, rounded: Sequence[Array], dtype: DType) -> _Errors:
    """Return the errors as differences."""
    exact, want, got = _parts(precise), _parts(_wide(expected, dtype)), _parts(_wide(actual, dtype))
    spread = np.max([np.abs(_parts(sample) - exact) for sample in rounded], axis=0)
    spread[np.isnan(spread)] = np.inf
    size = np.abs(exact)
    usual = (size > 0) & np.isfinite(spread)
    relative = float(np.median(spread[usual] / size[usual])) if usual.any() else 0.0
    # The last roundings are those of the result itself, on both sides.
    last = 2 * rounding(dtype) * size + 2 * _step(dtype)
    off = np.maximum(spread, relative * size)
    bounds = [factor * off + last for factor in _FACTORS]
    allowed = next((bound for bound in bounds if (bound < size).any()), bounds[0])
    return _Errors(allowed, last, np.abs(want - exact), np.abs(got - exact), np.abs(want - got), size)


def _in_steps(expected: Array, actual: Array, precise: Array, rounded: Sequence[Array], dtype: DType) -> _Errors:
    """Return the errors as numbers of the narrow type between two: a difference says little where one step is a factor."""

    def steps_from(x: Array, y: Array) -> Array:
        both_nan = np.isnan(_wide(x, dtype)) & np.isnan(_wide(y, dtype))
        one_nan = np.isnan(_wide(x, dtype)) ^ np.isnan(_wide(y, dtype))
        distance = float_distance(_wide(x, dtype), _wide(y, dtype), dtype).astype(np.float64)
        return np.where(both_nan, 0.0, np.where(one_nan, np.inf, distance)).reshape(-1, 1)

    exact = narrow(precise, dtype)
    spread = np.max([steps_from(narrow(sample, dtype), exact) for sample in rounded], axis=0)
    allowed = 1 + 2 * spread
    zero = np.zeros_like(exact)
    of_expected, of_actual = steps_from(expected, exact), steps_from(actual, exact)
    return _Errors(allowed, np.ones_like(allowed), of_expected, of_actual, steps_from(expected, actual), steps_from(exact, zero))


def _with_verdict(leaf: LeafComparison, beyond: Array, accepted: Array, rejected: Array, largest: float) -> LeafComparison:
    expected, actual = as_array(leaf.expected), as_array(leaf.actual)
    wrong = np.zeros(expected.size, np.bool_)
    if leaf.mismatches > beyond.size:  # NaNs and infinities, which no rounding explains
        for start, want, got in steps(expected, actual):
            errors = element_errors(want, got, leaf.shape.dtype, ErrorSpec(np.inf, np.inf))
            wrong[start : start + want.size] = ~np.isfinite(errors.abs_error)
    wrong[beyond] = True
    wrong[accepted] = False
    wrong[rejected] = True
    count = int(np.count_nonzero(wrong))
    first: Worst | None = None
    if count:
        place = int(np.argmax(wrong))
        index = multi_index(place, expected.shape)
        first = Worst(0.0, index, expected[index], actual[index])
    verdict = RoundingVerdict(int(accepted.size), int(rejected.size), largest)
    return replace(leaf, mismatches=count, first=first, wrong=wrong, rounding=verdict)


def _leaf_value(value: Value, leaf: LeafComparison) -> Value | None:
    for number in leaf.path:
        if not isinstance(value, tuple):
            return None
        value = value[number]
    return value if isinstance(value, np.ndarray) and value.shape == as_array(leaf.expected).shape else None


def _part(dtype: DType) -> DType:
    return DTYPES["f32" if dtype.bits == 64 else "f64"] if dtype.is_complex else dtype


def _wide(values: Array, dtype: DType) -> Array:
    """Return elements of type `dtype` as f64, complex ones as c128."""
    return values.astype(np.complex128) if dtype.is_complex else widen(values, dtype).astype(np.float64)


def _parts(values: Array) -> Array:
    """Return f64 or c128 elements as [element, part]: complex numbers have two parts."""
    if values.dtype.kind == "c":
        return np.ascontiguousarray(values, np.complex128).view(np.float64).reshape(-1, 2)
    return values.reshape(-1, 1)


def _step(dtype: DType) -> float:
    """Return the distance of the smallest numbers; of f32 and f64 the smallest normal, since kernels may flush to it."""
    part = _part(dtype)
    return float(np.finfo(part.numpy).tiny) if part.bits >= 32 else part.float_format.step
