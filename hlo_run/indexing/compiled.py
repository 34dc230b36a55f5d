"""Compiles indexing maps to Python functions of ints or arrays (anything that has + - * // % and comparisons)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from hlo_run.indexing.expr import CEILDIV, CONSTANT, DIM, MAX, MIN, SYMBOL, Expr, Kind
from hlo_run.indexing.interval import MAX as UNBOUNDED_ABOVE
from hlo_run.indexing.interval import MIN as UNBOUNDED_BELOW
from hlo_run.indexing.interval import Interval

_OPERATOR = {Kind.ADD: "+", Kind.MUL: "*", Kind.MOD: "%", Kind.FLOORDIV: "//"}


class CompiledMap(Struct, frozen=True):
    """`results(dims, symbols)` gives the tuple of results; `contains(dims, symbols)` tells if the point is in the domain.

    Both take ints, or arrays that broadcast against each other. The arrays' dtype must hold the intermediate values.
    A constant result is an int even for arrays. So is the answer of `contains` if the domain has no checks.
    """

    results: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]
    contains: Callable[[Sequence[Any], Sequence[Any]], Any]


def compile_map(
    results: Sequence[Expr], checks: Sequence[tuple[Expr, Interval]], dim_count: int, symbol_count: int
) -> CompiledMap:
    """Compile result expressions and the checks `expr in interval` over `dim_count` dimensions and `symbol_count` symbols."""
    values = _Source(dim_count, symbol_count)
    returned = "".join(f"{values.name(expr)}, " for expr in results)
    domain = _Source(dim_count, symbol_count)
    tests = [test for expr, interval in checks for test in _tests(domain.name(expr), interval)]
    return CompiledMap(values.function(f"({returned})"), domain.function(" & ".join(tests) or "True"))


def _tests(value: str, interval: Interval) -> list[str]:
    below = [f"({interval.lower} <= {value})"] if interval.lower != UNBOUNDED_BELOW else []
    return below + ([f"({value} <= {interval.upper})"] if interval.upper != UNBOUNDED_ABOVE else [])


class _Source:
    """The source text of a function with one assignment per distinct expression node."""

    def __init__(self, dim_count: int, symbol_count: int) -> None:
        self._lines = ["def function(dims, symbols):"]
        self._names: dict[Expr, str] = {}
        for letter, source, count in (("d", "dims", dim_count), ("s", "symbols", symbol_count)):
            if count:
                self._lines.append(f"    {''.join(f'{letter}{i}, ' for i in range(count))}= {source}")

    def name(self, expr: Expr) -> str:
        found = self._names.get(expr)
        if found is not None:
            return found
        kind = expr.kind
        if kind is CONSTANT:
            name = f"({expr.value})"
        elif kind is DIM or kind is SYMBOL:
            name = f"{'d' if kind is DIM else 's'}{expr.value}"
        else:
            left, right = self.name(expr.left), self.name(expr.right)
            name = f"t{len(self._lines)}"
            self._lines.append(f"    {name} = {_operation(kind, left, right)}")
        self._names[expr] = name
        return name

    def function(self, returned: str) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        scope: dict[str, Any] = {}
        exec("\n".join([*self._lines, f"    return {returned}"]), scope)
        return scope["function"]


def _operation(kind: Kind, left: str, right: str) -> str:
    if kind is CEILDIV:
        return f"-(-{left} // {right})"
    if kind is MIN or kind is MAX:
        # Plain min() does not take arrays.
        return f"{left} + ({right} - {left}) * ({right} {'<' if kind is MIN else '>'} {left})"
    return f"{left} {_OPERATOR[kind]} {right}"
