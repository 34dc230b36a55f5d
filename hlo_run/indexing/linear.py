"""Sums as lists of (base, coefficient) pairs and a constant: the form in which sums are simplified and rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from hlo_run.indexing.expr import ADD, CONSTANT, MUL, Expr, add, constant, multiply

Term: TypeAlias = tuple[Expr, int]
Linear: TypeAlias = tuple[tuple[Term, ...], int]

_LINEAR: dict[Expr, Linear] = {}


def linear_form(expr: Expr) -> Linear:
    """Return the addends of `expr` as ((base, coefficient), ..) and the constant part.

    A base occurs once, has a non-zero coefficient and is neither a constant, nor a sum, nor a product by a constant.
    """
    found = _LINEAR.get(expr)
    if found is None:
        terms: dict[Expr, int] = {}
        rest = collect(terms, expr, 1)
        found = _LINEAR[expr] = tuple(term for term in terms.items() if term[1]), rest
    return found


def collect(terms: dict[Expr, int], expr: Expr, factor: int) -> int:
    """Add `expr * factor` to `terms` (base to coefficient, zeros may stay behind); return its constant part."""
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
    """Return the sum of base * coefficient in canonical order, constant last."""
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
