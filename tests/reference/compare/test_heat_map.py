"""Counts of differing elements per cell of a heat map."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.reference.compare.heat_map import heat_maps


@pytest.mark.parametrize("dims", [(7,), (200,), (5, 6), (130, 1, 70), (3, 4, 5), (2, 1, 3, 2, 2, 2, 3)])
def test_every_map_counts_all_elements(dims: tuple[int, ...]) -> None:
    mask = np.random.default_rng(0).random(dims) < 0.3
    maps = heat_maps(mask)
    wide = sum(size > 1 for size in dims)
    used = min(wide, 5)
    assert len(maps) == (1 if wide == 1 else used * (used - 1) // 2)
    for heat in maps:
        assert sum(map(sum, heat.counts)) == np.count_nonzero(mask)
        assert heat.height * heat.width * heat.elements == mask.size
        assert len(heat.counts) <= 64
        assert max(map(len, heat.counts)) <= 64


def test_cells_are_where_the_elements_are() -> None:
    mask = np.zeros((2, 100, 3), np.bool_)
    mask[1, 99, 2] = True
    last, outer, _ = heat_maps(mask)
    assert (last.rows, last.columns, last.row_size) == (1, 2, 2)
    assert last.counts[49] == (0, 0, 1)
    assert (outer.rows, outer.columns) == (0, 2)
    assert outer.counts == ((0, 0, 0), (0, 0, 1))


def test_one_element_has_no_map() -> None:
    assert heat_maps(np.ones((), np.bool_)) == heat_maps(np.ones((1, 1), np.bool_)) == heat_maps(np.ones((0, 3), np.bool_)) == []
