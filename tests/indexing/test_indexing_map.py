"""Indexing maps: construction, equality, removal and rewriting of variables, evaluation, composition."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
from bijection import domain_points
from hypothesis import given
from hypothesis import strategies as st
from indexing_strategies import DIM_COUNT, checked, indexing_maps

from hlo_run.indexing import IndexingMap, Interval, Variable, compose, constant, dim, minimum, parse_indexing_map, symbol


def _relation(indexing_map: IndexingMap) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    return [(dims, symbols, indexing_map.evaluate(dims, symbols)) for dims, symbols in domain_points(indexing_map)]


def test_equality_ignores_names_and_the_order_of_constraints() -> None:
    domain = "domain: {0} in [0, 3], {1} in [0, 5]"
    one = parse_indexing_map(f"(a, b) -> (a), {domain.format('a', 'b')}, a + b in [0, 4], a * b in [0, 6]")
    two = parse_indexing_map(f"(x, y) -> (x), {domain.format('x', 'y')}, x * y in [0, 6], x + y in [0, 4]")
    assert one == two
    assert hash(one) == hash(two)
    assert one != two.with_constraint(dim(0), Interval(0, 2))
    assert one != two.with_results((dim(1),))


def test_plain_variables_tighten_their_bounds() -> None:
    whole = IndexingMap.from_sizes((dim(0),), (8,), (4,))
    cut = whole.with_constraint(dim(0), Interval(2, 20)).with_constraint(symbol(0), Interval(-1, 1))
    assert cut.dims[0].bounds == Interval(2, 7)
    assert cut.ranges[0].bounds == Interval(0, 1)
    assert cut.constraints == ()
    assert cut.with_constraint(constant(3), Interval(0, 5)) == cut


def test_infeasible_construction_is_known_empty() -> None:
    empty = IndexingMap.from_sizes((dim(0) + 1, symbol(0)), (0,), (4,))
    assert empty.is_known_empty
    assert empty.results == (constant(0), constant(0))
    assert (empty.dims[0].bounds, empty.ranges[0].bounds) == (Interval(0, -1), Interval(0, -1))
    assert empty.simplify() is empty
    assert not empty.contains((0,), (0,))
    assert list(domain_points(empty)) == []
    assert IndexingMap.from_sizes((), (4,)).with_constraint(constant(7), Interval(0, 3)).is_known_empty


def test_remove_unused_symbols_keeps_what_constraints_tie_to_used_ones() -> None:
    whole = parse_indexing_map(
        "(d)[a, b, c, e] -> (b), domain: d in [0, 3], a in [0, 3], b in [0, 3], c in [0, 3], e in [0, 3],"
        "a + b in [0, 4], c * 2 + e in [0, 7]"
    )
    smaller, kept = whole.remove_unused_symbols()
    assert kept == (True, True, False, False)
    assert smaller == parse_indexing_map("(d)[a, b] -> (b), domain: d in [0, 3], a in [0, 3], b in [0, 3], a + b in [0, 4]")
    assert smaller.remove_unused_symbols() == (smaller, (True, True))


def test_remove_unused_vars_follows_chains_of_constraints() -> None:
    whole = parse_indexing_map(
        "(d, e, f)[s]{r} -> (f), domain: d in [0, 3], e in [0, 3], f in [0, 3], s in [0, 1], r in [0, 9],"
        "s * 3 + d in [0, 4], d + f in [0, 4]"
    )
    smaller, kept = whole.remove_unused_vars()
    assert kept == (True, False, True, True, False)
    assert str(smaller) == (
        "(d, f)[s] -> (f), domain: d in [0, 3], f in [0, 3], s in [0, 1], d + f in [0, 4], s * 3 + d in [0, 4]"
    )


@checked
@given(indexing_maps(has_runtime_variable=True))
def test_removing_variables_keeps_the_values(whole: IndexingMap) -> None:
    smaller, kept = whole.remove_unused_vars()
    before = {index for _, _, index in _relation(whole)}
    # Dropped constraints are on dropped variables alone: if they cannot be met, the whole map was empty.
    if before:
        assert {index for _, _, index in _relation(smaller)} == before
    assert sum(kept) == len(smaller.dims) + len(smaller.symbols)


@checked
@given(indexing_maps())
def test_symbols_to_dims(whole: IndexingMap) -> None:
    moved = whole.symbols_to_dims()
    assert moved.ranges == moved.rts == ()
    assert [(d, i) for d, _, i in _relation(moved)] == [(d + s, i) for d, s, i in _relation(whole)]


def test_ranges_to_dims_keeps_the_other_symbols() -> None:
    whole = parse_indexing_map(
        "(d)[a, b]{r} -> (d + a * 2 + b * 4 + r * 8), domain: d in [0, 1], a in [0, 1], b in [0, 1], r in [0, 1]"
    )
    assert str(whole.ranges_to_dims([1])) == (
        "(d, b)[a]{r} -> (d + a * 2 + b * 4 + r * 8), domain: d in [0, 1], b in [0, 1], a in [0, 1], r in [0, 1]"
    )


def test_substitution() -> None:
    whole = parse_indexing_map("(a, b)[s] -> (a + s, b), domain: a in [0, 3], b in [0, 5], s in [0, 1], a + b in [0, 6]")
    fixed = whole.substitute((dim(0), constant(4)), (constant(1),))
    assert str(fixed) == "(a, b)[s] -> (a + 1, 4), domain: a in [0, 3], b in [0, 5], s in [0, 1], a + 4 in [0, 6]"


def test_pickle_and_copy_give_the_same_expressions() -> None:
    whole = parse_indexing_map("(a)[s] -> (min(a, s) mod 3, a ceildiv 2), domain: a in [0, 3], s in [0, 1], a + s in [0, 3]")
    whole.evaluate((1,), (1,))
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert pickle.loads(pickle.dumps(whole)).results[0] is whole.results[0]
    assert copy.deepcopy(whole).results[1] is whole.results[1]


@checked
@given(indexing_maps())
def test_arrays_evaluate_as_ints_do(whole: IndexingMap) -> None:
    variables = (*whole.dims, *whole.symbols)
    sizes = [v.bounds.size for v in variables]
    grid: list[Any] = list(np.indices(sizes)) if all(sizes) else []
    if whole.is_known_empty or not grid:
        return
    arrays = [axis + v.bounds.lower for axis, v in zip(grid, variables, strict=True)]
    mask = np.broadcast_to(whole.compiled.contains(arrays[:DIM_COUNT], arrays[DIM_COUNT:]), sizes)
    results = [np.broadcast_to(r, sizes)[mask] for r in whole.compiled.results(arrays[:DIM_COUNT], arrays[DIM_COUNT:])]
    assert list(zip(*results, strict=True)) == [index for _, _, index in _relation(whole)]


def test_range_of() -> None:
    whole = IndexingMap.from_sizes((), (6, 4))
    assert whole.range_of(dim(0) * 4 + dim(1)) == Interval(0, 23)
    assert whole.range_of(minimum(dim(0) - 3, 1)) == Interval(-3, 1)


# Composition.


def test_compose_puts_the_second_maps_symbols_first() -> None:
    first = parse_indexing_map("(d)[a]{r} -> (d + a, r), domain: d in [0, 2], a in [0, 1], r in [0, 4]")
    second = parse_indexing_map("(x, y)[b]{q} -> (x * 2 + b + q, y), domain: x in [0, 3], y in [0, 3], b in [0, 1], q in [0, 7]")
    both = compose(first, second)
    assert [v.name for v in both.ranges] == ["b", "a"]
    assert [v.name for v in both.rts] == ["q", "r"]
    assert str(both.simplify()) == (
        "(d)[b, a]{q, r} -> (d * 2 + a * 2 + b + q, r), domain: d in [0, 2], b in [0, 1], a in [0, 1], q in [0, 7], r in [0, 3]"
    )


def test_compose_with_undefined_and_empty() -> None:
    whole = IndexingMap.identity((4,))
    assert compose(None, whole) is None
    assert compose(whole, None) is None
    assert compose(whole, IndexingMap.identity((0,))).is_known_empty
    assert compose(IndexingMap.identity((0,)), whole).is_known_empty


def test_names_of_both_maps_stay_apart_when_printed() -> None:
    whole = parse_indexing_map("(d)[v] -> (d * 2 + v), domain: d in [0, 7], v in [0, 1]")
    wider = IndexingMap((Variable(Interval(0, 15), "d"),), whole.ranges, (), whole.results)
    both = compose(whole, wider).simplify()
    assert str(both) == "(d)[v, v_1] -> (d * 4 + v_1 * 2 + v), domain: d in [0, 7], v in [0, 1], v_1 in [0, 1]"
    assert parse_indexing_map(str(both)) == both


@checked
@given(indexing_maps(), indexing_maps(), st.booleans())
def test_composition_is_one_map_after_the_other(first: IndexingMap, second: IndexingMap, simplify: bool) -> None:
    both = compose(first, second)
    if simplify:
        both = both.simplify()
    expected: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []
    inner = sorted({symbols for _, symbols in domain_points(second)})
    for dims, symbols, index in _relation(first):
        for own in inner:
            if second.contains(index, own):
                expected.append((dims, own + symbols, second.evaluate(index, own)))
    assert sorted(_relation(both)) == sorted(expected)
