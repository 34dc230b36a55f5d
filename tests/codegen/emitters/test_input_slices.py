"""Kernels of several slices run on Host: overlapping slices, several arrays, layouts, types; fusions that just do not fit."""

from __future__ import annotations

import pytest
from emitting import emit, fusion_analysis, run_on_host


def test_overlapping_pieces_of_several_arrays() -> None:
    emitted = run_on_host(
        """f {
          p = f32[10,300] parameter(0)
          q = bf16[10,300] parameter(1)
          e = f32[10,300] exponential(p)
          c = f32[10,300] convert(q)
          a = f32[10,300] add(e, c)
          s = f32[4,290] slice(e), slice={[2:6], [10:300]}
          t = f32[10,1] slice(a), slice={[0:10], [299:300]}
          u = f32[3,7] slice(e), slice={[5:8], [0:7]}
          v = bf16[10,300] slice(q), slice={[0:10], [0:300]}
          ROOT x = (f32[4,290], f32[10,1], f32[3,7], bf16[10,300], f32[3,7]) tuple(s, t, u, v, u)
        }"""
    )
    assert emitted.kernel.kind == "input slices"
    assert emitted.kernel.launch.blocks == 24  # 3000 elements, 128 threads
    assert emitted.text.count("math.exp") == 1


@pytest.mark.parametrize("dtype", ["f64", "s8", "pred"])
def test_types_and_layouts(dtype: str) -> None:
    emitted = run_on_host(
        f"f {{ p = {dtype}[20,30]{{0,1}} parameter(0) s = {dtype}[5,30]{{0,1}} slice(p), slice={{[3:8], [0:30]}} "
        f"t = {dtype}[20,11] slice(p), slice={{[0:20], [19:30]}} ROOT x = ({dtype}[5,30]{{0,1}}, {dtype}[20,11]) tuple(s, t) }}"
    )
    assert emitted.kernel.kind == "input slices"


def test_an_empty_piece() -> None:
    text = "f { p = f32[20] parameter(0) s = f32[0] slice(p), slice={[4:4]} t = f32[9] slice(p), slice={[2:11]} ROOT x = "
    assert run_on_host(text + "(f32[0], f32[9]) tuple(s, t) }").kernel.kind == "input slices"


@pytest.mark.parametrize(
    ("roots", "reason"),
    [
        ("s = f32[10] slice(p), slice={[0:20:2]} t = f32[10] slice(p), slice={[4:14]}", "skips elements"),
        ("s = f32[10] slice(q), slice={[0:10]} t = f32[10] slice(p), slice={[4:14]}", "differently shaped"),
        ("u = f32[10] slice(q), slice={[0:10]} s = f32[10] abs(u) t = f32[10] slice(p), slice={[4:14]}", "s is not a slice"),
    ],
)
def test_what_the_loop_emitter_takes(roots: str, reason: str) -> None:
    text = f"f {{ p = f32[20] parameter(0) q = f32[30] parameter(1) {roots} ROOT x = (f32[10], f32[10]) tuple(s, t) }}"
    assert emit(text).kernel.kind == "loop"
    assert reason in str(fusion_analysis(text).decision("input slices"))
