"""Reductions: the normalised form, the tilings and their sizes, and the roots that share blocks."""

from __future__ import annotations

import pytest
from emitting import fusion_analysis, read_fusion

from hlo_run.analysis.decision import Decision
from hlo_run.analysis.tiling.reduction_description import ReductionDescription, judge_reduction
from hlo_run.analysis.tiling.reduction_groups import group_roots
from hlo_run.analysis.tiling.reduction_tiling import ReductionTiling, tile_reduction

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) } "


def text(source: str, target: str, dims: str) -> str:
    return ADD + (
        f"f {{ p = f32{source} parameter(0) z = f32[] constant(0) "
        f"ROOT r = f32{target} reduce(p, z), dimensions={{{dims}}}, to_apply=add }}"
    )


@pytest.mark.parametrize(
    ("source", "target", "dims", "expected"),
    [
        ("[7,64,100,128]", "[7,64]", "2,3", (True, (1, 448, 12800))),
        ("[7,64,100,128]", "[7,64,128]", "2", (False, (448, 100, 128))),
        ("[7,64,128]", "[64]", "0,2", (True, (7, 64, 128))),
        ("[100,64,64]", "[64,64]", "0", (False, (1, 100, 4096))),
        ("[100,64]{0,1}", "[64]", "0", (True, (1, 64, 100))),
        ("[64,2,100]{1,0,2}", "[100]", "0,1", (True, (1, 100, 128))),
        ("[20,30]", "[]", "0,1", (True, (1, 1, 600))),
        ("[1,64,1]", "[1,1]", "1", (True, (1, 1, 64))),
        ("[4,50,6,70]", "[4,6]", "1,3", "neither"),
        ("[9,33]", "[33]", "0", "need no shared memory"),
        ("[100,20]", "[100]", "1", "rows of 20 elements fill no warp"),
        ("[9,64,64]", "[64]", "0,2", "too many for one block"),
        ("[4097,64]", "[64]", "0", "too long for one block"),
    ],
)
def test_descriptions(source: str, target: str, dims: str, expected: tuple[bool, tuple[int, ...]] | str) -> None:
    answer = judge_reduction(read_fusion(text(source, target, dims))[1].fused_computation.root)
    if isinstance(expected, str):
        assert isinstance(answer, Decision)
        assert expected in answer.reason or (expected == "fill no warp" and "fill" in answer.reason)
    else:
        assert isinstance(answer, ReductionDescription)
        assert (answer.is_row, answer.dims) == expected


def tiling(source: str, target: str, dims: str) -> ReductionTiling:
    analysis = fusion_analysis(text(source, target, dims))
    assert isinstance(analysis.description, ReductionDescription)
    return tile_reduction(analysis.description, analysis, 1)


@pytest.mark.parametrize(
    ("source", "target", "dims", "form", "grid", "threads", "symbols", "tile"),
    [
        # The worked example of XLA's emitters: 4 rows of 64 threads, pairs, 8 of them.
        ("[64,1000]", "[64]", "1", "row", 16, 256, (1, 8, 2), (4, 2)),
        ("[8,2048]", "[8]", "1", "row", 4, 256, (1, 8, 2), (2, 4)),
        ("[100,128]", "[100]", "1", "row", 13, 256, (1, 2, 2), None),
        ("[7,100,128]", "[100]", "0,2", "row", 13, 256, (7, 2, 2), None),
        ("[4,16384]", "[4]", "1", "row", 4, 1024, (1, 8, 2), (1, 32)),
        ("[100000,8]", "[100000]", "1", "multi-row", 1563, 256, (1, 2), None),
        ("[100,8]", "[100]", "1", "multi-row", 4, 256, (1, 1), None),
        ("[2048,64]", "[64]", "0", "column", 1, 1024, (64, 2), (32, 65)),
        ("[11,72,8]", "[11,8]", "1", "small-column", 11, 128, (3, 2), (32, 9)),
        ("[10240,72,32]", "[10240,32]", "1", "small-column", 10240, 128, (9, 2), (8, 33)),
        ("[100,256,2]", "[100,2]", "1", "small-column", 100, 64, (8,), (32, 3)),
    ],
)
def test_tilings(
    source: str,
    target: str,
    dims: str,
    form: str,
    grid: int,
    threads: int,
    symbols: tuple[int, ...],
    tile: tuple[int, ...] | None,
) -> None:
    made = tiling(source, target, dims)
    assert made.form == form
    assert (made.launch.grid, made.launch.block) == ((grid, 1, 1), (threads, 1, 1))
    assert made.symbols == symbols
    assert (made.tile and made.tile.dims) == tile


