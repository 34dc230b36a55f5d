"""The algebra of shardings: shapes of tiles, moves, groups and merges."""

from __future__ import annotations

import pytest

from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.ops.parse import parse
from hlo_run.sharding.values.groups import group_on_dims, ungroup
from hlo_run.sharding.values.make import divides_evenly, elements_of, offsets_of, same, shard_shape
from hlo_run.sharding.values.merge import is_more_specific, is_subtiling, merge
from hlo_run.sharding.values.moves import move_tiles, remove_dims, reverse, through_reshape
from hlo_run.sharding.values.replicate import replicate_dims, transpose

ROWS = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"
COLUMNS = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
BOTH = "{devices=[2,2]<=[4]}"


def sharding(text: str) -> SingleSharding:
    """Return the sharding that HLO text writes so."""
    rank = text.count(",", 0, text.find("]")) + 1
    dims = ",".join(["8"] * (rank - ("last" in text)))
    module = parse(f"HloModule m, num_partitions=4\nENTRY e {{ ROOT p = f32[{dims}] parameter(0), sharding={text} }}")
    found = module.entry.root.sharding
    assert found is not None
    return elements_of(found)[0]


def test_tiles_of_uneven_shapes() -> None:
    shape = Shape.array("f32", (5, 8))
    assert shard_shape(shape, sharding(BOTH)).dims == (3, 4)
    assert not divides_evenly(shape, sharding(BOTH))
    assert [offsets_of(shape, sharding(BOTH), device) for device in range(4)] == [(0, 0), (0, 4), (3, 0), (3, 4)]


def test_notation_does_not_matter() -> None:
    assert same(sharding("{devices=[2,2]0,1,2,3}"), sharding(BOTH))
    assert not same(sharding("{devices=[2,2]0,2,1,3}"), sharding(BOTH))


def test_transpose_and_reverse() -> None:
    assert same(transpose(sharding(BOTH), (1, 0)), sharding("{devices=[2,2]<=[2,2]T(1,0)}"))
    assert same(reverse(sharding(BOTH), [0]), sharding("{devices=[2,2]2,3,0,1}"))


def test_a_replicated_dimension() -> None:
    assert same(replicate_dims(sharding(BOTH), [1]), sharding(ROWS))
    assert replicate_dims(sharding(BOTH), [0, 1]).is_replicated
    assert same(remove_dims(sharding(ROWS), [1]), sharding("{devices=[2,2]<=[4] last_tile_dim_replicate}"))
    assert same(move_tiles(sharding(ROWS), 0, 1), sharding("{devices=[1,2,2]<=[4] last_tile_dim_replicate}"))


@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        ((8, 4), (32,), "{devices=[4,1]<=[4]}", "{devices=[4]<=[4]}"),
        ((32,), (8, 4), "{devices=[4]<=[4]}", "{devices=[4,1]<=[4]}"),
        ((8, 4), (4, 2, 4), BOTH, "{devices=[2,1,2]<=[4]}"),
    ],
)
def test_reshape(source: tuple[int, ...], target: tuple[int, ...], before: str, after: str) -> None:
    assert same(through_reshape(source, target, sharding(before)), sharding(after))


def test_merge_of_different_dimensions() -> None:
    better, merged = merge(sharding(COLUMNS), sharding(ROWS), may_combine=True)
    assert better
    assert same(merged, sharding(BOTH))
    better, _ = merge(sharding(BOTH), sharding(ROWS), may_combine=True)
    assert not better


def test_order_of_shardings() -> None:
    replicated = SingleSharding("replicated")
    assert is_more_specific(sharding(BOTH), sharding(ROWS))
    assert is_more_specific(sharding(ROWS), replicated)
    assert not is_more_specific(replicated, sharding(ROWS))
    assert is_subtiling((8, 8), sharding(BOTH), sharding(ROWS))
    assert not is_subtiling((8, 8), sharding(COLUMNS), sharding(ROWS))


def test_groups_and_back() -> None:
    grouped = group_on_dims(sharding(BOTH), [0])
    assert grouped.groups() == ((0, 1), (2, 3))
    assert same(grouped.sharding, sharding("{devices=[1,2]<=[2]}"))
    assert same(ungroup(grouped), sharding(BOTH))
    by_columns = group_on_dims(sharding(BOTH), [1])
    assert by_columns.groups() == ((0, 2), (1, 3))
    assert same(ungroup(by_columns), sharding(BOTH))
