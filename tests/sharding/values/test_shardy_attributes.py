"""Shardy's attributes are read from their text."""

from __future__ import annotations

import pytest

from hlo_run.sharding.values.make import as_tiles
from hlo_run.sharding.values.shardy import read_manual_axes, read_meshes, read_shardings

MESHES = read_meshes(
    '{mesh = #sdy.mesh<["x"=4, "y"=2]>, other = #sdy.mesh<["x"=2], device_ids=[1, 0]>, one = #sdy.mesh<[], device_ids=[3]>}'
)


def test_meshes() -> None:
    assert MESHES["mesh"].axes == (("x", 4), ("y", 2))
    assert MESHES["other"].devices() == (1, 0)
    assert MESHES["one"].maximal_device == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<@mesh, [{"x"}, {}]>', "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"),
        ('<@mesh, [{"y", ?}p1, {"x"}]>', "{devices=[2,4]<=[4,2]T(1,0)}"),
        ('<@mesh, [{}, {"x":(1)2}]>', "{devices=[1,2,4]<=[8] last_tile_dim_replicate}"),
        ('<@mesh, [{}, {"x":(2)2}]>', "{devices=[1,2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"),
        ('<@mesh, [{"x"}, {}], replicated={"y"}>', "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"),
        ('<@mesh, [{"x"}, {}], unreduced={"y"}>', "{devices=[4,1,2]<=[8] last_tile_dims={unreduced}}"),
        ('<@other, [{"x"}, {}]>', "{devices=[2,1]1,0}"),
        ("<@one, []>", "{maximal device=3}"),
        ('<mesh<["z"=2]>, [{"z"}, {}]>', "{devices=[2,1]<=[2]}"),
        ("<@mesh, [{?}, {}]>", "{replicated}"),
    ],
)
def test_shardings(text: str, expected: str) -> None:
    (found,) = read_shardings("#sdy.sharding" + text, MESHES)
    assert str(as_tiles(found)) == expected


def test_manual_axes_and_priorities() -> None:
    assert read_manual_axes('#sdy<manual_axes{"x", "y"}>') == ("x", "y")
    (found,) = read_shardings('#sdy.sharding<@mesh, [{"x"}p2, {?}]>', MESHES)
    assert [dim.priority for dim in found.dims] == [2, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('#sdy.sharding<@no, [{"x"}]>', "no mesh 'no'"),
        ('#sdy.sharding<@mesh, [{"z"}]>', "no axis 'z'"),
        ('#sdy.sharding<@mesh, [{"x"}, {"x"}]>', "overlap"),
        ('#sdy.sharding<@mesh, [{"x"}', "needs"),
        ("#sdy.sharding<@mesh, []> more", "more than it should"),
        ('#sdy.sharding<@mesh, [{"x":(a)2}]>', "in place of a number"),
        ("#sdy.sharding<@mesh, [], odd={}>", "odd axes"),
        ('#sdy.sharding<mesh<["x"=0]>, [{"x"}]>', "axis without devices"),
        ('"', "cut off"),
    ],
)
def test_other_text_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_shardings(text, MESHES)
