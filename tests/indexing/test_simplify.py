"""Simplified expressions and maps agree with the original ones at every point; what they look like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from bijection import domain_points
from hypothesis import given
from hypothesis import strategies as st
from indexing_strategies import DIM_COUNT, bounds, checked, expressions, indexing_maps

from hlo_run.indexing import Expr, IndexingMap, Interval, Variable, parse_indexing_map, simplify_expr
from hlo_run.indexing.domain import bounds_of
from hlo_run.indexing.simplify import Simplifier


def _values(expr: Expr, intervals: Sequence[Interval]) -> list[int]:
    dims, symbols = intervals[:DIM_COUNT], intervals[DIM_COUNT:]
    whole = IndexingMap(tuple(map(Variable, dims)), tuple(map(Variable, symbols)), (), (expr,))
    points = product(*(range(i.lower, i.upper + 1) for i in intervals))
    return [whole.evaluate(point[:DIM_COUNT], point[DIM_COUNT:])[0] for point in points]


@checked
@given(expressions, bounds, st.booleans())
def test_expressions_agree_everywhere(expr: Expr, intervals: list[Interval], preserve_points: bool) -> None:
    simple = simplify_expr(expr, intervals[:DIM_COUNT], intervals[DIM_COUNT:], preserve_points)
    assert _values(simple, intervals) == _values(expr, intervals)
    assert simplify_expr(simple, intervals[:DIM_COUNT], intervals[DIM_COUNT:], preserve_points) is simple


@checked
@given(st.lists(expressions, min_size=2, max_size=6), bounds)
def test_results_do_not_depend_on_what_was_asked_before(exprs: list[Expr], intervals: list[Interval]) -> None:
    dims, symbols = bounds_of(intervals[:DIM_COUNT]), bounds_of(intervals[DIM_COUNT:])
    forwards, backwards = Simplifier(dims, symbols), Simplifier(dims, symbols)
    assert [forwards(expr) for expr in exprs] == [backwards(expr) for expr in reversed(exprs)][::-1]


@checked
@given(expressions, bounds)
def test_ranges_hold_every_value(expr: Expr, intervals: list[Interval]) -> None:
    whole = IndexingMap(tuple(map(Variable, intervals[:DIM_COUNT])), tuple(map(Variable, intervals[DIM_COUNT:])), (), (expr,))
    found = whole.range_of(expr)
    assert all(found.contains(value) for value in _values(expr, intervals))


@checked
@given(indexing_maps(), st.booleans())
def test_maps_agree_on_the_same_domain(original: IndexingMap, preserve_points: bool) -> None:
    simple = original.simplify(preserve_points)
    points = list(domain_points(original))
    assert list(domain_points(simple)) == points
    assert [simple.evaluate(*point) for point in points] == [original.evaluate(*point) for point in points]
    assert len(simple.constraints) <= len(original.constraints)


# What XLA prints as simplified for kernels with these bounds stays as it is.
_SETTLED = [
    "(t, b)[s, u] -> ((b mod 2) * 32 + s * 4 + t / 32, b / 2, t mod 32),"
    "domain: t in [0, 127], b in [0, 3], s in [0, 7], u in [0, 0], (b mod 2) * 8 + s in [0, 8], t mod 32 in [0, 23]",
    "(t, b)[s, u] -> (b / 30, ((b / 6) mod 5) * 32 + s * 4 + t / 32, (b mod 6) * 32 + t mod 32),"
    "domain: t in [0, 127], b in [0, 599], s in [0, 7], u in [0, 0], (b mod 6) * 32 + t mod 32 in [0, 169]",
    "(t, b)[s, u] -> (b / 30, (b mod 6) * 32 + s * 4 + t / 32, ((b / 6) mod 5) * 32 + t mod 32),"
    "domain: t in [0, 127], b in [0, 599], s in [0, 7], u in [0, 0], (b mod 6) * 32 + s * 4 + t / 32 in [0, 169]",
    "(t, b)[s, u] -> (s * 4 + t / 32, b * 2 + (t mod 32) / 15, ((t mod 32) mod 15) * 2 + u), domain: t in [0, 127],"
    "b in [0, 7], s in [0, 7], u in [0, 1], b * 2 + (t mod 32) / 15 in [0, 15], s * 4 + t / 32 in [0, 29], t mod 32 in [0, 29]",
    "(t, b, d)[s, u] -> (((d * 4 + t / 32) mod 15) * 2 + s, b * 2 + (d * 128 + t) / 480, (t mod 32) * 2 + u),"
    "domain: t in [0, 127], b in [0, 7], d in [0, 7], s in [0, 1], u in [0, 1],"
    "b * 2 + (d * 128 + t) / 480 in [0, 15], d * 4 + t / 32 in [0, 29], t mod 32 in [0, 14]",
    "(t, b) -> (((t / 32) * 3 + ((b mod 2) * 32 + (b / 2) * 36 + t mod 32) / 24) mod 2), domain: t in [0, 127], b in [0, 3]",
    "(t, b)[s] -> (s * 6 + ((b mod 2) * 32 + (t / 32) * 72 + (b / 2) * 36 + t mod 32) / 48),"
    "domain: t in [0, 127], b in [0, 3], s in [0, 5]",
    "(t, b) -> ((-((t * 4 + b * 512 + 1) mod 150) + 29) mod 30), domain: t in [0, 127], b in [0, 2460]",
    "(t, b, d, e)[s] -> ((t mod 32) * 2 + e, ((s * 4 + t mod 32 + t / 32) mod 32) * 2 + d), domain: t in [0, 127],"
    "b in [0, 7], d in [0, 1], e in [0, 1], s in [0, 7], s * 4 + t / 32 in [0, 29], t mod 32 in [0, 14]",
    "(t, b)[s] -> (t * 2 + b * 256 + s), domain: t in [0, 127], b in [0, 2500], s in [0, 1], b * 128 + t in [0, 320000]",
]


@pytest.mark.parametrize("text", _SETTLED)
def test_what_xla_calls_simple_stays(text: str) -> None:
    settled = parse_indexing_map(text)
    assert settled.simplify() == settled


_REWRITES = [
    # Divisions and remainders of a thread map (the seed's gelu).
    ("(b * 512 + t * 4 + v) floordiv 2097152", "b floordiv 4096"),
    ("((b * 512 + t * 4 + v) floordiv 4096) mod 512", "(b floordiv 8) mod 512"),
    ("(b * 512 + t * 4 + v) mod 4096", "(b mod 8) * 512 + t * 4 + v"),
    # Remainders.
    ("v mod 4", "v"),
    ("(v - 8) mod 4", "v"),
    ("(v + 4) mod 4", "v"),
    ("(b * 6 + t) mod 3", "t mod 3"),
    ("(t + 13) mod 4", "(t + 1) mod 4"),
    ("(t mod 12) mod 4", "t mod 4"),
    ("(t * 6) mod 12", "(t mod 2) * 6"),
    ("t mod t", "0"),
    # Divisions.
    ("(t floordiv 4) floordiv 8", "t floordiv 32"),
    ("(t * 8 + b * 4 + 5) floordiv 4", "t * 2 + b + 1"),
    ("(t mod 32) floordiv 8", "(t floordiv 8) mod 4"),
    ("(t * 4 + v) floordiv 8", "t floordiv 2"),
    ("(t * 4 + 6) floordiv 8", "(t * 2 + 3) floordiv 4"),
    ("(t floordiv 4 + b) floordiv 3", "(b * 4 + t) floordiv 12"),
    ("t floordiv -4", "(-t) floordiv 4"),
    ("t floordiv -1", "-t"),
    ("t ceildiv 4", "(t + 3) floordiv 4"),
    ("t ceildiv -4", "-(t floordiv 4)"),
    # Sums.
    ("t + b * 2 + t", "t * 2 + b * 2"),
    ("t * 3 - t * 3 + 1", "1"),
    ("(t + b) * 4", "t * 4 + b * 4"),
    ("(t floordiv 4) * 4 + t mod 4", "t"),
    ("(t mod 4) * 3 + (t floordiv 4) * 12", "t * 3"),
    ("t mod 4 + ((t floordiv 4) mod 8) * 4 + (t floordiv 32) * 32", "t"),
    ("t - (t floordiv 8) * 8", "t mod 8"),
    ("(t + 1) * (b + 2)", "t * b + t * 2 + b + 2"),
    # Minimum and maximum.
    ("min(t, 127)", "t"),
    ("max(v, 4)", "4"),
    ("min(t + 3, t)", "t"),
    ("max(t, b)", "max(t, b)"),
    ("z + t", "t"),
]


@pytest.mark.parametrize(("text", "expected"), _REWRITES)
def test_rules(text: str, expected: str) -> None:
    domain = "domain: t in [0, 127], b in [0, 24575], z in [0, 0], v in [0, 3]"
    simple = parse_indexing_map(f"(t, b, z)[v] -> ({text}), {domain}").simplify()
    assert str(simple) == f"(t, b, z)[v] -> ({expected}), {domain}"


def test_two_inner_divisions_are_not_merged() -> None:
    whole = parse_indexing_map("(a, b) -> ((a / 3 + b / 5) / 2), domain: a in [0, 20], b in [0, 20]")
    assert whole.simplify() == whole


def test_preserved_points() -> None:
    whole = parse_indexing_map("(a, b) -> (a * 4 + b), domain: a in [0, 0], b in [0, 3]")
    assert whole.simplify(preserve_points=True) == whole
    assert str(whole.simplify()) == "(a, b) -> (b), domain: a in [0, 0], b in [0, 3]"


_CONSTRAINTS = [
    ("a + 3 in [5, 7]", "a in [2, 4]", ""),
    ("a * -2 in [-9, 0]", "a in [0, 4]", ""),
    ("a floordiv 3 in [1, 1]", "a in [3, 5]", ""),
    ("a + b in [0, 18]", "a in [0, 9]", ""),
    ("a + b in [0, 17]", "a in [0, 9]", ", a + b in [0, 17]"),
    ("a * 10 + b in [0, 99]", "a in [0, 9]", ""),
    ("a * 10 + b in [0, 49]", "a in [0, 4]", ""),
    ("a * 10 + b in [0, 48]", "a in [0, 9]", ", a * 10 + b in [0, 48]"),
    ("a mod 4 in [3, 3]", "a in [3, 7]", ", a mod 4 in [3, 3]"),
    ("a mod 2 in [1, 1], a mod 3 in [1, 1]", "a in [1, 7]", ", a mod 6 in [1, 1]"),
    ("5 in [0, 9]", "a in [0, 9]", ""),
]


@pytest.mark.parametrize(("text", "bounds_of_a", "left"), _CONSTRAINTS)
def test_constraints_become_bounds_or_go(text: str, bounds_of_a: str, left: str) -> None:
    simple = parse_indexing_map(f"(a, b) -> (a), domain: a in [0, 9], b in [0, 9], {text}").simplify()
    assert str(simple) == f"(a, b) -> (a), domain: {bounds_of_a}, b in [0, 9]{left}"


@pytest.mark.parametrize("text", ["a in [5, 3]", "a + b in [30, 40]", "a mod 4 in [4, 9]", "7 in [0, 3]"])
def test_impossible_constraints_empty_the_map(text: str) -> None:
    simple = parse_indexing_map(f"(a, b) -> (a), domain: a in [0, 9], b in [0, 9], {text}").simplify()
    assert simple.is_known_empty
    assert (len(simple.dims), len(simple.results), simple.constraints) == (2, 1, ())
    assert str(simple) == "KNOWN EMPTY"


def test_results_use_constraints_on_the_same_expression() -> None:
    whole = parse_indexing_map("(a, b) -> ((a + b) floordiv 8, a + b), domain: a in [0, 9], b in [0, 9], a + b in [0, 7]")
    assert [str(result) for result in whole.simplify().results] == ["0", "d0 + d1"]
