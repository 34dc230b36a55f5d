"""The domain of an indexing map: bounds of its variables, constraints on expressions, and their simplification."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

from msgspec import Struct

from hlo_run.indexing.expr import CONSTANT, DIM, FLOORDIV, MOD, Expr
from hlo_run.indexing.interval import MAX, MIN, Bounds, Interval
from hlo_run.indexing.linear import Term, from_linear, linear_form
from hlo_run.indexing.ranges import RangeEvaluator
from hlo_run.indexing.simplify import simplifier_for


class Domain(Struct):
    """The points where every variable is within its bounds and every constraint's expression within its interval.

    `symbols` holds the bounds of range variables, then of runtime variables. If `empty` is set, the domain has no
    points, and the other fields mean nothing.
    """

    dims: list[Interval]
    symbols: list[Interval]
    constraints: dict[Expr, Interval]
    empty: bool = False

    def add(self, expr: Expr, interval: Interval) -> None:
        """Cut the domain by `expr in interval`. If `expr` is a plain variable, tighten its bounds instead."""
        if expr.kind is CONSTANT:
            self.empty = self.empty or not interval.contains(expr.value)
            return
        if expr.is_variable:
            bounds = self.dims if expr.kind is DIM else self.symbols
            merged = bounds[expr.value] = bounds[expr.value].intersect(interval)
        else:
            old = self.constraints.get(expr)
            merged = self.constraints[expr] = interval if old is None else old.intersect(interval)
        self.empty = self.empty or not merged.is_feasible

    def simplify(self, preserve_points: bool) -> None:
        """Simplify and drop constraints until nothing changes, then merge the constraints that fix a remainder."""
        changed = True
        while changed and not self.empty:
            before = self.dims[:], self.symbols[:], list(self.constraints.items())
            self._simplify_once(preserve_points)
            changed = before != (self.dims, self.symbols, list(self.constraints.items()))
        if not self.empty:
            self.merge_mod_constraints()

    def _simplify_once(self, preserve_points: bool) -> None:
        simplify = simplifier_for(bounds_of(self.dims), bounds_of(self.symbols), (), preserve_points)
        constraints, self.constraints = self.constraints, {}
        for expr, interval in constraints.items():
            simple, interval = _simplify_constraint(simplify(expr), interval, simplify.range)
            simple = simplify(simple)
            lower, upper = simplify.range(simple)
            if interval.lower <= lower and upper <= interval.upper:
                continue
            if upper < interval.lower or interval.upper < lower:
                self.empty = True
                return
            self.add(simple, interval)

    def merge_mod_constraints(self) -> None:
        """Merge the constraints that fix a remainder, and move the bounds of plain variables inward to match them.

        x mod 3 in [r, r], x mod 4 in [r, r]   =>   x mod 12 in [r, r]
        """
        moduli: dict[tuple[Expr, int], list[int]] = {}
        for expr, interval in self.constraints.items():
            if _fixes_remainder(expr, interval):
                moduli.setdefault((expr.left, interval.lower), []).append(expr.right.value)
        for (value, remainder), found in moduli.items():
            common = lcm(*found)
            if len(found) > 1:
                for modulus in found:
                    del self.constraints[value % modulus]
                self.constraints[value % common] = Interval.point(remainder)
            if value.is_variable:
                self._move_bounds_inward(value, common, remainder)

    def _move_bounds_inward(self, variable: Expr, modulus: int, remainder: int) -> None:
        bounds = self.dims if variable.kind is DIM else self.symbols
        old = bounds[variable.value]
        lower = old.lower if old.lower == MIN else old.lower + (remainder - old.lower) % modulus
        upper = old.upper if old.upper == MAX else old.upper - (old.upper - remainder) % modulus
        bounds[variable.value] = Interval(lower, upper)
        self.empty = self.empty or lower > upper


def _fixes_remainder(expr: Expr, interval: Interval) -> bool:
    return expr.kind is MOD and expr.right.kind is CONSTANT and interval.is_point and 0 <= interval.lower < expr.right.value


def bounds_of(intervals: Sequence[Interval]) -> tuple[Bounds, ...]:
    """Return the pair (lower, upper) of each interval."""
    return tuple((interval.lower, interval.upper) for interval in intervals)


def _simplify_constraint(expr: Expr, interval: Interval, ranges: RangeEvaluator) -> tuple[Expr, Interval]:
    """Move constant addends, factors and divisors from the expression of a constraint to its interval.

    e + c, e * c, e floordiv d  =>  e, with the interval shifted, divided or multiplied
    g*A + B in [a, b]           =>  A, if B cannot decide between two values of A
    """
    while True:
        terms, rest = linear_form(expr)
        if rest:
            expr, interval = from_linear(terms, 0), interval - rest
        elif len(terms) == 1 and terms[0][1] != 1:
            expr, interval = terms[0][0], _divide_interval(interval, terms[0][1])
        elif expr.kind is FLOORDIV and expr.right.kind is CONSTANT and expr.right.value > 0:
            d = expr.right.value
            expr, interval = expr.left, Interval(*_multiply_interval(interval, d))
        else:
            dropped = _drop_small_part(terms, interval, ranges)
            if dropped is None:
                return expr, interval
            expr, interval = dropped


def _divide_interval(interval: Interval, factor: int) -> Interval:
    """Return the interval of e for `e * factor in interval`."""
    if factor < 0:
        interval, factor = -interval, -factor
    lower = MIN if interval.lower == MIN else -(-interval.lower // factor)
    upper = MAX if interval.upper == MAX else interval.upper // factor
    return Interval(lower, upper)


def _multiply_interval(interval: Interval, d: int) -> Bounds:
    """Return the interval of e for `e floordiv d in interval`."""
    lower = MIN if interval.lower == MIN else interval.lower * d
    upper = MAX if interval.upper == MAX else (interval.upper + 1) * d - 1
    return lower, upper


def _drop_small_part(terms: Sequence[Term], interval: Interval, ranges: RangeEvaluator) -> tuple[Expr, Interval] | None:
    """Rewrite `g*A + B in [a, b]` to `A in [ceil((a-B)/g), floor((b-B)/g)]` if both ends are the same for every B."""
    scaled = [term for term in terms if term[1] not in (1, -1)]
    if not scaled or interval.lower == MIN or interval.upper == MAX:
        return None
    g = gcd(*(factor for _, factor in scaled))
    small = [term for term in terms if term[1] in (1, -1)]
    lower, upper = ranges(from_linear(small, 0))
    if g == 1 or lower == MIN or upper == MAX:
        return None
    first, last = -((lower - interval.lower) // g), (interval.upper - upper) // g
    if first != -((upper - interval.lower) // g) or last != (interval.upper - lower) // g:
        return None
    return from_linear([(base, factor // g) for base, factor in scaled], 0), Interval(first, last)
