"""Replaces dimensions, symbols and subexpressions of expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_run.indexing.expr import DIM, MAKE, SYMBOL, Expr


class Substitution:
    """Replaces dimension i by `dims[i]` and symbol i by `symbols[i]`, and caches rewritten expressions.

    Variables beyond the ends of the sequences stay. The constructors fold constants; nothing else is simplified.
    """

    def __init__(self, dims: Sequence[Expr] = (), symbols: Sequence[Expr] = ()) -> None:
        self._dims = dims
        self._symbols = symbols
        self._done: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        done = self._done.get(expr)
        if done is None:
            done = self._done[expr] = self._rewrite(expr)
        return done

    def _rewrite(self, expr: Expr) -> Expr:
        if expr.left is not expr:
            left, right = self(expr.left), self(expr.right)
            return expr if left is expr.left and right is expr.right else MAKE[expr.kind](left, right)
        if expr.kind is DIM and expr.value < len(self._dims):
            return self._dims[expr.value]
        if expr.kind is SYMBOL and expr.value < len(self._symbols):
            return self._symbols[expr.value]
        return expr


def replace_expressions(expr: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """Return `expr` with every occurrence of a key of `replacements` (any expression) replaced by its value."""
    found = replacements.get(expr)
    if found is not None:
        return found
    if not expr.is_binary:
        return expr
    left, right = replace_expressions(expr.left, replacements), replace_expressions(expr.right, replacements)
    return expr if left is expr.left and right is expr.right else MAKE[expr.kind](left, right)
