"""Evaluates the interval of an expression from the intervals of its variables."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.indexing.expr import ADD, CONSTANT, DIM, FLOORDIV, MIN, MOD, MUL, SYMBOL, Expr
from hlo_run.indexing.expr import MAX as MAXIMUM
from hlo_run.indexing.interval import (
    MAX,
    Bounds,
    Interval,
    add_bounds,
    floordiv_bounds,
    mod_bounds,
    multiply_bounds,
    scale_bounds,
)
from hlo_run.indexing.interval import MIN as LOWEST

_UNBOUNDED: Bounds = (LOWEST, MAX)


class RangeEvaluator:
    """Evaluates ranges for fixed bounds of dimensions and symbols, and caches them.

    If an expression is the same object as a constraint's expression, its range is cut by the constraint's interval.
    Constraints have no other effect. Variables without bounds are unbounded.
    """

    def __init__(
        self,
        dims: Sequence[Bounds],
        symbols: Sequence[Bounds],
        constraints: Sequence[tuple[Expr, Interval]] = (),
    ) -> None:
        self._dims = dims
        self._symbols = symbols
        self._constraints = {expr: interval.bounds for expr, interval in constraints}
        self._done: dict[Expr, Bounds] = {}

    def __call__(self, expr: Expr) -> Bounds:
        """Return the closed bounds (lower, upper) of `expr`."""
        found = self._done.get(expr)
        if found is None:
            found = self._evaluate(expr)
            if expr in self._constraints:
                lower, upper = self._constraints[expr]
                found = max(found[0], lower), min(found[1], upper)
            self._done[expr] = found
        return found

    def interval(self, expr: Expr) -> Interval:
        """Return the closed interval of `expr`."""
        return Interval(*self(expr))

    def _evaluate(self, expr: Expr) -> Bounds:
        kind = expr.kind
        if kind is CONSTANT:
            return expr.value, expr.value
        if kind is DIM:
            return self._dims[expr.value] if expr.value < len(self._dims) else _UNBOUNDED
        if kind is SYMBOL:
            return self._symbols[expr.value] if expr.value < len(self._symbols) else _UNBOUNDED
        left, right = self(expr.left), self(expr.right)
        if kind is ADD:
            return add_bounds(left, right)
        if kind is MUL:
            return scale_bounds(left, right[0]) if right[0] == right[1] else multiply_bounds(left, right)
        if kind is MOD:
            return mod_bounds(left, right)
        if kind is FLOORDIV:
            return floordiv_bounds(left, right)
        if kind is MIN:
            return min(left[0], right[0]), min(left[1], right[1])
        if kind is MAXIMUM:
            return max(left[0], right[0]), max(left[1], right[1])
        # Ceiling division: -((-a) floordiv b).
        return scale_bounds(floordiv_bounds(scale_bounds(left, -1), right), -1)
