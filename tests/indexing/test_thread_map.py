"""The map of a loop kernel's threads to elements: the seed's text, and that every element has exactly one thread."""

from __future__ import annotations

import pytest
from bijection import bijection_fault
from test_indexing_text import SEED, SEED_FLAT

from hlo_run.indexing import GRID_NAMES, IndexingMap, bitcast_map, compose, parse_indexing_map, thread_map


def test_the_seeds_map() -> None:
    whole = thread_map((6, 512, 4096), (2, 1, 0), (128, 1, 1), (24576, 1, 1), (4,), ("vector_index",))
    assert [v.name for v in whole.dims] == list(GRID_NAMES)
    assert str(whole.remove_unused_vars()[0]) == SEED


def test_the_seeds_flattened_map() -> None:
    flat = bitcast_map((6, 512, 4096), (2, 1, 0), (12582912,), (0,))
    assert flat is not None
    assert str(compose(parse_indexing_map(SEED), flat).symbols_to_dims().simplify()) == SEED_FLAT


@pytest.mark.parametrize(
    ("dims", "order", "threads", "blocks", "tile"),
    [
        ((5, 7), (1, 0), (8, 1, 1), (3, 1, 1), (2,)),
        ((5, 7), (0, 1), (8, 1, 1), (3, 1, 1), (2,)),
        ((4, 8), (1, 0), (4, 2, 1), (2, 1, 2), ()),
        ((3, 5, 4), (0, 2, 1), (4, 1, 1), (2, 1, 1), (2, 2)),
        ((1, 30), (1, 0), (16, 1, 1), (1, 1, 1), (2,)),
        ((), (), (1, 1, 1), (1, 1, 1), ()),
        ((6, 10), (1, 0), (4, 1, 1), (1, 2, 1), (1,)),
    ],
)
def test_is_a_bijection(
    dims: tuple[int, ...],
    order: tuple[int, ...],
    threads: tuple[int, int, int],
    blocks: tuple[int, int, int],
    tile: tuple[int, ...],
) -> None:
    whole = thread_map(dims, order, threads, blocks, tile)
    assert bijection_fault(whole, dims) is None
    assert bijection_fault(whole.remove_unused_vars()[0], dims) is None


def test_neighbours_in_memory_are_neighbouring_symbols() -> None:
    column_major = thread_map((6, 8), (0, 1), (4, 1, 1), (6, 1, 1), (2,))
    assert column_major.evaluate((0,) * 6, (1,)) == (1, 0)
    assert column_major.evaluate((1, 0, 0, 0, 0, 0), (0,)) == (2, 0)


def test_one_chunk_disappears_and_several_stay() -> None:
    assert thread_map((64,), (0,), (32, 1, 1), (2, 1, 1)).ranges == ()
    several = thread_map((100,), (0,), (32, 1, 1), (1, 1, 1))
    assert str(several.remove_unused_vars()[0]) == (
        "(th_x)[s0] -> (s0 * 32 + th_x), domain: th_x in [0, 31], s0 in [0, 3], s0 * 32 + th_x in [0, 99]"
    )


def test_idle_threads_are_cut_off_in_vectors() -> None:
    whole = thread_map((1000,), (0,), (128, 1, 1), (2, 1, 1), (4,), ("v",)).remove_unused_vars()[0]
    assert str(whole) == (
        "(th_x, bl_x)[v] -> (th_x * 4 + bl_x * 512 + v),"
        " domain: th_x in [0, 127], bl_x in [0, 1], v in [0, 3], bl_x * 128 + th_x in [0, 249]"
    )


def test_no_elements() -> None:
    assert thread_map((4, 0), (1, 0), (32, 1, 1), (1, 1, 1)).is_known_empty


def test_bijection_faults() -> None:
    assert bijection_fault(IndexingMap.identity((3,)), (3,)) is None
    assert "outside" in (bijection_fault(IndexingMap.identity((4,)), (3,)) or "")
    assert "only 3 of 4" in (bijection_fault(IndexingMap.identity((3,)), (4,)) or "")
    twice = parse_indexing_map("(a) -> (a floordiv 2), domain: a in [0, 3]")
    assert "another point" in (bijection_fault(twice, (2,)) or "")
