"""Scatter kernels run on Host: combiners, types, windows, dropped updates, index types, variadic ones in order."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emitting import emit, ptx_of, run_on_host

from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.reference.values import Array


def scatter(
    operand: str, indices: str, updates: str, attrs: str, dtype: str = "f32", opcode: str = "add", index_type: str = "s32"
) -> str:
    combiner = "ROOT s = {0}[] {1}(a, b)" if opcode != "set" else "ROOT s = {0}[] copy(b)"
    return f"""c {{ a = {dtype}[] parameter(0) b = {dtype}[] parameter(1) {combiner.format(dtype, opcode)} }}
      f {{
        p = {dtype}{operand} parameter(0)
        i = {index_type}{indices} parameter(1)
        u = {dtype}{updates} parameter(2)
        ROOT x = {dtype}{operand} scatter(p, i, u), to_apply=c, {attrs}
      }}"""


ROWS = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
FLAT = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
SIMPLE = "update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1"
RNG = np.random.default_rng(11)


def values(dtype: str, *dims: int) -> Array:
    if dtype == "pred":
        return RNG.integers(0, 2, dims).astype(bool)
    drawn = RNG.standard_normal(dims) * 4 if DTYPES[dtype].is_float else RNG.integers(0, 100, dims)
    return drawn.astype(DTYPES[dtype].numpy)


def indices(high: int, *dims: int, dtype: str = "int32") -> Array:
    """Return random indices; some are out of bounds, at both ends."""
    return RNG.integers(-2, high + 3, dims).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "opcode"),
    [
        ("f32", "add"),
        ("f32", "maximum"),
        ("f64", "add"),
        ("f64", "multiply"),
        ("f16", "add"),
        ("bf16", "add"),
        ("bf16", "minimum"),
        ("s32", "add"),
        ("s32", "minimum"),
        ("u32", "maximum"),
        ("s64", "xor"),
        ("u64", "add"),
        ("s8", "add"),
        ("u16", "maximum"),
        ("pred", "or"),
        ("s32", "subtract"),
    ],
)
def test_combiners(dtype: str, opcode: str) -> None:
    text = scatter("[9,5]", "[40,1]", "[40,5]", ROWS, dtype, opcode)
    emitted = run_on_host(text, values(dtype, 9, 5), indices(9, 40, 1), values(dtype, 40, 5))
    assert emitted.kernel.kind == "scatter"
    assert "xla_gpu.atomic_rmw" in emitted.text


def test_the_maximum_of_f32_is_an_integer_s() -> None:
    text = scatter("[6]", "[64,1]", "[64]", FLAT, opcode="maximum")
    assert set(re.findall(r"(?:atom|red)\S*\.(m\w+\.\w32)", ptx_of(text))) == {"max.s32", "min.u32"}
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -1e-40, 1e-40, -3.5], np.float32)
    drawn = RNG.choice(special, 64)
    run_on_host(text, np.array([-np.inf, np.nan, -1, 0, 1e-40, 5], np.float32), indices(6, 64, 1), drawn)


def test_an_addition_is_one_instruction_and_rows_are_looked_up_once() -> None:
    text = scatter("[100,64]", "[3000,1]", "[3000,64]", ROWS)
    emitted = run_on_host(text, values("f32", 100, 64), indices(100, 3000, 1), values("f32", 3000, 64))
    assert emitted.text.count("scf.if") == 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8", "f64"])
def test_overwriting_with_unique_indices(dtype: str) -> None:
    text = scatter("[50,6]", "[20,2]", "[20,2,6]", SIMPLE + ", unique_indices=true", dtype, "set")
    places = np.stack([RNG.permutation(24)[:20] * 2, np.zeros(20, np.int64)], axis=1).astype(np.int32)
    emitted = run_on_host(text, values(dtype, 50, 6), places, values(dtype, 20, 2, 6))
    assert "xla_gpu.atomic_rmw" not in emitted.text


@pytest.mark.parametrize("index_type", ["s8", "u8", "s64", "u32"])
def test_index_types(index_type: str) -> None:
    text = scatter("[30,4]", "[25,2]", "[25,3,2]", SIMPLE, index_type=index_type)
    high = np.array([[28, 3]])
    drawn = RNG.integers(0 if index_type[0] == "u" else -2, high + 2, (25, 2)).astype(DTYPES[index_type].numpy)
    run_on_host(text, values("f32", 30, 4), drawn, values("f32", 25, 3, 2))


def test_window_dims_around_scatter_dims_and_layouts() -> None:
    text = (
        scatter(
            "[7,30,5]{0,2,1}",
            "[2,6,3]",
            "[7,6,3,5]{1,3,0,2}",
            "update_window_dims={0,3}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, index_vector_dim=3",
        )
        .replace("s32[2,6,3]", "s32[6,3]")
        .replace("index_vector_dim=3", "index_vector_dim=2")
    )
    run_on_host(text, values("f32", 7, 30, 5), indices(30, 6, 3), values("f32", 7, 6, 3, 5))


def test_batching_dims() -> None:
    text = scatter(
        "[4,9,5]",
        "[6,4,1]",
        "[6,4,5]",
        "update_window_dims={2}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, index_vector_dim=2, "
        "input_batching_dims={0}, scatter_indices_batching_dims={1}",
    )
    run_on_host(text, values("f32", 4, 9, 5), indices(9, 6, 4, 1), values("f32", 6, 4, 5))
    # Updates beyond the operand's batches are dropped.
    run_on_host(text.replace("[4,9,5]", "[3,9,5]"), values("f32", 3, 9, 5), indices(9, 6, 4, 1), values("f32", 6, 4, 5))


def test_scalars_scattered() -> None:
    run_on_host(scatter("[17]", "[300]", "[300]", FLAT), values("f32", 17), indices(17, 300), values("f32", 300))


def test_a_variadic_scatter_runs_in_order() -> None:
    text = f"""c {{
        a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)
        above = pred[] compare(b, a), direction=GT
        x = f32[] select(above, b, a)
        y = s32[] select(above, j, i)
        ROOT t = (f32[], s32[]) tuple(x, y)
      }}
      f {{
        p = f32[6,40] parameter(0)
        n = s32[6,40] parameter(1)
        i = s32[30,1] parameter(2)
        u = f32[30,40] parameter(3)
        v = s32[30,40] parameter(4)
        ROOT x = (f32[6,40], s32[6,40]) scatter(p, n, i, u, v), to_apply=c, {ROWS}
      }}"""
    arguments = values("f32", 6, 40), values("s32", 6, 40), indices(6, 30, 1), values("f32", 30, 40), values("s32", 30, 40)
    emitted = run_on_host(text, *arguments)
    assert emitted.kernel.launch.blocks == 1
    unique = emit(text.replace("index_vector_dim=1", "index_vector_dim=1, unique_indices=true"))
    assert unique.kernel.launch.blocks > 1


SORTED = SIMPLE.replace("{1,2}", "{1}").replace("{0,1}", "{0}") + ", indices_are_sorted=true"


@pytest.mark.parametrize(
    ("dtype", "opcode", "index_type", "slices", "window"),
    [
        ("f32", "add", "s32", 2008, 32),  # 4 per warp
        ("f32", "add", "s32", 2200, 70),  # 8 per warp, whose indices are read 4 at once; cut windows, 3 steps
        ("f32", "maximum", "s16", 1201, 1),
        ("bf16", "maximum", "s64", 540, 64),
        ("s32", "minimum", "u32", 1100, 3),
        ("u8", "xor", "s32", 540, 4),
        ("f32", "subtract", "s32", 1100, 8),  # not associative: updates are not combined
        ("f64", "add", "s32", 540, 256),
    ],
)
def test_sorted_indices(dtype: str, opcode: str, index_type: str, slices: int, window: int) -> None:
    operand = f"[{window + 37}]"
    text = scatter(operand, f"[{slices},1]", f"[{slices},{window}]", SORTED, dtype, opcode, index_type)
    drawn = np.sort(RNG.integers(0 if index_type[0] == "u" else -2, 40, (slices, 1)), axis=0).astype(DTYPES[index_type].numpy)
    arguments = values(dtype, window + 37), drawn, values(dtype, slices, window)
    emitted = run_on_host(text, *arguments)
    assert ("vector.insert" in emitted.text) == (opcode != "subtract")
    if slices == 2200:
        assert emitted.kernel.launch.grid == (2200 // 32 + 1, 1, 1)
        assert "j in [0, 3]" in emitted.text
        assert "ld.global.nc.v4.b32" in ptx_of(text)


def test_sorted_index_vectors_and_few_updates_per_place() -> None:
    indices_of = np.stack([np.sort(RNG.integers(-1, 60, 700)), RNG.integers(0, 5, 700)], axis=1).astype(np.int32)
    text = scatter("[60,8]", "[700,2]", "[700,1,4]", SIMPLE + ", indices_are_sorted=true")
    few = run_on_host(text, values("f32", 60, 8), indices_of, values("f32", 700, 1, 4))
    assert few.kernel.launch.grid == (88, 1, 1)  # two per warp
    # More windows than updates: each warp processes one update.
    text = scatter("[1000]", "[700,1]", "[700,40]", SORTED)
    one = run_on_host(text, values("f32", 1000), np.sort(indices(960, 700, 1), axis=0), values("f32", 700, 40))
    assert one.kernel.launch.grid == (175, 1, 1)
    assert "vector.insert" not in one.text


def test_updates_are_computed_in_the_kernel() -> None:
    text = f"""c {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }}
      f {{
        p = f32[9,5] parameter(0)
        i = s32[40,1] parameter(1)
        q = f32[5,40] parameter(2)
        t = f32[40,5] transpose(q), dimensions={{1,0}}
        e = f32[40,5] exponential(t)
        j = s32[40,1] abs(i)
        ROOT x = f32[9,5] scatter(p, j, e), to_apply=c, {ROWS}
      }}"""
    run_on_host(text, values("f32", 9, 5), indices(9, 40, 1), values("f32", 5, 40))
