"""Checks by enumeration that a map hits every point of a box exactly once: the test of a kernel's thread map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from hlo_run.indexing.indexing_map import IndexingMap


def domain_points(indexing_map: IndexingMap) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (dims, symbols) of every point of the domain, constraints honoured, the last symbol fastest."""
    if indexing_map.is_known_empty:
        return
    variables = (*indexing_map.dims, *indexing_map.symbols)
    split = len(indexing_map.dims)
    contains = indexing_map.compiled.contains
    for point in product(*(range(v.bounds.lower, v.bounds.upper + 1) for v in variables)):
        dims, symbols = point[:split], point[split:]
        if contains(dims, symbols):
            yield dims, symbols


def bijection_fault(indexing_map: IndexingMap, sizes: Sequence[int]) -> str | None:
    """Return why the map is no bijection from its domain onto the box of `sizes`; None if it is one.

    Takes time and memory in proportion to the domain: shrink the shape of a test, not the check.
    """
    seen: set[tuple[int, ...]] = set()
    evaluate = indexing_map.compiled.results
    for dims, symbols in domain_points(indexing_map):
        index = evaluate(dims, symbols)
        if not all(0 <= i < size for i, size in zip(index, sizes, strict=True)):
            return f"{dims}{list(symbols)} goes to {index}, which is outside of {list(sizes)}"
        if index in seen:
            return f"{dims}{list(symbols)} goes to {index}, which another point goes to as well"
        seen.add(index)
    return None if len(seen) == prod(sizes) else f"only {len(seen)} of {prod(sizes)} elements are reached"
