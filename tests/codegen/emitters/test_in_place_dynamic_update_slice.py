"""In-place dynamic-update-slices: starts out of bounds, several results, and updates that must not be in place."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import emit, read_fusion, run_on_host

from hlo_run.analysis.buffers.in_place import judge_in_place_updates
from hlo_run.analysis.tiling.fusion_roots_and_heroes import fusion_roots

KIND = "in-place dynamic-update-slice"


@pytest.mark.parametrize("start", [(0, 0), (3, 2), (-5, 100), (17, 1)])
@pytest.mark.parametrize("dtype", ["s32", "u8"])
def test_starts(start: tuple[int, int], dtype: str) -> None:
    text = f"""f {{
      p = f32[20,7] parameter(0)
      u = f32[4,3] parameter(1)
      i = {dtype}[] parameter(2)
      j = {dtype}[] parameter(3)
      e = f32[4,3] exponential(u)
      ROOT d = f32[20,7] dynamic-update-slice(p, e, i, j)
    }}"""
    rng = np.random.default_rng(3)
    starts = [np.asarray(abs(number) if dtype == "u8" else number, "int32" if dtype == "s32" else "uint8") for number in start]
    arrays = rng.standard_normal((20, 7)).astype("f4"), rng.standard_normal((4, 3)).astype("f4")
    emitted = run_on_host(text, *arrays, *starts)
    assert emitted.kernel.kind == KIND
    assert emitted.kernel.launch.threads_per_block == 12


def test_several_results_and_a_bitcast() -> None:
    emitted = run_on_host(
        """f {
          p = f32[20,6] parameter(0)
          q = f32[20,6] parameter(1)
          u = f32[4,3] parameter(2)
          i = s32[] parameter(3)
          z = s32[] constant(2)
          n = f32[4,3] negate(u)
          d = f32[20,6] dynamic-update-slice(p, u, i, z)
          g = f32[20,6] dynamic-update-slice(q, n, z, i)
          b = f32[120] bitcast(d)
          ROOT t = (f32[120], f32[20,6]) tuple(b, g)
        }"""
    )
    assert emitted.kernel.kind == KIND


def test_an_update_of_its_own_slice() -> None:
    emitted = run_on_host(
        """f {
          p = f32[20,6] parameter(0)
          i = s32[] parameter(1)
          z = s32[] constant(0)
          s = f32[1,6] dynamic-slice(p, i, z), dynamic_slice_sizes={1,6}
          e = f32[1,6] exponential(s)
          ROOT d = f32[20,6] dynamic-update-slice(p, e, i, z)
        }"""
    )
    assert emitted.kernel.kind == KIND


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "s = f32[4,3] slice(p), slice={[0:4],[0:3]} ROOT d = f32[20,6] dynamic-update-slice(p, s, i, i)",
            "s may read what d changes",
        ),
        (
            "s = f32[4,3] dynamic-slice(p, i, i), dynamic_slice_sizes={4,3} k = s32[] add(i, i) "
            "ROOT d = f32[20,6] dynamic-update-slice(p, s, i, k)",
            "s may read what d changes",
        ),
        ("e = f32[20,6] exponential(p) ROOT d = f32[20,6] dynamic-update-slice(e, u, i, i)", "not an operand of the fusion"),
        ("d = f32[20,6] dynamic-update-slice(p, u, i, i) ROOT n = f32[20,6] negate(d)", "root n is not a dynamic-update-slice"),
        (
            "d = f32[20,6] dynamic-update-slice(p, u, i, i) e = f32[20,6] dynamic-update-slice(p, u, i, i) "
            "ROOT t = (f32[20,6], f32[20,6]) tuple(d, e)",
            "may read what",
        ),
    ],
)
def test_what_is_not_in_place(body: str, reason: str) -> None:
    text = f"f {{ p = f32[20,6] parameter(0) u = f32[4,3] parameter(1) i = s32[] parameter(2) {body} }}"
    judged = judge_in_place_updates(fusion_roots(read_fusion(text)[1]))
    assert not judged
    assert reason in judged.reason
    assert emit(text).kernel.kind == "loop"
    run_on_host(text)
