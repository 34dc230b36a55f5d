"""Closed intervals: sets, arithmetic by enumeration, saturation, three-valued comparison."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from typing import get_args

import pytest

from hlo_run.indexing import Interval
from hlo_run.indexing.interval import MAX, MIN, Comparison

_SMALL = [Interval(lower, upper) for lower in range(-3, 4) for upper in range(lower, 4)]


def _points(interval: Interval) -> range:
    return range(interval.lower, interval.upper + 1)


@pytest.mark.parametrize(
    ("op", "on_ints"),
    [
        (Interval.__add__, operator.add),
        (Interval.__sub__, operator.sub),
        (Interval.__mul__, operator.mul),
        (Interval.minimum, min),
        (Interval.maximum, max),
    ],
)
def test_arithmetic_is_exact(op: Callable[[Interval, Interval], Interval], on_ints: Callable[[int, int], int]) -> None:
    for a, b in product(_SMALL, _SMALL):
        values = [on_ints(x, y) for x in _points(a) for y in _points(b)]
        assert op(a, b) == Interval(min(values), max(values))


def test_division_and_remainder_hold_all_values() -> None:
    for a, b in product(_SMALL, _SMALL):
        if b.contains(0):
            assert a // b == Interval.unbounded()
            continue
        values = [x // y for x in _points(a) for y in _points(b)]
        assert a // b == Interval(min(values), max(values))
        if b.lower > 0:
            assert all((a % b).contains(x % y) for x in _points(a) for y in _points(b))
    assert Interval(2, 5) % 8 == Interval(2, 5)
    assert Interval(2, 9) % 8 == Interval(0, 7)


@pytest.mark.parametrize("predicate", get_args(Comparison))
def test_comparison_is_three_valued(predicate: Comparison) -> None:
    for a, b in product(_SMALL, _SMALL):
        answers = {bool(getattr(operator, predicate)(x, y)) for x in _points(a) for y in _points(b)}
        assert a.compare(predicate, b) == (answers.pop() if len(answers) == 1 else None)


def test_unbounded_ends_stay_unbounded() -> None:
    everything = Interval.unbounded()
    assert everything + 5 == everything
    assert everything - 5 == everything
    assert -everything == everything
    assert everything * 0 == Interval(0, 0)
    assert everything // 4 == everything
    assert Interval(0, MAX) * -2 == Interval(MIN, 0)
    assert Interval(MAX - 1, MAX - 1) + 7 == Interval(MAX, MAX)


def test_sets() -> None:
    assert Interval(0, 5).intersect(Interval(3, 9)) == Interval(3, 5)
    assert Interval(0, 2).intersect(Interval(5, 9)) == Interval(5, 4)
    assert not Interval(0, 2).intersect(Interval(5, 9)).is_feasible
    assert Interval(0, 2).union(Interval(5, 9)) == Interval(0, 9)
    assert Interval(0, -1).union(Interval(5, 9)) == Interval(5, 9)
    assert Interval(0, 5).encloses(Interval(2, 5))
    assert not Interval(0, 5).encloses(Interval(2, 6))
    assert (Interval(2, 5).size, Interval(0, -7).size) == (4, 0)
