"""Judge the elements in doubt by the rounding that their type allows, not by the fixed bounds alone.

Two kinds of elements are in doubt. *Beyond* the bounds: a long sum in bf16 may be off by more than 1e-3 although every op
rounds as it should. *Within* them: only the absolute bound, which does not know the size of the data, lets the element pass,
or the relative bound, which does not know how many digits f64 has. The module's result in float64 and copies of it with
random rounding errors (`evaluate/perturbed.py`) tell how far off each element may be (`spread.py`), so a sum that cancels is
judged by its terms. Both sides must be that near to the float64 value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.records import replace
from hlo_run.reference.compare.element_errors import ErrorSpec, element_errors, float_distance
from hlo_run.reference.compare.leaf_comparison import Allowance, LeafComparison, RoundingVerdict, Worst, multi_index, steps
from hlo_run.reference.compare.spread import NEAR, Jumps, Spread
from hlo_run.reference.values import Array, Value, as_array, narrow, quiet, widen

# An error below this many roundings of the leaf's largest number is what cancellation leaves.
_CANCELLED_ROUNDINGS = 4.0
_MOST_CANCELLED = 2.0**-10
# A relative error of so many roundings is a reason for doubt: 6e-5 in f32, 1e-13 in f64.
_DOUBTED_ROUNDINGS = 2.0**10
_DOUBTED_ROUNDINGS_ALONE = 2.0**6
# Two evaluations may be so many times the scale of one sample apart to need no more samples.
_CLOSE = 2.0
# So many samples decide; if elements are still wrong, more tell whether the first missed something by chance.
_FIRST_SAMPLES = 2
_MOST_SAMPLES = 16
# Fewer show no jumps.
_JUMP_SAMPLES = 4
# Where rounding reaches the size of most numbers, as in the inverse of a singular matrix, some errors are far above others:
# a few samples are that much too small.
_HEAVY_TAILS = 4.0
# Real faults stay, and most of them concern many elements: so many further samples in a row must make a difference.
_PATIENCE = 3
_FEW = 0.01


class RoundingSamples(Struct, frozen=True):
    """Evaluations of a whole result in float64: exact ones, and ones with random roundings in every op, new ones at each call.

    Either may return None if the module cannot be evaluated so.
    """

    precise: Callable[[], Value | None]
    draw: Callable[[], Value | None]


def rounding(dtype: DType) -> float:
    """Return the largest relative error of one rounding to a float or complex type."""
    return 2.0 ** -(_part(dtype).float_format.mantissa_bits + 1)


def cancellation_floor(leaf: LeafComparison) -> float:
    """Return the size below which an error is the rounding of the leaf's largest finite number."""
    return min(_CANCELLED_ROUNDINGS * rounding(leaf.shape.dtype), _MOST_CANCELLED) * largest_number(leaf)


def largest_number(leaf: LeafComparison) -> float:
    """Return the largest finite magnitude among the expected numbers of a leaf; 0 without one."""
    magnitude = np.abs(widen(as_array(leaf.expected), leaf.shape.dtype))
    return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))


def judge(
    leaves: Sequence[LeafComparison], spec: ErrorSpec, samples: RoundingSamples, is_alone: bool = False
) -> tuple[LeafComparison, ...]:
    """Return the comparisons of the leaves with the verdicts on elements in doubt; nothing is evaluated if none is.

    `is_alone`: the module is one kernel, of which smaller errors are a reason for doubt.

    What is two roundings from the expected value is right, and one sample may settle the rest if that is close. Else the
    exact result and more samples decide.
    """
    with quiet():
        doubts = [_doubts(leaf, spec, is_alone) for leaf in leaves]
        if not any(found.size for pair in doubts for found in pair):
            return tuple(leaves)
        benches = [_bench(leaf, doubt, None) for leaf, doubt in zip(leaves, doubts, strict=True)]
        judged = _verdicts(leaves, benches)
        if _is_settled(judged, benches):
            return judged
        first = samples.draw()
        if first is None:
            return tuple(leaves)
        judged = _verdicts(leaves, benches, first)
        if _is_settled(judged, benches):
            return judged
        precise = samples.precise()
        if precise is None:
            return tuple(leaves)
        benches = [_bench(leaf, doubt, precise) for leaf, doubt in zip(leaves, doubts, strict=True)]
        _verdicts(leaves, benches, first)
        most = max(1.0, _FEW * sum(as_array(leaf.expected).size for leaf in leaves if not leaf.problem))
        counts: list[int] = []
        for number in range(_FIRST_SAMPLES, _MOST_SAMPLES + 1):
            sample = samples.draw()
            if sample is None:
                return tuple(leaves)
            judged = _verdicts(leaves, benches, sample)
            counts.append(sum(leaf.mismatches for leaf in judged))
            stays = len(counts) > _PATIENCE and counts[-1] == counts[-1 - _PATIENCE]
            is_large = number >= 2 * _JUMP_SAMPLES and counts[-1] > most
            if not counts[-1] or stays or is_large:
                break
        return judged


