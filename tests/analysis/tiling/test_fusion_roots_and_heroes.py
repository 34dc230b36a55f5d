"""Roots are flattened in order. The search for heroes goes only through instructions that may be an epilogue."""

from __future__ import annotations

import pytest
from emitting import read_fusion

from hlo_run.analysis.tiling.fusion_roots_and_heroes import find_heroes, fusion_roots


def roots_and_heroes(text: str) -> list[tuple[str, str]]:
    roots = fusion_roots(read_fusion(text)[1])
    return [(root.name, hero.name) for root, hero in zip(roots, find_heroes(roots), strict=True)]


HEAD = "f { p = f32[40,36] parameter(0) t = f32[36,40] transpose(p), dimensions={1,0} "


def test_nested_tuples_are_flattened_and_kept_in_order() -> None:
    text = """f { p = f32[4] parameter(0) a = f32[4] abs(p) b = f32[4] negate(p)
      t = (f32[4], f32[4]) tuple(b, a) ROOT r = ((f32[4], f32[4]), f32[4], f32[4]) tuple(t, p, a) }"""
    assert [root for root, _ in roots_and_heroes(text)] == ["b", "a", "p", "a"]


@pytest.mark.parametrize(
    "epilogue",
    [
        "ROOT r = f32[36,40] abs(t)",
        "a = f32[36,40] abs(t) b = f32[36,40] exponential(t) ROOT r = f32[36,40] add(a, b)",
        "c = f32[] constant(1) b = f32[36,40] broadcast(c), dimensions={} ROOT r = f32[36,40] clamp(b, t, b)",
        "b = f32[1440] bitcast(t) ROOT r = s32[1440] convert(b)",
        "b = f32[6,6,40] reshape(t) ROOT r = f32[6,6,40] negate(b)",
    ],
)
def test_transpose_hero_is_found_through_elementwise_ops_and_bitcasts(epilogue: str) -> None:
    assert roots_and_heroes(f"{HEAD}{epilogue} }}") == [("r", "t")]


@pytest.mark.parametrize(
    "epilogue",
    [
        # Broadcast, slice and a copy to another layout are no epilogue.
        "ROOT r = f32[36,40,2] broadcast(t), dimensions={0,1}",
        "ROOT r = f32[36,20] slice(t), slice={[0:36], [0:20]}",
        "ROOT r = f32[36,40]{0,1} copy(t)",
        # Two transposes: neither is the hero.
        "q = f32[40,36] parameter(1) u = f32[36,40] transpose(q), dimensions={1,0} ROOT r = f32[36,40] add(t, u)",
        # A use that is no epilogue on the way.
        "v = f32[36,40] reverse(t), dimensions={0} ROOT r = f32[36,40] add(t, v)",
    ],
)
def test_otherwise_the_root_is_its_own_hero(epilogue: str) -> None:
    assert roots_and_heroes(f"{HEAD}{epilogue} }}") == [("r", "r")]


def test_small_transpose_is_no_hero() -> None:
    text = "f { p = f32[4,36] parameter(0) t = f32[36,4] transpose(p), dimensions={1,0} ROOT r = f32[36,4] abs(t) }"
    assert roots_and_heroes(text) == [("r", "r")]


def test_concatenate_hero() -> None:
    text = "f { p = f32[4] parameter(0) c = f32[8] concatenate(p, p), dimensions={0} ROOT r = f32[8] add(c, c) }"
    assert roots_and_heroes(text) == [("r", "c")]


REDUCE = """HloModule m
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
f { p = f32[64,32] parameter(0) z = f32[] constant(0) d = f32[64] reduce(p, z), dimensions={1}, to_apply=sum ROOT r = %s }
ENTRY main { p = f32[64,32] parameter(0) ROOT f = f32[64] fusion(p), kind=kInput, calls=f }"""


def test_reduce_hero_is_found_through_one_operand_ops_only() -> None:
    assert roots_and_heroes(REDUCE % "f32[64] abs(d)") == [("r", "d")]
    assert roots_and_heroes(REDUCE % "f32[64] add(d, d)") == [("r", "r")]


def test_each_root_has_its_hero() -> None:
    text = f"{HEAD}n = f32[40,36] negate(p) a = f32[36,40] abs(t) ROOT r = (f32[40,36], f32[36,40]) tuple(n, a) }}"
    assert roots_and_heroes(text) == [("n", "n"), ("a", "t")]
