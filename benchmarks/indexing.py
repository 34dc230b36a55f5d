"""Print the microseconds that simplifying typical kernel maps takes.

    python benchmarks/indexing.py

cold: sizes not seen before, so that no cache helps, not even for the expressions. shared: the results are new, but other maps
over the same bounds were simplified before (the usual case inside a kernel). again: an equal map, built again. Every figure is
the median over many shapes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

from hlo_run.indexing import IndexingMap, compose, thread_map
from hlo_run.indexing.indexing_map import simplify_parts
from hlo_run.indexing.reshape import bitcast_map, reshape_map, transpose_map

_SHAPES = 60


def _threads(rows: int) -> IndexingMap:
    """Return the map of a loop kernel over bf16[6,rows,4096] with four elements per thread, as for examples/gelu.hlo."""
    return thread_map((6, rows, 4096), (2, 1, 0), (128, 1, 1), (rows * 48, 1, 1), (4,), ("vector_index",))


def _thread_map(rows: int) -> IndexingMap:
    thread_map.cache_clear()
    return _threads(rows)


def _flatten(rows: int) -> Callable[[], IndexingMap]:
    flat = bitcast_map((6, rows, 4096), (2, 1, 0), (6 * rows * 4096,), (0,))
    assert flat is not None
    return lambda: compose(_threads(rows), flat).simplify()


def _reshape(rows: int) -> Callable[[], IndexingMap]:
    reshape = reshape_map((6, rows, 4096), (2, rows * 3, 64, 64))
    return lambda: compose(_threads(rows), reshape).simplify()


def _transpose(rows: int) -> Callable[[], IndexingMap]:
    whole = transpose_map((6, rows, 4096), (1, 2, 0))
    back = transpose_map((rows, 4096, 6), (2, 0, 1))
    return lambda: compose(compose(_threads(rows), whole), back).simplify()


def _generic_reshape(rows: int) -> Callable[[], IndexingMap]:
    reshape = reshape_map((6, rows, 4096), (rows, 6, 2, 2048))
    return lambda: compose(_threads(rows), reshape).simplify()


def _measure(call: Callable[[], IndexingMap]) -> float:
    start = perf_counter()
    call()
    return (perf_counter() - start) * 1e6


def _row(name: str, make: Callable[[int], Callable[[], IndexingMap]]) -> str:
    calls = [make(512 + 8 * number) for number in range(_SHAPES)]
    for number in range(_SHAPES):
        _threads(512 + 8 * number)
    cold = median(map(_measure, calls))
    again = median(map(_measure, calls))
    simplify_parts.cache_clear()
    shared = median(map(_measure, calls))
    return f"{name:36} {cold:8.0f} {shared:8.0f} {again:8.0f}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    thread = median([_measure(lambda rows=rows: _thread_map(rows)) for rows in range(2000, 2000 + 8 * _SHAPES, 8)])
    print(f"{'map (us)':36} {'cold':>8} {'shared':>8} {'again':>8}")
    print(f"{'thread_map, seed gelu':36} {thread:8.0f}")
    print(_row("thread_map, then flatten", _flatten))
    print(_row("thread_map, then reshape to 4-d", _reshape))
    print(_row("thread_map, then transpose twice", _transpose))
    print(_row("thread_map, then generic reshape", _generic_reshape))


if __name__ == "__main__":
    main()