def _verdicts(
    leaves: Sequence[LeafComparison], benches: Sequence[_Bench | None], sample: Value | None = None
) -> tuple[LeafComparison, ...]:
    """Add a sample, and return the verdicts on the leaves."""
    known = [bench for bench in benches if bench is not None]
    if sample is not None:
        for bench in known:
            bench.add(sample)
    counts = [bench.lost() for bench in known]
    is_lost = 2 * sum(counts) > sum(as_array(leaf.expected).size for leaf in leaves if not leaf.problem)
    for bench, count in zip(known, counts, strict=True):
        bench.is_lost = is_lost or 2 * count > bench.exact.size
    return tuple(leaf if bench is None else bench.verdict() for leaf, bench in zip(leaves, benches, strict=True))


def _is_settled(judged: Sequence[LeafComparison], benches: Sequence[_Bench | None]) -> bool:
    return all(leaf.ok or bench is None for leaf, bench in zip(judged, benches, strict=True))


_NONE: Array = np.zeros(0, np.int64)


def _doubts(leaf: LeafComparison, spec: ErrorSpec, is_alone: bool) -> tuple[Array, Array]:
    """Return the places of the elements beyond the bounds, and of those within."""
    if leaf.problem or not leaf.is_near or leaf.worst_rel is None:
        return _NONE, _NONE
    # Two roundings of the result, one on each side, are no reason for doubt.
    least = 2 * rounding(leaf.shape.dtype) if leaf.shape.dtype.bits >= 16 else 0.0
    roundings = _DOUBTED_ROUNDINGS_ALONE if is_alone else _DOUBTED_ROUNDINGS
    least = max(least, min(spec.rel, roundings * rounding(leaf.shape.dtype)))
    if not leaf.worst_rel.error > least and not leaf.mismatches:
        return _NONE, _NONE
    floor = 0.0 if is_alone else cancellation_floor(leaf)
    beyond, within = [_NONE], [_NONE]
    for start, want, got in steps(as_array(leaf.expected), as_array(leaf.actual)):
        errors = element_errors(want, got, leaf.shape.dtype, spec)
        finite = np.isfinite(errors.abs_error)
        is_within = ~errors.mismatch & (errors.rel_error > least) & (errors.abs_error > floor)
        beyond.append(start + np.flatnonzero(errors.mismatch & finite))
        within.append(start + np.flatnonzero(is_within & finite))
    return np.concatenate(beyond), np.concatenate(within)


def _bench(leaf: LeafComparison, doubts: tuple[Array, Array], precise: Value | None) -> _Bench | None:
    """Return what judges a leaf: by its exact value, or (None) by the expected one. None without doubt, or without a value."""
    if not any(map(len, doubts)):
        return None
    exact = _wide(as_array(leaf.expected), leaf.shape.dtype) if precise is None else leaf_value(precise, leaf)
    if exact is None:
        return None
    kind = _InSteps if leaf.shape.dtype.bits < 16 else _InValues
    return kind(leaf, doubts, exact, is_exact=precise is not None)