def test_inputs_in_different_orders_are_no_reduction() -> None:
    """All inputs are read at one place of memory after the other, the same for each."""
    body = (
        "pair { a = s32[] parameter(0) i = s32[] parameter(1) b = s32[] parameter(2) j = s32[] parameter(3) "
        "m = s32[] maximum(a, b) n = s32[] add(i, j) ROOT r = (s32[], s32[]) tuple(m, n) } "
        "f { p = s32[100,64]{0,1} parameter(0) q = s32[100,64]%s parameter(1) z = s32[] constant(0) "
        "ROOT r = (s32[64], s32[64]) reduce(p, q, z, z), dimensions={0}, to_apply=pair }"
    )
    same = judge_reduction(read_fusion(body % "{0,1}")[1].fused_computation.root)
    assert isinstance(same, ReductionDescription)
    other = judge_reduction(read_fusion(body % "{1,0}")[1].fused_computation.root)
    assert isinstance(other, Decision)
    assert "different orders" in other.reason


def test_short_rows_of_a_variadic_reduction_have_a_warp_each() -> None:
    analysis = fusion_analysis(
        "pair { a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3) "
        "s = f32[] add(a, b) k = s32[] add(i, j) ROOT t = (f32[], s32[]) tuple(s, k) } "
        "f { p = f32[200,8] parameter(0) z = f32[] constant(0) o = s32[] constant(0) n = s32[200,8] iota(), iota_dimension=1 "
        "ROOT r = (f32[200], s32[200]) reduce(p, n, z, o), dimensions={1}, to_apply=pair }"
    )
    assert isinstance(analysis.description, ReductionDescription)
    made = tile_reduction(analysis.description, analysis, 1)
    assert (made.form, made.launch.grid, made.launch.block) == ("row", (25, 1, 1), (256, 1, 1))


# Reductions of arrays that share `c` alone. XLA's groups.
_SHARING = "d = f32[64,64] add(p, c) e = f32[64,64] add(q, c) x = f32[64] reduce(d, z) Y = f32[64] reduce(e, z)"


@pytest.mark.parametrize(
    ("body", "groups"),
    [
        ("x = f32[64] reduce(p, z) Y = f32[64] reduce(q, z)", ((0,), (1,))),
        ("e = f32[64,64] add(p, q) x = f32[64] reduce(e, z) Y = f32[64] reduce(q, z)", ((0, 1),)),
        ("b = f32[64,64] broadcast(z), dimensions={} x = f32[64] reduce(b, z) Y = f32[64] reduce(b, z)", ((0,), (1,))),
        (f"v = f32[64] parameter(2) c = f32[64,64] broadcast(v), dimensions={{1}} {_SHARING}", ((0,), (1,))),
        (
            f"v = f32[8,8] parameter(2) w = f32[64] bitcast(v) c = f32[64,64] broadcast(w), dimensions={{1}} {_SHARING}",
            ((0,), (1,)),
        ),
        (f"v = f32[64] parameter(2) w = f32[64] negate(v) c = f32[64,64] broadcast(w), dimensions={{1}} {_SHARING}", ((0, 1),)),
    ],
)
def test_groups(body: str, groups: tuple[tuple[int, ...], ...]) -> None:
    body = body.replace(", z)", ", z), dimensions={1}, to_apply=add")
    _, fusion = read_fusion(
        ADD + "f { p = f32[64,64] parameter(0) q = f32[64,64] parameter(1) z = f32[] constant(0) "
        f"{body} ROOT t = (f32[64], f32[64]) tuple(x, Y) }}"
    )
    roots = fusion.fused_computation.root.operands
    assert group_roots(roots, [True, True]) == groups


def test_all_that_is_no_reduction_is_one_group() -> None:
    _, fusion = read_fusion(
        ADD
        + "f { p = f32[64] parameter(0) q = f32[64] parameter(1) z = f32[] constant(0) a = f32[64] abs(p) n = f32[64] negate(q) "
        "r = f32[] reduce(q, z), dimensions={0}, to_apply=add ROOT t = (f32[64], f32[], f32[64]) tuple(a, r, n) }"
    )
    roots = fusion.fused_computation.root.operands
    # `n` shares `q` with the reduction.
    assert group_roots(roots, [False, True, False]) == ((0, 1, 2),)
