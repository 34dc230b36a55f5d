"""Simplifies expressions over variables with known bounds to a canonical form.

A sum becomes base * coefficient pairs, sorted by `Expr.sort_key`, with the constant last. Products are distributed over
sums. Divisions and remainders by constants lose every addend that cannot change the result. In the map of a loop kernel:

    ((bl_x * 512 + th_x * 4 + v) floordiv 4096) mod 512   =>   (bl_x floordiv 8) mod 512

Mirrors the rules of XLA's `AffineExprSimplifier`/`SymbolicExpr::Canonicalize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

from hlo_run.indexing.expr import (
    ADD,
    CONSTANT,
    FLOORDIV,
    MAX,
    MIN,
    MOD,
    MUL,
    ZERO,
    Expr,
    ceil_div,
    constant,
    floor_div,
    maximum,
    minimum,
    modulo,
    multiply,
)
from hlo_run.indexing.interval import MAX as UNBOUNDED
from hlo_run.indexing.interval import Bounds, Interval
from hlo_run.indexing.linear import Term, collect, from_linear, linear_form
from hlo_run.indexing.ranges import RangeEvaluator

# Every rule makes an expression smaller or moves a factor outwards, so a few rounds are usually enough. The limit stops
# two rules that undo each other.
_MAX_ROUNDS = 64


class Simplifier:
    """Simplifies expressions for fixed variable bounds and constraints, and caches the results.

    `preserve_points` keeps expressions whose range is a single value, so dimensions of size 1 stay visible. The result
    for an expression does not depend on earlier calls.
    """

    def __init__(
        self,
        dims: Sequence[Bounds],
        symbols: Sequence[Bounds],
        constraints: Sequence[tuple[Expr, Interval]] = (),
        preserve_points: bool = False,
    ) -> None:
        self.range = RangeEvaluator(dims, symbols, constraints)
        self._preserve_points = preserve_points
        self._done: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        """Return the simplified form of `expr`; simplifying it again changes nothing."""
        done = self._done.get(expr)
        if done is not None:
            return done
        if expr.kind is CONSTANT:
            return expr
        current = expr
        for _ in range(_MAX_ROUNDS):
            following = self._step(current)
            if following is current:
                break
            current = following
            done = self._done.get(current)
            if done is not None:
                current = done
                break
        self._done[expr] = current
        return current

    def _step(self, expr: Expr) -> Expr:
        kind = expr.kind
        if kind is CONSTANT:
            return expr
        if not self._preserve_points:
            lower, upper = self.range(expr)
            if lower == upper:
                return constant(lower)
        if expr.left is expr:
            return expr
        if kind is ADD:
            return self._sum(expr)
        if kind is MUL and expr.right.kind is CONSTANT and expr.left.is_variable:
            return expr
        left, right = self(expr.left), self(expr.right)
        if kind is MUL:
            return self._product(left, right)
        if kind is MIN or kind is MAX:
            return self._min_max(kind, left, right)
        if right.kind is not CONSTANT:
            right = self._as_constant(right)
        if right.kind is not CONSTANT:
            return _opaque_division(kind, left, right)
        if kind is MOD:
            return self._mod(left, right.value)
        if kind is FLOORDIV:
            return self._floordiv(left, right.value)
        return _ceildiv(left, right.value)

    def _as_constant(self, expr: Expr) -> Expr:
        lower, upper = self.range(expr)
        return constant(lower) if lower == upper else expr

    # Sums and products.

    def _sum(self, expr: Expr) -> Expr:
        terms: dict[Expr, int] = {}
        rest = 0
        addends: list[Expr] = []
        while expr.kind is ADD:
            addends.append(expr.right)
            expr = expr.left
        addends.append(expr)
        for addend in reversed(addends):
            rest += collect(terms, self(addend), 1)
        return from_linear(*self._merge_divisions(terms, rest))

    def _merge_divisions(self, terms: dict[Expr, int], rest: int) -> tuple[list[Term], int]:
        """Apply the rules for remainders and quotients of the same number to a sum until none applies.

        (x mod c)*k + (x floordiv c)*(c*k)  =>  x*k
        (x floordiv c)*(-c*b)               =>  x*(-b) + (x mod c)*b
        """
        merged = True
        while merged:
            merged = False
            divisions = [term for term in terms.items() if term[1] and _divides_by_constant(term[0])]
            for base, factor in sorted(divisions, key=_term_key):
                merge = self._merge_mod if base.kind is MOD else self._split_negative_quotient
                change = merge(terms, base, factor)
                if change is not None:
                    rest += change
                    merged = True
                    break
        return [term for term in terms.items() if term[1]], rest

    def _merge_mod(self, terms: dict[Expr, int], base: Expr, factor: int) -> int | None:
        """Merge `(x mod c) * factor` with its quotient. Returns the change of the constant, None without such a quotient."""
        scale = base.right.value * factor
        quotient, rest = linear_form(self(floor_div(base.left, base.right)))
        if not quotient or any(term is base or terms.get(term, 0) != count * scale for term, count in quotient):
            return None
        for term, _ in quotient:
            del terms[term]
        del terms[base]
        return collect(terms, base.left, factor) - rest * scale

    def _split_negative_quotient(self, terms: dict[Expr, int], base: Expr, factor: int) -> int | None:
        divisor = base.right.value
        if factor > 0 or factor % divisor:
            return None
        count = -factor // divisor
        del terms[base]
        return collect(terms, base.left, -count) + collect(terms, self(modulo(base.left, base.right)), count)

    def _product(self, left: Expr, right: Expr) -> Expr:
        if left.kind is CONSTANT or right.kind is CONSTANT:
            scaled, factor = (right, left.value) if left.kind is CONSTANT else (left, right.value)
            scaled_terms, scaled_rest = linear_form(scaled)
            return from_linear([(base, count * factor) for base, count in scaled_terms], scaled_rest * factor)
        left_terms, left_rest = linear_form(left)
        right_terms, right_rest = linear_form(right)
        if len(left_terms) == len(right_terms) == 1 and not left_rest and not right_rest:
            (a, k), (b, n) = left_terms[0], right_terms[0]
            return multiply(_ordered_product(a, b), constant(k * n))
        terms: dict[Expr, int] = {}
        for a, k in (*left_terms, (constant(1), left_rest)):
            for b, n in (*right_terms, (constant(1), right_rest)):
                rest = collect(terms, _ordered_product(a, b), k * n)
                if rest:
                    terms[constant(1)] = terms.get(constant(1), 0) + rest
        rest = terms.pop(constant(1), 0)
        return from_linear(terms.items(), rest)

    def _min_max(self, kind: object, left: Expr, right: Expr) -> Expr:
        (left_low, left_high), (right_low, right_high) = self.range(left), self.range(right)
        smaller: Expr | None = None
        if left_high <= right_low:
            smaller = left
        elif right_high <= left_low:
            smaller = right
        else:
            left_terms, left_rest = linear_form(left)
            right_terms, right_rest = linear_form(right)
            if dict(left_terms) == dict(right_terms):
                smaller = left if left_rest <= right_rest else right
        if smaller is None:
            return minimum(left, right) if kind is MIN else maximum(left, right)
        larger = right if smaller is left else left
        return smaller if kind is MIN else larger

    # Division by constants. `x` is already simplified.

    def _floordiv(self, x: Expr, d: int) -> Expr:
        if d == 0:
            return floor_div(x, ZERO)
        if d < 0:
            return floor_div(multiply(x, constant(-1)), constant(-d))
        if x.right.kind is CONSTANT and x.right.value > 0:
            if x.kind is FLOORDIV:
                return floor_div(x.left, constant(x.right.value * d))
            if x.kind is MOD and x.right.value % d == 0:
                return modulo(floor_div(x.left, constant(d)), constant(x.right.value // d))
        terms, rest = linear_form(x)
        whole, kept = _split_multiples(terms, d)
        if whole or not 0 <= rest < d:
            outside = from_linear([(base, factor // d) for base, factor in whole], rest // d)
            return outside + floor_div(from_linear(kept, rest % d), constant(d))
        return self._floordiv_by_gcd(x, terms, rest, d)

    def _floordiv_by_gcd(self, x: Expr, terms: Sequence[Term], rest: int, d: int) -> Expr:
        """Simplify (g*A + B) floordiv d, where no addend is a multiple of d."""
        scaled, plain, g = _split_by_gcd(terms)
        q = gcd(g, d)
        if scaled and q != 1:
            lower, upper = self.range(from_linear(plain, rest))
            if lower >= 0 and upper < q:
                return floor_div(from_linear([(base, factor // q) for base, factor in scaled], 0), constant(d // q))
            common = gcd(lower, q) if lower == upper else 1
            if common != 1:
                numerator = from_linear([(base, factor // common) for base, factor in scaled], lower // common)
                return floor_div(numerator, constant(d // common))
        inner = [base for base, factor in terms if factor == 1 and base.kind is FLOORDIV and base.right.kind is CONSTANT]
        if len(inner) == 1 and inner[0].right.value > 0:
            # floor(a / c) + R = floor((a + R*c) / c). This works for one division only.
            c = inner[0].right.value
            others = [(base, factor * c) for base, factor in terms if base is not inner[0]]
            return floor_div(from_linear(others, rest * c) + inner[0].left, constant(c * d))
        return floor_div(x, constant(d))

    def _mod(self, x: Expr, m: int) -> Expr:
        if m <= 0:
            return ZERO if m == 0 else modulo(x, constant(m))
        lower, upper = self.range(x)
        if lower > -UNBOUNDED and upper < UNBOUNDED and upper - lower // m * m < m:
            return x - lower // m * m
        if x.kind is MOD and x.right.kind is CONSTANT and x.right.value > 0 and x.right.value % m == 0:
            return modulo(x.left, constant(m))
        terms, rest = linear_form(x)
        whole, kept = _split_multiples(terms, m)
        if whole or not 0 <= rest < m:
            return modulo(from_linear(kept, rest % m), constant(m))
        scaled, plain, g = _split_by_gcd(terms)
        # g itself must divide m: XLA keeps (x * 4) mod 6, although the common factor 2 could be taken out.
        if scaled and g != 1 and m % g == 0:
            lower, upper = self.range(from_linear(plain, rest))
            if lower >= 0 and upper < g:
                inner = modulo(from_linear([(base, factor // g) for base, factor in scaled], 0), constant(m // g))
                return inner * g + from_linear(plain, rest)
        return modulo(x, constant(m))


def _divides_by_constant(expr: Expr) -> bool:
    return (expr.kind is MOD or expr.kind is FLOORDIV) and expr.right.kind is CONSTANT and expr.right.value > 1


def _term_key(term: Term) -> tuple[object, ...]:
    return term[0].sort_key


def _ordered_product(a: Expr, b: Expr) -> Expr:
    return multiply(a, b) if a.sort_key <= b.sort_key else multiply(b, a)


def _split_multiples(terms: Sequence[Term], d: int) -> tuple[list[Term], list[Term]]:
    """Return the terms that are multiples of d, and the others."""
    whole = [term for term in terms if term[1] % d == 0]
    return whole, [term for term in terms if term[1] % d] if whole else list(terms)


def _split_by_gcd(terms: Sequence[Term]) -> tuple[list[Term], list[Term], int]:
    """Return the terms with a factor other than 1 and -1, the other terms, and the gcd of the first terms' factors."""
    scaled = [term for term in terms if term[1] not in (1, -1)]
    return scaled, [term for term in terms if term[1] in (1, -1)], gcd(*(factor for _, factor in scaled))