class _Bench(ABC):
    """Judges the elements in doubt of one leaf by the samples so far. `places` has those beyond the bounds first."""

    def __init__(self, leaf: LeafComparison, doubts: tuple[Array, Array], exact: Array, is_exact: bool) -> None:
        self.leaf, self.dtype, self.is_exact = leaf, leaf.shape.dtype, is_exact
        self.beyond = doubts[0]
        self.places = np.concatenate(doubts)
        self.exact = exact.reshape(-1)
        self.expected, self.actual = (as_array(side).reshape(-1) for side in (leaf.expected, leaf.actual))
        self.count = 0
        self.is_whole = True
        self.is_lost = False  # most numbers of the leaf, or of the result

    def add(self, sample: Value) -> None:
        """Add a sample of the whole result."""
        value = leaf_value(sample, self.leaf)
        self.is_whole = self.is_whole and value is not None
        if value is not None and self.is_whole:
            self.count += 1
            self.add_array(value.reshape(-1))

    @abstractmethod
    def add_array(self, sample: Array) -> None:
        """Add a sample of the leaf."""

    def lost(self) -> int:
        """Return how many elements of the leaf may be off by more than their size, if enough samples tell."""
        return 0

    @abstractmethod
    def errors(self) -> _Errors:
        """Return the errors of the elements in doubt and the allowed errors."""

    def verdict(self) -> LeafComparison:
        """Return the comparison of the leaf with the verdict on the elements in doubt."""
        if not self.is_whole:
            return self.leaf
        errors = self.errors()
        is_bounded: Array = np.all(np.isfinite(errors.allowed), axis=-1)
        near_expected: Array = np.all(errors.of_expected <= errors.allowed, axis=-1) & is_bounded
        near_actual: Array = np.all(errors.of_actual <= errors.allowed, axis=-1) & is_bounded
        # Both sides are the float64 value but for the rounding of the result: right, however lost other roundings may be.
        is_right: Array = np.all((errors.of_expected <= errors.last) & (errors.of_actual <= errors.last), axis=-1)
        far: Array = np.any((errors.apart > errors.allowed) & (errors.of_actual > errors.allowed), axis=-1)
        is_beyond: Array = np.arange(self.places.size) < self.beyond.size
        wrong: Array = np.where(is_beyond, ~(near_actual & near_expected | is_right), far & near_expected)
        count = int(np.count_nonzero(wrong))
        is_turned = False
        if 0 < count <= errors.jumps.count:
            is_turned = float(np.max(np.maximum(errors.of_actual, errors.of_expected)[wrong])) <= errors.jumps.largest
        accepted, rejected = is_beyond & (~wrong | is_turned), ~is_beyond & wrong & (not is_turned)
        if not accepted.any() and not rejected.any():
            return self.leaf
        return self._decided(accepted, rejected, self._allowance(accepted, wrong & is_turned, errors), errors)

    def _decided(self, accepted: Array, rejected: Array, first_accepted: Allowance | None, errors: _Errors) -> LeafComparison:
        leaf, expected, actual = self.leaf, as_array(self.leaf.expected), as_array(self.leaf.actual)
        wrong = np.zeros(expected.size, np.bool_)
        if leaf.mismatches > self.beyond.size:  # NaNs and infinities, which no rounding explains
            for start, want, got in steps(expected, actual):
                found = element_errors(want, got, self.dtype, ErrorSpec(np.inf, np.inf))
                wrong[start : start + want.size] = ~np.isfinite(found.abs_error)
        wrong[self.beyond] = True
        wrong[self.places[accepted]] = False
        wrong[self.places[rejected]] = True
        count = int(np.count_nonzero(wrong))
        first: Worst | None = None
        if count:
            place = int(np.argmax(wrong))
            index = multi_index(place, expected.shape)
            first = Worst(0.0, index, expected[index], actual[index])
        ratios = errors.off[accepted] / errors.magnitude[accepted]
        verdict = RoundingVerdict(
            int(np.count_nonzero(accepted)),
            int(np.count_nonzero(rejected)),
            float(np.max(ratios, initial=0.0, where=np.isfinite(ratios))),
            int(np.count_nonzero(np.all(errors.allowed[accepted] >= errors.size[accepted], axis=-1))),
            first_accepted,
        )
        return replace(leaf, mismatches=count, first=first, wrong=wrong, rounding=verdict)

    def _allowance(self, accepted: Array, turned: Array, errors: _Errors) -> Allowance | None:
        """Return the allowance at the first accepted element."""
        if not accepted.any():
            return None
        number = int(np.argmax(accepted))
        place, is_jump, size = int(self.places[number]), bool(turned[number]), float(np.max(errors.size[number]))
        allowed = errors.jumps.largest if is_jump else float(np.max(errors.allowed[number]))
        return Allowance(
            multi_index(place, as_array(self.leaf.expected).shape),
            self.expected[place],
            self.actual[place],
            self.exact[place] if self.is_exact else None,
            allowed,
            allowed / (rounding(self.dtype) * size) if size > 0 else np.inf,
            self.dtype.bits < 16,
            is_jump,
        )


