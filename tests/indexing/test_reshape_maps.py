"""Maps of reshapes, transposes and bitcasts against numpy's idea of the same array."""

from __future__ import annotations

from itertools import permutations
from math import prod

import numpy as np
import pytest
from bijection import bijection_fault

from hlo_run.indexing import IndexingMap, bitcast_map, constant, delinearize, dim, linearize, reshape_map, transpose_map
from hlo_run.indexing.reshape import inverse_permutation, to_physical_map

_RESHAPES = [
    ((2, 3, 4), (4, 6)),
    ((4, 6), (2, 3, 4)),
    ((24,), (2, 3, 4)),
    ((2, 3, 4), (24,)),
    ((6, 4), (8, 3)),
    ((1, 6, 1, 4), (3, 8, 1)),
    ((3, 8, 1), (1, 6, 1, 4)),
    ((), (1, 1)),
    ((1, 1), ()),
    ((1,), ()),
    ((5, 1, 1), (1, 5)),
    ((5,), (5,)),
    ((6, 6, 5), (4, 9, 5)),
]


@pytest.mark.parametrize(("source", "target"), _RESHAPES)
def test_reshape(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    found = reshape_map(source, target)
    for number, index in enumerate(np.ndindex(*source)):
        assert found.evaluate(index) == tuple(int(i) for i in np.unravel_index(number, target))


def test_reshape_is_cut_into_minimal_parts() -> None:
    whole = reshape_map((4, 8, 6, 5), (32, 3, 10))
    assert str(whole).partition(" -> ")[2].startswith("(d0 * 8 + d1, d2 floordiv 2, (d2 mod 2) * 5 + d3)")
    assert str(reshape_map((6, 4), (8, 3))).startswith("(d0, d1) -> ((d0 * 4 + d1) floordiv 3, (d0 * 4 + d1) mod 3)")


def test_dimensions_of_size_one_stay_visible() -> None:
    assert reshape_map((1, 8), (1, 8)).results == (dim(0), dim(1))
    assert reshape_map((1, 4, 8), (4, 8)).results == (dim(0) * 4 + dim(1), dim(2))


def test_arrays_without_elements() -> None:
    assert reshape_map((0, 3), (3, 0, 2)).is_known_empty
    assert len(reshape_map((0, 3), (3, 0, 2)).results) == 3


_BITCASTS = [
    ((2, 3), (0, 1), (3, 2), (1, 0)),
    ((2, 3, 4), (0, 2, 1), (24,), (0,)),
    ((24,), (0,), (2, 3, 4), (1, 0, 2)),
    ((4, 6), (0, 1), (2, 3, 4), (2, 0, 1)),
    ((1, 6, 1), (0, 1, 2), (6,), (0,)),
    ((4, 6), (1, 0), (2, 2, 6), (2, 1, 0)),
    ((6, 4), (0, 1), (6, 2, 2), (0, 2, 1)),
]


def _offsets(dims: tuple[int, ...], minor_to_major: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the place in memory of every element."""
    order = tuple(reversed(minor_to_major))
    physical = np.arange(prod(dims)).reshape([dims[d] for d in order])
    return physical.transpose(inverse_permutation(order))


@pytest.mark.parametrize(("dims", "order", "to_dims", "to_order"), _BITCASTS)
def test_bitcast(dims: tuple[int, ...], order: tuple[int, ...], to_dims: tuple[int, ...], to_order: tuple[int, ...]) -> None:
    found = bitcast_map(dims, order, to_dims, to_order)
    assert found is not None
    before, after = _offsets(dims, order), _offsets(to_dims, to_order)
    assert all(before[index] == after[found.evaluate(index)] for index in np.ndindex(*dims))
    assert bijection_fault(found, to_dims) is None


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("to_order", list(permutations(range(3))))
def test_bitcasts_between_all_layouts(order: tuple[int, ...], to_order: tuple[int, ...]) -> None:
    found = bitcast_map((2, 3, 4), order, (4, 2, 3), to_order)
    assert found is not None
    before, after = _offsets((2, 3, 4), order), _offsets((4, 2, 3), to_order)
    assert all(before[index] == after[found.evaluate(index)] for index in np.ndindex(2, 3, 4))


def test_bitcast_forms() -> None:
    transpose = bitcast_map((2, 3), (0, 1), (3, 2), (1, 0))
    assert transpose == transpose_map((2, 3), (1, 0))
    # A reshape that keeps the layout needs no detour, though neither layout is the default one.
    kept = bitcast_map((6, 4), (0, 1), (6, 2, 2), (0, 2, 1))
    assert kept == reshape_map((6, 4), (6, 2, 2))
    assert bitcast_map((2, 3), (1, 0), (7,), (0,)) is None


def test_transpose_and_physical() -> None:
    assert transpose_map((2, 3, 4), (2, 0, 1)).evaluate((0, 1, 2)) == (2, 0, 1)
    assert inverse_permutation((2, 0, 1)) == (1, 2, 0)
    assert to_physical_map((2, 3, 4), (0, 2, 1)).evaluate((0, 1, 2)) == (1, 2, 0)


def test_linear_and_back() -> None:
    sizes = (1, 4, 1, 6)
    linear = linearize([dim(i) for i in range(4)], sizes)
    back = IndexingMap.from_sizes(delinearize(dim(0), sizes), (24,))
    forth = IndexingMap.from_sizes((linear,), sizes)
    assert [back.evaluate(forth.evaluate(index)) for index in np.ndindex(*sizes)] == list(np.ndindex(*sizes))
    assert "mod 4" not in str(back)
    assert delinearize(dim(0), (3, 0)) == (constant(0), constant(0))
