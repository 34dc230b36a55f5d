"""Prints indexing maps in the syntax of XLA's `#xla_gpu.indexing_map` attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hlo_run.indexing.expr import Expr
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import Variable


class PrintableMap(Protocol):
    """The part of `IndexingMap` that the printer reads."""

    @property
    def dims(self) -> tuple[Variable, ...]:
        """The dimension variables with their closed ranges."""
        ...

    @property
    def ranges(self) -> tuple[Variable, ...]:
        """The range variables; their symbols come first."""
        ...

    @property
    def rts(self) -> tuple[Variable, ...]:
        """The runtime variables; their symbols follow the symbols of the range variables."""
        ...

    @property
    def results(self) -> tuple[Expr, ...]:
        """One expression per dimension of the result."""
        ...

    @property
    def constraints(self) -> tuple[tuple[Expr, Interval], ...]:
        """Expressions with the closed intervals that must contain their values."""
        ...

    @property
    def is_known_empty(self) -> bool:
        """True if the domain is known to have no points."""
        ...


def map_to_string(indexing_map: PrintableMap | None) -> str:
    """Return `(dims)[ranges]{rts} -> (results), domain: ..`, or `UNDEFINED` for None, or `KNOWN EMPTY`."""
    if indexing_map is None:
        return "UNDEFINED"
    return "KNOWN EMPTY" if indexing_map.is_known_empty else attribute_text(indexing_map)


def attribute_text(indexing_map: PrintableMap) -> str:
    """Return the map's text with variables and results, even if the map is known empty: parsing restores the map."""
    dims, ranges, rts = _names(indexing_map)
    symbols = ranges + rts
    results = [expr_to_string(expr, dims, symbols) for expr in indexing_map.results]
    text = f"({', '.join(dims)})"
    text += f"[{', '.join(ranges)}]" if ranges else ""
    text += f"{{{', '.join(rts)}}}" if rts else ""
    text += f" -> ({', '.join(results)})"
    variables = (*indexing_map.dims, *indexing_map.ranges, *indexing_map.rts)
    domain = [f"{name} in {v.bounds}" for name, v in zip(dims + symbols, variables, strict=True)]
    domain += [text for text, _ in _sorted_constraints(indexing_map)]
    return f"{text}, domain: {', '.join(domain)}" if domain else text


def constraints_as_printed(indexing_map: PrintableMap) -> list[tuple[Expr, Interval]]:
    """Return the constraints in printed order. Code that depends on the order gives the same result for a parsed map."""
    return [constraint for _, constraint in _sorted_constraints(indexing_map)]


def _sorted_constraints(indexing_map: PrintableMap) -> list[tuple[str, tuple[Expr, Interval]]]:
    dims, ranges, rts = _names(indexing_map)
    texts = [
        (f"{expr_to_string(expr, dims, ranges + rts)} in {bounds}", (expr, bounds)) for expr, bounds in indexing_map.constraints
    ]
    return sorted(texts, key=lambda pair: pair[0])


def expr_to_string(expr: Expr, dim_names: Sequence[str], symbol_names: Sequence[str]) -> str:
    """Return the text of one expression; variables beyond the given names get their default names (d0, s0)."""
    return expr.to_string(
        lambda i: dim_names[i] if i < len(dim_names) else f"d{i}",
        lambda i: symbol_names[i] if i < len(symbol_names) else f"s{i}",
    )


def _names(indexing_map: PrintableMap) -> tuple[list[str], list[str], list[str]]:
    """Return the names to print. A repeated name gets `_1`, `_2`, ..; composition can repeat names."""
    used: set[str] = set()
    groups: list[list[str]] = []
    for prefix, variables in (("d", indexing_map.dims), ("s", indexing_map.ranges), ("rt", indexing_map.rts)):
        groups.append([_unique(v.name or f"{prefix}{i}", used) for i, v in enumerate(variables)])
    return groups[0], groups[1], groups[2]


def _unique(name: str, used: set[str]) -> str:
    candidate, number = name, 0
    while candidate in used:
        number += 1
        candidate = f"{name}_{number}"
    used.add(candidate)
    return candidate