def _opaque_division(kind: object, left: Expr, right: Expr) -> Expr:
    """Return a division or remainder by a divisor that is not constant."""
    if left is ZERO or (kind is MOD and left is right):
        return ZERO
    if kind is MOD:
        return modulo(left, right)
    return floor_div(left, right) if kind is FLOORDIV else ceil_div(left, right)


def _ceildiv(x: Expr, d: int) -> Expr:
    if d == 0:
        return ceil_div(x, ZERO)
    return floor_div(x + (d - 1), constant(d)) if d > 0 else -floor_div(x, constant(-d))


@lru_cache(maxsize=512)
def simplifier_for(
    dims: tuple[Bounds, ...],
    symbols: tuple[Bounds, ...],
    constraints: tuple[tuple[Expr, Interval], ...] = (),
    preserve_points: bool = False,
) -> Simplifier:
    """Return the cached simplifier for these bounds. The maps of one kernel have few different bounds and share its work."""
    return Simplifier(dims, symbols, constraints, preserve_points)


def simplify_expr(
    expr: Expr, dims: Sequence[Interval] = (), symbols: Sequence[Interval] = (), preserve_points: bool = False
) -> Expr:
    """Return `expr` simplified for variables within the given intervals. Variables beyond the sequences are unbounded."""
    dim_bounds, symbol_bounds = tuple(i.bounds for i in dims), tuple(i.bounds for i in symbols)
    return simplifier_for(dim_bounds, symbol_bounds, (), preserve_points)(expr)
