"""Hypothesis strategies: expressions and maps over few variables with small bounds, so that domains can be enumerated."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from hlo_run.indexing import Expr, IndexingMap, Interval, Variable, ceil_div, constant, dim, maximum, minimum, symbol

DIM_COUNT = 2
SYMBOL_COUNT = 2

# The same examples in every run, no files, no time limit.
checked = settings(derandomize=True, database=None, deadline=None, max_examples=100)

_LEAVES = st.one_of(
    st.integers(0, DIM_COUNT - 1).map(dim),
    st.integers(0, SYMBOL_COUNT - 1).map(symbol),
    st.integers(-6, 12).map(constant),
)
_DIVISORS = st.sampled_from([2, 3, 4, 6, 8, 12])
_FACTORS = st.sampled_from([-12, -4, -3, -2, -1, 2, 3, 4, 6, 8, 12])
_SHAPES = st.sampled_from("add add sub mul min max scale mod div split negative ceil".split())


def _build(shape: str, a: Expr, b: Expr, divisor: int, factor: int) -> Expr:
    match shape:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min":
            return minimum(a, b)
        case "max":
            return maximum(a, b)
        case "scale":
            return a * factor
        case "mod":
            return a % divisor
        case "div":
            return a // divisor
        case "split":
            # A quotient and its remainder, which a sum may merge.
            return a // divisor * (divisor * factor) + a % divisor * factor
        case "negative":
            return a // -divisor
        case _:
            return ceil_div(a, divisor)


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(_build, _SHAPES, inner, inner, _DIVISORS, _FACTORS)


expressions = st.recursive(_LEAVES, _grow, max_leaves=8)


def _interval(lower: int, size: int) -> Interval:
    return Interval(lower, lower + size - 1)


def _remainder(value: Expr, modulus: int, remainder: int) -> tuple[Expr, Interval]:
    return value % modulus, Interval.point(min(remainder, modulus - 1))


_small_intervals = st.builds(_interval, st.integers(-3, 3), st.integers(1, 5))
bounds = st.lists(_small_intervals, min_size=DIM_COUNT + SYMBOL_COUNT, max_size=DIM_COUNT + SYMBOL_COUNT)

_constraints = st.lists(
    st.one_of(
        st.tuples(expressions, st.builds(_interval, st.integers(-10, 10), st.integers(1, 13))),
        st.builds(_remainder, _LEAVES, st.sampled_from([2, 3, 4]), st.integers(0, 3)),
    ),
    max_size=3,
)


@st.composite
def indexing_maps(draw: st.DrawFn, result_count: int = 2, has_runtime_variable: bool = False) -> IndexingMap:
    """Draw a map of two dimensions and two symbols, the last of which may be a runtime variable."""
    variables = tuple(map(Variable, draw(bounds)))
    split = DIM_COUNT + SYMBOL_COUNT - (1 if has_runtime_variable else 0)
    results = tuple(draw(st.lists(expressions, min_size=result_count, max_size=result_count)))
    bare = IndexingMap(variables[:DIM_COUNT], variables[DIM_COUNT:split], variables[split:], results)
    return bare.with_constraints(draw(_constraints))
