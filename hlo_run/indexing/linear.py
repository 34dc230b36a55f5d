"""The linear form of sums, (base, coefficient) pairs and a constant, in which sums are simplified and rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from hlo_run.indexing.expr import ADD, CONSTANT, MUL, Expr, add, constant, multiply

Term: TypeAlias = tuple[Expr, int]
Linear: TypeAlias = tuple[tuple[Term, ...], int]

_LINEAR: dict[Expr, Linear] = {}


def linear_form(expr: Expr) -> Linear:
    """Return the addends of `expr` as ((base, coefficient), ..) and the constant part.

    Every base occurs once and has a non-zero coefficient. A base is not a constant, a sum, or a product with a constant.
    """
    found = _LINEAR.get(expr)
    if found is None:
        terms: dict[Expr, int] = {}
        rest = collect(terms, expr, 1)
        found = _LINEAR[expr] = tuple(term for term in terms.items() if term[1]), rest
    return found


def collect(terms: dict[Expr, int], expr: Expr, factor: int) -> int:
    """Add `expr * factor` to `terms` (base to coefficient) and return its constant part. Coefficients may become 0."""
    rest = 0
    kind = expr.kind
    while kind is ADD:
        rest += collect(terms, expr.right, factor)
        expr = expr.left
        kind = expr.kind
    if kind is CONSTANT:
        return rest + expr.value * factor
    if kind is MUL and expr.right.kind is CONSTANT:
        return rest + collect(terms, expr.left, factor * expr.right.value)
    terms[expr] = terms.get(expr, 0) + factor
    return rest


def from_linear(terms: Iterable[Term], rest: int) -> Expr:
    """Return the sum of base * coefficient, ordered by `Expr.sort_key`, with the constant last."""
    addends = [base if factor == 1 else multiply(base, constant(factor)) for base, factor in terms if factor]
    if not addends:
        return constant(rest)
    if len(addends) > 1:
        addends.sort(key=_sort_key)
    total = addends[0]
    for addend in addends[1:]:
        total = add(total, addend)
    return add(total, constant(rest)) if rest else total


def _sort_key(expr: Expr) -> tuple[object, ...]:
    return expr.sort_key
