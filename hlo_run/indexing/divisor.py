"""Finds a number that divides every value of an expression."""

from __future__ import annotations

from math import gcd

from hlo_run.indexing.expr import ADD, CONSTANT, DIM, MOD, MUL, Expr


def divisor_of(expr: Expr, zero_dim: int = -1) -> int:
    """Return a number that divides `expr` wherever dimension `zero_dim` is 0; 0 if it is always 0 there.

    Variables count as arbitrary integers: their bounds are ignored.
    """
    kind = expr.kind
    if kind is CONSTANT:
        return abs(expr.value)
    if kind is DIM and expr.value == zero_dim:
        return 0
    if kind is MUL:
        return divisor_of(expr.left, zero_dim) * divisor_of(expr.right, zero_dim)
    if kind is ADD or kind is MOD:
        return gcd(divisor_of(expr.left, zero_dim), divisor_of(expr.right, zero_dim))
    return 1
