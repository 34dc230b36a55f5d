"""Kernels of several slices run on Host: overlapping slices, several arrays, layouts, types, the blocks of the release."""

from __future__ import annotations

import pytest
from emitting import run_on_host


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
    assert emitted.kernel.kind == "loop"


def test_slices_of_one_size_have_the_blocks_of_a_slice() -> None:
    """XLA of jaxlib 0.12.0.1 covers the results with blocks, not the arrays that are sliced."""
    emitted = run_on_host(
        """f {
          p = f32[64,100] parameter(0)
          e = f32[64,100] exponential(p)
          s = f32[10,100] slice(e), slice={[0:10], [0:100]}
          t = f32[50,20] slice(e), slice={[0:50], [0:20]}
          ROOT x = (f32[10,100], f32[50,20]) tuple(s, t)
        }"""
    )
    assert emitted.kernel.launch.blocks == 8
    assert emitted.text.count("xla_gpu.loop ") == 1


@pytest.mark.parametrize("dtype", ["f64", "s8", "pred"])
def test_types_and_layouts(dtype: str) -> None:
    emitted = run_on_host(
        f"f {{ p = {dtype}[20,30]{{0,1}} parameter(0) s = {dtype}[5,30]{{0,1}} slice(p), slice={{[3:8], [0:30]}} "
        f"t = {dtype}[20,11] slice(p), slice={{[0:20], [19:30]}} ROOT x = ({dtype}[5,30]{{0,1}}, {dtype}[20,11]) tuple(s, t) }}"
    )
    assert emitted.kernel.kind == "loop"


def test_an_empty_piece() -> None:
    text = "f { p = f32[20] parameter(0) s = f32[0] slice(p), slice={[4:4]} t = f32[9] slice(p), slice={[2:11]} ROOT x = "
    assert run_on_host(text + "(f32[0], f32[9]) tuple(s, t) }").kernel.kind == "loop"
