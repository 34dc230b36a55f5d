"""Judge integers and preds that floats decide: if rounding turns the decision, both values are right.

    c = pred[n] compare(a + b, d)   i = s32[n] convert(x · y)   argmax(exp(x))

Integers must be equal otherwise. Evaluations with random roundings show what rounding may make of an element. Where they make two
numbers, as where two elements are equally large, others are wrong. Where they make more, a float was converted, and all numbers
between them are right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.records import replace
from hlo_run.reference.compare.leaf_comparison import Allowance, LeafComparison, RoundingVerdict, Worst, multi_index, unequal
from hlo_run.reference.compare.rounding import RoundingSamples, leaf_value
from hlo_run.reference.values import Array, as_array

# An element that turns does so in one of two evaluations, if its operands are equal but for rounding.
_FIRST_SAMPLES = 4
_MOST_SAMPLES = 16


def judge_decisions(leaves: Sequence[LeafComparison], samples: RoundingSamples) -> tuple[LeafComparison, ...]:
    """Return the comparisons of the leaves, without wrong integers and preds that rounding turns."""
    doubted = [n for n, leaf in enumerate(leaves) if leaf.mismatches and not leaf.problem and not leaf.is_near]
    found = list(leaves)
    ranges: dict[int, _Range] = {}
    for number in range(_MOST_SAMPLES + 1 if doubted else 0):
        value = samples.draw() if number else samples.precise()
        if value is None:
            return tuple(leaves)
        for n in doubted:
            array = leaf_value(value, leaves[n])
            if array is None:
                return tuple(leaves)
            ranges[n] = ranges[n].extended(array) if n in ranges else _Range(array, array, np.zeros(array.shape, np.bool_))
        found = [_judged(leaf, ranges[n]) if n in ranges else leaf for n, leaf in enumerate(leaves)]
        wrong = [n for n in doubted if not found[n].ok]
        if not wrong or (number >= _FIRST_SAMPLES and all(found[n] is leaves[n] for n in wrong)):
            break
    return tuple(found)


class _Range(Struct, frozen=True):
    """The least and the largest number that each element has had, and whether it has had others."""

    low: Array
    high: Array
    has_more: Array

    def extended(self, array: Array) -> _Range:
        """Return the range with one more evaluation."""
        low, high = np.minimum(self.low, array), np.maximum(self.high, array)
        is_new = (array != self.low) & (array != self.high) & (self.low != self.high)
        # A new end leaves the old one inside.
        return _Range(low, high, self.has_more | is_new)

    def has(self, side: Array) -> Array:
        """Return which elements of a side may be right."""
        is_end = (side == self.low) | (side == self.high)
        return np.asarray(is_end | (self.has_more & (self.low <= side) & (side <= self.high)))


def _judged(leaf: LeafComparison, may_be: _Range) -> LeafComparison:
    """Return a comparison in which elements are right that rounding may make, on both sides."""
    expected, actual = as_array(leaf.expected), as_array(leaf.actual)
    wrong: Array = unequal(np.ascontiguousarray(expected), np.ascontiguousarray(actual)).reshape(expected.shape)
    low, high = may_be.low, may_be.high
    turned: Array = wrong & (low < high) & may_be.has(expected) & may_be.has(actual)
    count = int(np.count_nonzero(turned))
    if not count:
        return leaf
    wrong &= ~turned
    first: Worst | None = None
    if wrong.any():
        index = multi_index(int(np.argmax(wrong)), expected.shape)
        first = Worst(0.0, index, expected[index], actual[index])
    place = multi_index(int(np.argmax(turned)), expected.shape)
    most = float(high[place]) - float(low[place])
    example = Allowance(place, expected[place], actual[place], None, most, np.inf, is_jump=True)
    verdict = RoundingVerdict(count, 0, 0.0, first=example)
    return replace(leaf, mismatches=int(np.count_nonzero(wrong)), first=first, wrong=wrong.reshape(-1), rounding=verdict)
