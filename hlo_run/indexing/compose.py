"""Composition of indexing maps: the results of one map feed the dimensions of the next."""

from __future__ import annotations

from typing import overload

from hlo_run.indexing.domain import Domain
from hlo_run.indexing.expr import symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.substitute import Substitution


@overload
def compose(first: IndexingMap, second: IndexingMap) -> IndexingMap: ...
@overload
def compose(first: IndexingMap | None, second: IndexingMap | None) -> IndexingMap | None: ...
def compose(first: IndexingMap | None, second: IndexingMap | None) -> IndexingMap | None:
    """Return x -> second(first(x)), not simplified. If either map is undefined (None), so is the result.

    The dimensions are first's. The symbols are [second's ranges, first's ranges, second's rts, first's rts].
    The constraints are second's, first's, then `result i of first in bounds of dimension i of second`.
    """
    if first is None or second is None:
        return None
    assert len(first.results) == len(second.dims), f"{first} has not one result per dimension of {second}"
    second_ranges, ranges, second_rts = len(second.ranges), len(first.ranges) + len(second.ranges), len(second.rts)
    own_ranges = [symbol(second_ranges + i) for i in range(len(first.ranges))]
    own_rts = [symbol(ranges + second_rts + i) for i in range(len(first.rts))]
    rewrite_first = Substitution((), own_ranges + own_rts)
    inner = tuple(map(rewrite_first, first.results))
    outer_symbols = [symbol(i) for i in range(second_ranges)] + [symbol(ranges + i) for i in range(second_rts)]
    rewrite_second = Substitution(inner, outer_symbols)
    variables = (*second.ranges, *first.ranges, *second.rts, *first.rts)
    domain = Domain([v.bounds for v in first.dims], [v.bounds for v in variables], {})
    domain.empty = first.is_known_empty or second.is_known_empty
    for expr, interval in second.constraints:
        domain.add(rewrite_second(expr), interval)
    for expr, interval in first.constraints:
        domain.add(rewrite_first(expr), interval)
    for expr, variable in zip(inner, second.dims, strict=True):
        domain.add(expr, variable.bounds)
    bare = IndexingMap(
        first.dims, second.ranges + first.ranges, second.rts + first.rts, tuple(map(rewrite_second, second.results))
    )
    return bare.with_domain(domain)
