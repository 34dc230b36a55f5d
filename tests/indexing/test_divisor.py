"""The divisor of an expression: constants, sums, products, remainders; one dimension may be 0."""

from __future__ import annotations

import pytest

from hlo_run.indexing.divisor import divisor_of
from hlo_run.indexing.expr import Expr, constant, dim, symbol


@pytest.mark.parametrize(
    ("expr", "divisor"),
    [
        (constant(-6), 6),
        (constant(0), 0),
        (dim(0), 1),
        (dim(0) * 8 + symbol(0) * 12, 4),
        (dim(0) * 8 + symbol(0), 1),
        ((dim(0) * 6) % 9, 3),
    ],
)
def test_divisors(expr: Expr, divisor: int) -> None:
    assert divisor_of(expr) == divisor


def test_a_dimension_that_is_zero() -> None:
    assert divisor_of(dim(0) + dim(1) * 4, zero_dim=0) == 4
    assert divisor_of(dim(0) * 4, zero_dim=0) == 0
