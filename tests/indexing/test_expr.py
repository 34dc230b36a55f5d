"""Expressions: identity, the folds of construction, order, text, substitution."""

from __future__ import annotations

from random import Random

import pytest

from hlo_run.indexing import Expr, Kind, ceil_div, constant, dim, maximum, minimum, simplify_expr, symbol
from hlo_run.indexing.substitute import Substitution, replace_expressions

d0, d1, s0 = dim(0), dim(1), symbol(0)


def test_equal_expressions_are_one_object() -> None:
    assert (d0 + 1) * 4 // 3 is (dim(0) + constant(1)) * 4 // 3
    assert d0 is not s0
    assert (d0 - d1) % 8 is not (d1 - d0) % 8


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (5 + d0, d0 + 5),
        (5 * d0, d0 * 5),
        (d0 + 0, d0),
        (d0 * 1, d0),
        (d0 * 0, constant(0)),
        (d0 * 3 * 4, d0 * 12),
        (d0 + 3 - 3, d0),
        (d0 % 1, constant(0)),
        (d0 // 1, d0),
        (constant(-7) // 2, constant(-4)),
        (constant(-7) % 4, constant(1)),
        (ceil_div(7, 2), constant(4)),
        (minimum(3, d0), minimum(d0, 3)),
        (maximum(3, 4), constant(4)),
        (7 - d0, d0 * -1 + 7),
    ],
)
def test_folds(built: Expr, expected: Expr) -> None:
    assert built is expected


def test_addends_are_sorted_by_kind_then_children() -> None:
    addends = [d0 * d1, d0 * 5, (d0 // 2) * 4, (d1 % 3) * 7, d0 % 5, d1 // 3, minimum(d0, d1), d1, s0, constant(9)]
    expected = "(d1 mod 3) * 7 + (d0 floordiv 2) * 4 + d0 * d1 + d0 * 5 + d0 mod 5 + d1 floordiv 3 + min(d0, d1) + d1 + s0 + 9"
    for seed in range(5):
        Random(seed).shuffle(addends)
        total = constant(0)
        for addend in addends:
            total = total + addend
        assert repr(simplify_expr(total)) == expected


def test_questions() -> None:
    expr = (d0 + 3) % 4
    assert (expr.kind, expr.right.value, expr.left.right.value) == (Kind.MOD, 4, 3)
    assert (expr.uses_dim(0), expr.uses_dim(1), expr.uses_symbol(0)) == (True, False, False)
    assert (d0.is_variable, s0.is_variable, expr.is_variable, expr.is_binary, d0.is_binary) == (True, True, False, True, False)


def test_substitution() -> None:
    expr = d0 * 4 + d1 + s0
    assert Substitution((d1, d0), (constant(2),))(expr) is d1 * 4 + d0 + 2
    assert Substitution((d1,))(expr) is d1 * 4 + d1 + s0
    assert replace_expressions(expr + (d0 * 4 + d1) // 3, {d0 * 4 + d1: s0}) is s0 + s0 + s0 // 3