class _Errors(Struct, frozen=True):
    """Per element in doubt and part: what rounding allows, and that of the result alone; the errors of both sides; their
    distance; and the distance from zero. `off` and `magnitude` are the distance and the size as numbers. `jumps` are those
    that the samples have.
    """

    allowed: Array
    last: Array
    of_expected: Array
    of_actual: Array
    apart: Array
    size: Array
    off: Array
    magnitude: Array
    jumps: Jumps = Jumps()


class _InValues(_Bench):
    """Errors are differences."""

    def __init__(self, leaf: LeafComparison, doubts: tuple[Array, Array], exact: Array, is_exact: bool) -> None:
        super().__init__(leaf, doubts, exact, is_exact)
        self._spread = Spread(_parts(self.exact))

    def add_array(self, sample: Array) -> None:
        exact, parts = self._spread.exact, _parts(sample)
        if not self.is_exact:
            # The expected value may be wrong, too: the sample is as far from the nearer side as rounding made it.
            got = _parts(_wide(self.actual, self.dtype))
            parts = np.where(np.abs(parts - got) < np.abs(parts - exact), exact + np.abs(parts - got), parts)
        self._spread.add(parts)

    def lost(self) -> int:
        return self._spread.lost() if self.count >= _JUMP_SAMPLES else 0

    def errors(self) -> _Errors:
        exact = self._spread.exact[self.places]
        want, got = (_parts(_wide(side[self.places], self.dtype)) for side in (self.expected, self.actual))
        size, apart = np.abs(exact), np.abs(want - got)
        last = self._last(size)
        allowed = last
        if self.count:
            factor = NEAR if self.is_exact else _CLOSE
            factor *= _HEAVY_TAILS if self.is_lost else 1.0
            allowed = factor * self._spread.scale()[self.places] + last
        jumps = self._spread.jumps(self._last(np.abs(self._spread.exact))) if self.count >= _JUMP_SAMPLES else Jumps()
        return _Errors(allowed, last, np.abs(want - exact), np.abs(got - exact), apart, size, apart, size, jumps)

    def _last(self, size: Array) -> Array:
        """Return the last roundings, which the result itself has on both sides."""
        return 2 * rounding(self.dtype) * size + 2 * _step(self.dtype)


class _InSteps(_Bench):
    """Errors are numbers of the narrow type between two: a difference says little where one step is a factor."""

    def __init__(self, leaf: LeafComparison, doubts: tuple[Array, Array], exact: Array, is_exact: bool) -> None:
        super().__init__(leaf, doubts, exact, is_exact)
        self._places_exact = narrow(self.exact[self.places], self.dtype)
        self._spread: Array = np.zeros((self.places.size, 1))

    def add_array(self, sample: Array) -> None:
        rounded = narrow(sample[self.places], self.dtype)
        steps_off = self._steps_from(rounded, self._places_exact)
        if not self.is_exact:
            steps_off = np.minimum(steps_off, self._steps_from(rounded, self.actual[self.places]))
        self._spread = np.maximum(self._spread, steps_off)

    def _steps_from(self, x: Array, y: Array) -> Array:
        wide = [_wide(side, self.dtype) for side in (x, y)]
        is_nan = [np.isnan(side) for side in wide]
        distance = float_distance(wide[0], wide[1], self.dtype).astype(np.float64)
        return np.where(is_nan[0] & is_nan[1], 0.0, np.where(is_nan[0] ^ is_nan[1], np.inf, distance)).reshape(-1, 1)

    def errors(self) -> _Errors:
        exact, want, got = self._places_exact, self.expected[self.places], self.actual[self.places]
        allowed = 1 + 2 * self._spread
        size = self._steps_from(exact, np.zeros_like(exact))
        off = np.abs(_parts(_wide(want, self.dtype) - _wide(got, self.dtype)))
        magnitude = np.abs(_parts(self.exact[self.places].astype(np.float64)))
        return _Errors(
            allowed,
            np.ones_like(allowed),
            self._steps_from(want, exact),
            self._steps_from(got, exact),
            self._steps_from(want, got),
            size,
            off,
            magnitude,
        )


def leaf_value(value: Value, leaf: LeafComparison) -> Array | None:
    """Return the array of a whole result at a leaf's place; None if the result has none of that shape there."""
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
