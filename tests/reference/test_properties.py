"""The reference against numpy and scipy on random ops: transforms, convolutions, windows, sorts, scatters, products."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_running import Array, apply, run

# scipy has no type stubs.
fft: Any = importlib.import_module("scipy.fft")
special: Any = importlib.import_module("scipy.special")

SEEDS = st.integers(0, 2**31)
SIZES = st.integers(1, 7)


def few(examples: int) -> Any:
    """Return settings for this number of examples, which are the same in every run."""
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


def dims_text(dims: tuple[int, ...]) -> str:
    return ",".join(map(str, dims))


def close(actual: Array, expected: Array, relative: float = 1e-10) -> None:
    """Assert that all elements are near each other, relative to the largest, with NaNs at the same indices."""
    assert actual.shape == expected.shape
    sizes = np.abs(expected)
    scale = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=relative, atol=relative * scale)


TRANSFORMS: dict[str, Any] = {
    "FFT": fft.fftn,
    "IFFT": fft.ifftn,
    "RFFT": fft.rfftn,
    "IRFFT": fft.irfftn,
}


@few(40)
@given(
    kind=st.sampled_from(sorted(TRANSFORMS)), lengths=st.lists(SIZES, min_size=1, max_size=3), outer=st.integers(0, 3), seed=SEEDS
)
def test_fft_is_scipys(kind: str, lengths: list[int], outer: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = (outer, *lengths)
    half = (*whole[:-1], lengths[-1] // 2 + 1)
    before, after = (half if kind == "IRFFT" else whole), (half if kind == "RFFT" else whole)
    array: Array = rng.standard_normal(before)
    if kind != "RFFT":
        array = array + 1j * rng.standard_normal(before)
    types = {"RFFT": ("f64", "c128"), "IRFFT": ("c128", "f64")}.get(kind, ("c128", "c128"))
    line = f"ROOT r = {types[1]}[{dims_text(after)}] fft(p), fft_type={kind}, fft_length={{{dims_text(tuple(lengths))}}}"
    actual = run(f"p = {types[0]}[{dims_text(before)}] parameter(0)\n{line}", array)
    axes = range(1, len(whole))
    expected = TRANSFORMS[kind](array, lengths, axes) if outer else np.zeros(after, actual.dtype)
    close(actual, expected)


def test_inverse_fft_undoes_fft() -> None:
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.complex64)
    ends = "fft_length={4,6}"
    text = (
        f"p = c64[4,6] parameter(0)\nf = c64[4,6] fft(p), fft_type=FFT, {ends}\nROOT r = c64[4,6] fft(f), fft_type=IFFT, {ends}"
    )
    close(run(text, x), x, 1e-6)


def slow_convolution(x: Array, kernel: Array, strides: list[int], low: list[int], gaps: list[int], groups: int) -> Array:
    """Correlate [batch, rows, columns, in] with [rows, columns, in / groups, out], plane by plane."""
    planes: list[Array] = []
    for out in range(kernel.shape[-1]):
        group = out // (kernel.shape[-1] // groups)
        total = 0
        for feature in range(kernel.shape[-2]):
            window = np.zeros([(size - 1) * gap + 1 for size, gap in zip(kernel.shape[:2], gaps, strict=True)])
            window[:: gaps[0], :: gaps[1]] = kernel[:, :, feature, out]
            source = np.pad(x[..., group * kernel.shape[-2] + feature], [(0, 0), *((pad, pad) for pad in low)])
            places = np.lib.stride_tricks.sliding_window_view(source, window.shape, (1, 2))
            total = total + np.sum(places * window, axis=(3, 4))
        planes.append(np.asarray(total)[:, :: strides[0], :: strides[1]])
    return np.stack(planes, axis=-1)


PAIR = st.lists(st.integers(1, 3), min_size=2, max_size=2)


@few(30)
@given(strides=PAIR, pads=PAIR, gaps=PAIR, kernel=PAIR, groups=st.integers(1, 3), inner=st.integers(1, 2), seed=SEEDS)
def test_convolution_is_correlation(
    strides: list[int], pads: list[int], gaps: list[int], kernel: list[int], groups: int, inner: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 8, 9, inner * groups))
    weights = rng.standard_normal((*kernel, inner, 2 * groups))
    expected = slow_convolution(x, weights, strides, pads, gaps, groups)
    window = f"size={kernel[0]}x{kernel[1]} stride={strides[0]}x{strides[1]} rhs_dilate={gaps[0]}x{gaps[1]}"
    window += f" pad={pads[0]}_{pads[0]}x{pads[1]}_{pads[1]}"
    tail = f"window={{{window}}}, dim_labels=b01f_01io->b01f, feature_group_count={groups}"
    text = f"p = f64[{dims_text(x.shape)}] parameter(0)\nk = f64[{dims_text(weights.shape)}] parameter(1)\n"
    close(run(f"{text}ROOT r = f64[{dims_text(expected.shape)}] convolution(p, k), {tail}", x, weights), expected)


@few(15)
@given(groups=st.integers(1, 3), seed=SEEDS)
def test_groups_of_the_batch_are_convolutions_of_their_own(groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weights = rng.standard_normal((2 * groups, 6, 5, 3)), rng.standard_normal((2, 3, 3, 2 * groups))
    tail = f"window={{size=2x3}}, dim_labels=b01f_01io->b01f, batch_group_count={groups}"
    text = f"p = f64[{dims_text(x.shape)}] parameter(0)\nk = f64[{dims_text(weights.shape)}] parameter(1)\n"
    actual = run(f"{text}ROOT r = f64[2,5,3,{2 * groups}] convolution(p, k), {tail}", x, weights)
    parts = [
        slow_convolution(x[2 * g : 2 * g + 2], weights[..., 2 * g : 2 * g + 2], [1, 1], [0, 0], [1, 1], 1) for g in range(groups)
    ]
    close(actual, np.concatenate(parts, axis=-1))


ADDER = "f { x = f64[] parameter(0)\n y = f64[] parameter(1)\n ROOT z = f64[] add(x, y) }\n"
LARGER = ADDER.replace(" add", " maximum")


@few(40)
@given(
    size=st.integers(1, 20),
    length=st.integers(1, 24),
    low=st.integers(-2, 9),
    stride=st.integers(1, 4),
    gap=st.integers(1, 3),
    seed=SEEDS,
)
def test_windows_of_any_length_reduce_their_elements(size: int, length: int, low: int, stride: int, gap: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((2, length))
    high = max(0, (size - 1) * gap + 1 - length - low)
    padded = np.concatenate([np.full((2, max(low, 0)), np.nan), x[:, max(-low, 0) :], np.full((2, high), np.nan)], axis=1)
    reach = (size - 1) * gap + 1
    starts = range(0, padded.shape[1] - reach + 1, stride)
    places = [padded[:, start : start + reach : gap] for start in starts]
    # Padding is not part of a window's elements.
    sums, largest = (
        [np.nansum(place, axis=1) for place in places],
        [np.fmax.reduce(place, 1, initial=-np.inf) for place in places],
    )
    for body, init, columns in ((ADDER, "0", sums), (LARGER, "-inf", largest)):
        expected = np.stack(columns, axis=1) if columns else np.zeros((2, 0))
        window = f"{{size=1x{size} stride=1x{stride} pad=0_0x{low}_{high} rhs_dilate=1x{gap}}}"
        text = f"HloModule m\n{body}ENTRY e {{\np = f64[2,{length}] parameter(0)\nc = f64[] constant({init})\n"
        text += f"ROOT r = f64[{dims_text(expected.shape)}] reduce-window(p, c), window={window}, to_apply=f\n}}"
        close(run(text, x), expected)


COMPARATORS = {
    "up": "ROOT z = pred[] compare(a, b), direction=LT",
    "down": "ROOT z = pred[] compare(a, b), direction=GT",
    # The comparator is not a single comparison of keys, which needs the merge sort.
    "by size": "s = s32[] multiply(a, a)\nt = s32[] multiply(b, b)\nROOT z = pred[] compare(s, t), direction=LT",
}


@few(40)
@given(
    order=st.sampled_from(sorted(COMPARATORS)), rows=st.integers(0, 3), size=st.integers(0, 40), dim=st.integers(0, 1), seed=SEEDS
)
def test_sort_is_stable_and_takes_the_values_along(order: str, rows: int, size: int, dim: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(-6, 7, (rows, size)).astype(np.int32)
    keys = keys if dim == 1 else keys.T
    places = np.broadcast_to(
        np.arange(size, dtype=np.int32)[:, None] if dim == 0 else np.arange(size, dtype=np.int32), keys.shape
    )
    shape = f"s32[{dims_text(keys.shape)}]"
    scalars = "\n".join(f"{name} = s32[] parameter({number})" for number, name in enumerate("abcd"))
    body = f"f {{\n{scalars}\n{COMPARATORS[order]}\n}}\n"
    text = f"HloModule m\n{body}ENTRY e {{\np = {shape} parameter(0)\nq = {shape} parameter(1)\n"
    text += f"ROOT r = ({shape}, {shape}) sort(p, q), dimensions={{{dim}}}, is_stable=true, to_apply=f\n}}"
    weight = {"up": keys, "down": -keys, "by size": keys * keys}[order]
    expected = np.argsort(weight, axis=dim, kind="stable")
    sorted_keys, sorted_places = run(text, keys, places)
    np.testing.assert_array_equal(sorted_places, expected)
    np.testing.assert_array_equal(sorted_keys, np.take_along_axis(keys, expected, dim))


COMBINERS: dict[str, Any] = {
    "add(x, y)": np.add.at,
    "multiply(x, y)": np.multiply.at,
    "maximum(y, x)": np.maximum.at,
    "minimum(x, y)": np.minimum.at,
    # numpy has no such combiner: updates are applied in rounds of distinct targets.
    "subtract(x, y)": np.subtract.at,
}


@few(40)
@given(
    combiner=st.sampled_from(sorted(COMBINERS)),
    dtype=st.sampled_from(["f64", "s32", "s8"]),
    count=st.integers(0, 30),
    width=st.integers(1, 3),
    seed=SEEDS,
)
def test_scatter_combines_rows_in_order(combiner: str, dtype: str, count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = {"f64": np.float64, "s32": np.int32, "s8": np.int8}[dtype]
    operand, updates = ((rng.standard_normal((rows, 5)) * 50).astype(kind) for rows in (6, count))
    updates = updates[:, :width].copy()
    # Out of bounds in either dimension: the whole row is skipped.
    indices = np.stack([rng.integers(-1, 8, count), rng.integers(-1, 6 - width + 1, count)], axis=-1).astype(np.int32)
    body = f"f {{\nx = {dtype}[] parameter(0)\ny = {dtype}[] parameter(1)\nROOT z = {dtype}[] {combiner}\n}}\n"
    text = f"HloModule m\n{body}ENTRY e {{\np = {dtype}[6,5] parameter(0)\ni = s32[{count},2] parameter(1)\n"
    text += f"u = {dtype}[{count},{width}] parameter(2)\n"
    text += f"ROOT r = {dtype}[6,5] scatter(p, i, u), update_window_dims={{1}}, inserted_window_dims={{0}}, "
    text += "scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=f\n}"
    expected = operand.copy()
    for (row, column), update in zip(indices, updates, strict=True):
        if 0 <= row < 6 and 0 <= column <= 5 - width:
            COMBINERS[combiner](expected[row], np.arange(column, column + width), update)
    actual = run(text, operand, indices, updates)
    if dtype == "f64":
        close(actual, expected)
    else:
        np.testing.assert_array_equal(actual, expected)


def test_of_several_overwriting_updates_the_last_stays() -> None:
    indices = np.array([[2], [0], [2], [9], [0]], np.int32)
    updates = np.arange(10, dtype=np.float32).reshape(5, 2)
    text = """HloModule m
        f {
          x = f32[] parameter(0)
          ROOT y = f32[] parameter(1)
        }
        ENTRY e {
          p = f32[3,2] parameter(0)
          i = s32[5,1] parameter(1)
          u = f32[5,2] parameter(2)
          ROOT r = f32[3,2] scatter(p, i, u), update_window_dims={1}, inserted_window_dims={0},
            scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f
        }"""
    np.testing.assert_array_equal(run(text, np.full((3, 2), -1, np.float32), indices, updates), [[8, 9], [-1, -1], [4, 5]])


@few(30)
@given(rank=st.integers(1, 4), seed=SEEDS)
def test_gather_picks_clamped_windows(rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = tuple(int(size) for size in rng.integers(1, 5, rank))
    sizes = tuple(int(rng.integers(1, size + 1)) for size in dims)
    operand = rng.integers(-100, 100, dims).astype(np.int32)
    indices = rng.integers(-3, 7, (4, rank)).astype(np.int32)
    places = ",".join(str(d) for d in range(rank))
    offsets = ",".join(str(d + 1) for d in range(rank))
    text = f"p = s32[{dims_text(dims)}] parameter(0)\ni = s32[4,{rank}] parameter(1)\n"
    text += f"ROOT r = s32[4,{dims_text(sizes)}] gather(p, i), offset_dims={{{offsets}}}, collapsed_slice_dims={{}}, "
    text += f"start_index_map={{{places}}}, index_vector_dim=1, slice_sizes={{{dims_text(sizes)}}}"
    room = np.array(dims) - np.array(sizes)
    windows = [tuple(slice(s, s + n) for s, n in zip(np.clip(start, 0, room), sizes, strict=True)) for start in indices]
    np.testing.assert_array_equal(run(text, operand, indices), np.stack([operand[window] for window in windows]))


@few(30)
@given(
    batch=st.integers(1, 2),
    rows=SIZES,
    depth=st.integers(0, 7),
    columns=SIZES,
    dtype=st.sampled_from(["f64", "s32", "pred", "c128"]),
    seed=SEEDS,
)
def test_dot_sums_products(batch: int, rows: int, depth: int, columns: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds: dict[str, Any] = {"f64": np.float64, "s32": np.int32, "pred": np.bool_, "c128": np.complex128}
    left, right = (
        np.asarray(rng.standard_normal(dims) * 1e6).astype(kinds[dtype])
        for dims in ((depth, batch, rows), (batch, columns, depth))
    )
    if dtype == "pred":
        left, right = left & (rng.random(left.shape) < 0.5), right & (rng.random(right.shape) < 0.5)
    text = f"p = {dtype}[{depth},{batch},{rows}] parameter(0)\nq = {dtype}[{batch},{columns},{depth}] parameter(1)\n"
    names = "lhs_batch_dims={1}, rhs_batch_dims={0}, lhs_contracting_dims={0}, rhs_contracting_dims={2}"
    actual = run(f"{text}ROOT r = {dtype}[{batch},{rows},{columns}] dot(p, q), {names}", left, right)
    expected = (
        np.einsum("kbm,bnk->bmn", left.astype(object), right.astype(object))
        if dtype == "s32"
        else np.einsum("kbm,bnk->bmn", left, right)
    )
    if dtype == "s32":
        wrapped = np.array([(int(v) + 2**31) % 2**32 - 2**31 for v in np.ravel(expected)], np.int32).reshape(actual.shape)
        np.testing.assert_array_equal(actual, wrapped)
    else:
        close(actual, np.einsum("kbm,bnk->bmn", left, right))


@few(20)
@given(
    left=st.booleans(),
    lower=st.booleans(),
    unit=st.booleans(),
    form=st.sampled_from(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]),
    size=st.integers(1, 70),
    seed=SEEDS,
)
def test_triangular_solve_is_scipys(left: bool, lower: bool, unit: bool, form: str, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = (rng.standard_normal((size, size)) + 1j * rng.standard_normal((size, size))) / size + np.eye(size) * 3
    right = rng.standard_normal((size, 4)) + 1j * rng.standard_normal((size, 4))
    flags = f"left_side={left}, lower={lower}, unit_diagonal={unit}".lower()
    given_right = right if left else right.T.copy()
    shape = f"c128[{dims_text(given_right.shape)}]"
    text = f"p = c128[{size},{size}] parameter(0)\nq = {shape} parameter(1)\n"
    actual = run(f"{text}ROOT r = {shape} triangular-solve(p, q), {flags}, transpose_a={form}", matrix, given_right)
    triangle = np.tril(matrix) if lower else np.triu(matrix)
    if unit:
        np.fill_diagonal(triangle, 1)
    operator = {"NO_TRANSPOSE": triangle, "TRANSPOSE": triangle.T, "ADJOINT": triangle.conj().T}[form]
    close(operator @ actual if left else actual @ operator, given_right, 1e-9)


def test_erf_is_scipys() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-300, 0, 400), -np.logspace(-300, 0, 400)])
    np.testing.assert_allclose(apply("erf", "f64", [x]), special.erf(x), rtol=1e-14)


@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
def test_large_products_are_the_same_on_several_threads(size: int) -> None:
    rows = math.isqrt(size)
    rng = np.random.default_rng(8)
    a, b = rng.integers(-3, 4, (rows, rows)).astype(np.float32), rng.integers(-3, 4, (rows, rows)).astype(np.float32)
    text = f"p = f32[{rows},{rows}] parameter(0)\nq = f32[{rows},{rows}] parameter(1)\n"
    actual = run(f"{text}ROOT r = f32[{rows},{rows}] dot(p, q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}", a, b)
    # Sums of small integers are exact.
    np.testing.assert_array_equal(actual, a @ b)
