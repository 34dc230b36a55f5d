"""Opcodes whose indices are data: starts are clamped, by the signedness of their type."""

from __future__ import annotations

import numpy as np
import pytest
from emitting import emit, run

STARTS = [(0, 0), (2, 3), (-5, 1), (100, -1), (3, 4)]


@pytest.mark.parametrize("start", STARTS)
def test_dynamic_slice(start: tuple[int, int]) -> None:
    run(
        "f { p = f32[5,7] parameter(0) i = s32[] parameter(1) j = s32[] parameter(2) n = f32[5,7] negate(p) "
        "ROOT r = f32[2,3] dynamic-slice(n, i, j), dynamic_slice_sizes={2,3} }",
        np.arange(35, dtype=np.float32).reshape(5, 7),
        *(np.array(s, np.int32) for s in start),
    )


@pytest.mark.parametrize("start", [0, 3, 200, 255])
def test_unsigned_start_is_clamped_unsigned(start: int) -> None:
    emitted = run(
        "f { p = s32[9] parameter(0) i = u8[] parameter(1) ROOT r = s32[4] dynamic-slice(p, i), dynamic_slice_sizes={4} }",
        np.arange(9, dtype=np.int32),
        np.array(start, np.uint8),
    )
    assert "arith.minui" in emitted.text


@pytest.mark.parametrize("start", STARTS)
def test_dynamic_update_slice(start: tuple[int, int]) -> None:
    run(
        "f { p = f32[5,7] parameter(0) u = f32[2,3] parameter(1) i = s64[] parameter(2) j = s64[] parameter(3) "
        "n = f32[2,3] negate(u) d = f32[5,7] dynamic-update-slice(p, n, i, j) ROOT r = f32[5,7] add(d, d) }",
        np.arange(35, dtype=np.float32).reshape(5, 7),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        *(np.array(s, np.int64) for s in start),
    )


def test_update_of_everything_needs_no_check() -> None:
    emitted = run(
        "f { p = f32[4] parameter(0) u = f32[4] parameter(1) i = s32[] parameter(2) "
        "ROOT r = f32[4] dynamic-update-slice(p, u, i) }",
        np.ones(4, np.float32),
        np.arange(4, dtype=np.float32),
        np.array(3, np.int32),
    )
    assert "scf.if" not in emitted.text


def test_64_bit_starts_make_64_bit_indices() -> None:
    text = "f {{ p = f32[9] parameter(0) i = {0}[] parameter(1) ROOT r = f32[4] dynamic-slice(p, i), dynamic_slice_sizes={{4}} }}"
    assert "index = 64" in emit(text.format("s64")).text
    assert "index = 32" in emit(text.format("s32")).text


GATHERS = {
    "simple": (
        "f32[5,4]",
        "s32[3,2]",
        "f32[3,2,2] gather(n, i), offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, "
        "slice_sizes={2,2}",
    ),
    "collapsed": (
        "f32[5,4]",
        "s32[3,2]",
        "f32[3,2,4] gather(n, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, "
        "slice_sizes={1,4}",
    ),
    "vector first, other order": (
        "f32[5,4,6]",
        "s32[2,3]",
        "f32[2,3,3] gather(n, i), offset_dims={0,1}, collapsed_slice_dims={1}, start_index_map={2,0}, index_vector_dim=0, "
        "slice_sizes={2,1,3}",
    ),
    "batching": (
        "f32[3,5,4]",
        "s32[3,2,1]",
        "f32[3,2,4] gather(n, i), offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
        "start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1,4}",
    ),
    "batching, a shorter operand": (
        "f32[2,5,4]",
        "s32[3,2,2]",
        "f32[3,2,4] gather(n, i), offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1,0}, operand_batching_dims={0}, "
        "start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1,4}",
    ),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str) -> None:
    source, indices, root = GATHERS[name]
    random = np.random.default_rng(5)
    dims = [[int(d) for d in shape[4:-1].split(",")] for shape in (source, indices)]
    run(
        f"f {{ p = {source} parameter(0) i = {indices} parameter(1) n = {source} negate(p) ROOT r = {root} }}",
        random.normal(size=dims[0]).astype(np.float32),
        random.integers(-2, 7, dims[1]).astype(np.int32),
    )
