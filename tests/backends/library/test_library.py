"""Library thunks by numpy: every form of products, convolutions, transforms, solves and sorts, against plain definitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlo_run.artifact import (
    ArraySpec,
    BufferSlice,
    CholeskyThunk,
    ConvolutionNumbers,
    ConvolutionThunk,
    DotNumbers,
    FftThunk,
    GemmThunk,
    ScanThunk,
    SelectKThunk,
    SortThunk,
    TriangularSolveThunk,
    WindowSpec,
)
from hlo_run.artifact.library_thunks import Activation
from hlo_run.backends.library import linalg
from hlo_run.backends.library.arrays import Bind, LibraryCall
from hlo_run.backends.library.blas import calm_blas, multiply
from hlo_run.backends.library.convolution import convolution_call
from hlo_run.backends.library.gemm import gemm_call
from hlo_run.backends.library.linalg import cholesky_call, fft_call, triangular_solve_call
from hlo_run.backends.library.scan import scan_call
from hlo_run.backends.library.sort import select_k_call, sort_call
from hlo_run.hlo.values.dtype import DTYPES

Array = NDArray[Any]
RNG = np.random.default_rng(5)
EPSILON = {"f16": 1e-3, "bf16": 8e-3, "f8e4m3fn": 0.13}


def spec(dtype: str, *dims: int) -> ArraySpec:
    return ArraySpec(dtype, dims, tuple(reversed(range(len(dims)))), BufferSlice(0, 0, 0))


def of(array: Array, dtype: str = "") -> ArraySpec:
    names = {record.numpy: name for name, record in DTYPES.items()}
    return spec(dtype or names[array.dtype], *array.shape)


def compute(call: LibraryCall, *arrays: Array) -> list[Array]:
    outputs: list[Array] = [np.empty(out.dims, DTYPES[out.dtype].numpy) for out in call.outputs]
    call.compute(arrays, outputs)
    if call.bind is not None:
        _check_bound(call.bind, arrays, outputs)
    return outputs


def _check_bound(bind: Bind, arrays: Sequence[Array], expected: Sequence[Array]) -> None:
    """Check that a bound call reads the arrays again at every call, and writes all results."""
    kept = [np.array(array) for array in arrays]
    results = [np.full_like(array, 77) for array in expected]
    again = bind(kept, results)
    for array in kept:
        array[...] = array[::-1] if array.ndim else array
    again()
    for mine, array in zip(kept, arrays, strict=True):
        mine[...] = array
    again()
    for found, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(found, want)


def normal(*dims: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(dims).astype(dtype)


def no_kernel(name: str, buffers: object) -> None:
    raise AssertionError(f"{name} is not needed for {buffers}")


# ---- products -------------------------------------------------------------------------------------------------------


def test_product_with_dimensions_anywhere() -> None:
    a, b = normal(5, 3, 4, 2), normal(4, 6, 2, 3, 5)
    numbers = DotNumbers((1, 3), (0, 2), (3, 2), (4, 0))
    call = gemm_call(GemmThunk("d", of(a), of(b), spec("f32", 3, 2, 6), numbers))
    np.testing.assert_allclose(compute(call, a, b)[0], np.einsum("kbcs,cnsbk->bsn", a, b), rtol=2e-5, atol=1e-5)


def test_product_into_an_array_of_another_layout() -> None:
    a, b = normal(4, 3), normal(3, 5)
    call = gemm_call(GemmThunk("d", of(a), of(b), spec("f32", 4, 5), DotNumbers((), (1,), (), (0,))))
    out = np.empty((5, 4), np.float32).T
    call.compute((a, b), (out,))
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "c64", "c128", "f8e4m3fn"])
def test_types_sum_in_a_type_that_is_wide_enough(dtype: str) -> None:
    kind = DTYPES[dtype].numpy
    a, b = normal(8, 70).astype(kind), normal(70, 9).astype(kind)
    if DTYPES[dtype].is_complex:
        a, b = (a + 1j * normal(8, 70)).astype(kind), (b - 1j * normal(70, 9)).astype(kind)
    call = gemm_call(GemmThunk("d", of(a), of(b), spec(dtype, 8, 9), DotNumbers((), (1,), (), (0,))))
    wide = np.complex128 if DTYPES[dtype].is_complex else np.float64
    expected = a.astype(wide) @ b.astype(wide)
    bound = {"f64": 1e-12, "c128": 1e-12, "c64": 1e-5}.get(dtype, EPSILON.get(dtype, 0.0))
    np.testing.assert_allclose(compute(call, a, b)[0].astype(wide), expected, rtol=bound, atol=10 * bound)


def test_integers_are_exact() -> None:
    a, b = RNG.integers(-128, 128, (4, 5000), np.int8), RNG.integers(-128, 128, (5000, 3), np.int8)
    call = gemm_call(GemmThunk("d", of(a), of(b), spec("s32", 4, 3), DotNumbers((), (1,), (), (0,))))
    np.testing.assert_array_equal(compute(call, a, b)[0], a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("epilogue", ["DEFAULT", "BIAS", "RELU", "GELU", "BIAS_RELU", "BIAS_GELU_AUX"])
def test_alpha_beta_and_epilogues(epilogue: str) -> None:
    a, b, c, bias = normal(4, 6), normal(6, 5), normal(4, 5), normal(5)
    takes_bias, has_auxiliary = "BIAS" in epilogue, epilogue.endswith("AUX")
    thunk = GemmThunk(
        "d",
        of(a),
        of(b),
        of(c),
        DotNumbers((), (1,), (), (0,)),
        alpha=(0.5, 0.0),
        beta=2.0,
        epilogue=epilogue,
        addend=of(c),
        bias=of(bias) if takes_bias else None,
        auxiliary=of(c) if has_auxiliary else None,
    )
    value = 0.5 * (a @ b) + 2 * c + (bias if takes_bias else 0)
    found = compute(gemm_call(thunk), a, b, c, *([bias] if takes_bias else []))
    expected = value
    if "RELU" in epilogue:
        expected = np.maximum(value, 0)
    if "GELU" in epilogue:
        expected = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    if has_auxiliary:
        np.testing.assert_allclose(found[1], value, rtol=1e-4, atol=1e-5)


def test_large_products_are_spread_and_right() -> None:
    a, b = normal(2, 301, 200), normal(2, 200, 257)
    out = np.empty((2, 301, 257), np.float32)
    with calm_blas(), calm_blas():
        multiply(a, b, out)
    np.testing.assert_allclose(out, np.einsum("bik,bkj->bij", a, b), rtol=1e-3, atol=1e-3)


# ---- convolutions ---------------------------------------------------------------------------------------------------


def by_definition(source: Array, weights: Array, window: tuple[WindowSpec, ...], groups: int, batch_groups: int) -> Array:
    """Sum over everything, one product at a time: [n, h, w, c] by [h, w, i, o]."""
    places = [
        ((s - 1) * d.base_dilation + 1 + d.pad_low + d.pad_high - (d.size - 1) * d.window_dilation - 1) // d.stride + 1
        for s, d in zip(source.shape[1:3], window, strict=True)
    ]
    images, outputs = source.shape[0] // batch_groups, weights.shape[-1]
    out = np.zeros((images, *places, outputs))
    for n, y, x, o in np.ndindex(*out.shape):
        group = o // (outputs // (groups * batch_groups))
        for ky, kx, i in np.ndindex(*weights.shape[:3]):
            place: list[int] = []
            for at, k, d, size in zip((y, x), (ky, kx), window, source.shape[1:3], strict=True):
                tap = d.size - 1 - k if d.is_reversed else k
                position, rest = divmod(at * d.stride + tap * d.window_dilation - d.pad_low, d.base_dilation)
                place.append(position if not rest and 0 <= position < size else -1)
            if -1 in place:
                continue
            image = n + (group * images if batch_groups > 1 else 0)
            channel = i + (group * weights.shape[2] if groups > 1 else 0)
            out[n, y, x, o] += source[image, place[0], place[1], channel] * weights[ky, kx, i, o]
    return out


NHWC = ConvolutionNumbers((0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2))
WINDOWS = {
    "plain": (WindowSpec(3), WindowSpec(2)),
    "strided": (WindowSpec(3, stride=2, pad_low=1, pad_high=2), WindowSpec(2, stride=3)),
    "dilated": (WindowSpec(2, window_dilation=3, pad_low=2), WindowSpec(3, window_dilation=2, pad_high=3)),
    "holes": (WindowSpec(3, base_dilation=2, pad_low=1), WindowSpec(2, base_dilation=3, stride=2, pad_low=2, pad_high=1)),
    "negative": (WindowSpec(2, pad_low=-2, pad_high=1), WindowSpec(3, pad_low=2, pad_high=-1, is_reversed=True)),
    "turned": (WindowSpec(3, stride=2, pad_low=1, is_reversed=True), WindowSpec(2, stride=3, window_dilation=2, pad_high=4)),
    "nothing": (WindowSpec(2, base_dilation=3, pad_low=-4), WindowSpec(1, pad_high=-3)),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(("groups", "batch_groups"), [(1, 1), (2, 1), (4, 1), (1, 2)])
def test_forward_convolution(name: str, groups: int, batch_groups: int) -> None:
    window = WINDOWS[name]
    source = normal(2, 6, 5, 4)
    weights = normal(window[0].size, window[1].size, 4 // groups, 4)
    expected = by_definition(source, weights, window, groups, batch_groups)
    out = spec("f32", *expected.shape)
    thunk = ConvolutionThunk("c", "forward", of(source), of(weights), out, window, NHWC, groups, batch_groups)
    np.testing.assert_allclose(compute(convolution_call(thunk), source, weights)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("s8", "s32")])
def test_depthwise_products_are_wider_than_their_factors(dtype: str, out: str) -> None:
    window, numpy = WINDOWS["plain"], DTYPES[dtype].numpy
    source = (20 * normal(1, 5, 4, 3)).astype(numpy)
    weights = (20 * normal(window[0].size, window[1].size, 1, 3)).astype(numpy)
    expected = by_definition(source.astype(np.float64), weights.astype(np.float64), window, 3, 1)
    thunk = ConvolutionThunk("c", "forward", of(source), of(weights), spec(out, *expected.shape), window, NHWC, 3, 1)
    np.testing.assert_array_equal(compute(convolution_call(thunk), source, weights)[0], expected.astype(DTYPES[out].numpy))


@pytest.mark.parametrize(("name", "groups"), list(itertools.product(["plain", "strided", "dilated", "turned"], [1, 2])))
def test_gradients_are_the_transposes_of_the_forward_convolution(name: str, groups: int) -> None:
    """<conv(x, w), g> = <x, backward-input(g, w)> = <w, backward-filter(x, g)>, the convolution being linear in both."""
    window = WINDOWS[name]
    source = normal(2, 6, 7, 4, dtype=np.float64)
    weights = normal(window[0].size, window[1].size, 4 // groups, 6, dtype=np.float64)
    dims = by_definition(source, weights, window, groups, 1).shape
    gradient = normal(*dims, dtype=np.float64)
    arrays = (of(source), of(weights), of(gradient))

    def run(direction: Any, one: Array, two: Array) -> Array:
        return compute(convolution_call(ConvolutionThunk("c", direction, *arrays, window, NHWC, groups)), one, two)[0]

    inner = float((run("forward", source, weights) * gradient).sum())
    assert float((run("backward-input", weights, gradient) * source).sum()) == pytest.approx(inner, rel=1e-10)
    assert float((run("backward-filter", source, gradient) * weights).sum()) == pytest.approx(inner, rel=1e-10)


def test_bias_side_input_and_activation() -> None:
    window = WINDOWS["plain"]
    source, weights, bias = normal(1, 4, 4, 2), normal(3, 2, 2, 3), normal(3)
    plain = by_definition(source, weights, window, 1, 1)
    side = normal(*plain.shape)
    extras: dict[str, Any] = {"scale": 0.5, "bias": of(bias), "side": of(side), "side_scale": 2.0}
    value = 0.5 * plain + 2 * side + bias
    results: dict[Activation, Any] = {"kRelu": np.maximum(value, 0), "kTanh": np.tanh(value), "kNone": value}
    for activation, expected in results.items():
        arrays = (of(source), of(weights), of(side))
        thunk = ConvolutionThunk("c", "forward", *arrays, window, NHWC, activation=activation, **extras)
        found = compute(convolution_call(thunk), source, weights, bias, side)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# ---- transforms, factors, solves ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dims", "lengths"), [("FFT", (3, 8), (8,)), ("IFFT", (2, 4, 6), (4, 6))])
def test_complex_transforms(kind: Any, dims: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    x = (normal(*dims) + 1j * normal(*dims)).astype(np.complex64)
    sign = -1 if kind == "FFT" else 1
    expected = x.astype(np.complex128)
    for axis, n in zip(range(-len(lengths), 0), lengths, strict=True):
        matrix = np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / (1 if kind == "FFT" else n)
        expected = np.moveaxis(np.tensordot(expected, matrix, (axis, 0)), -1, axis)
    found = compute(fft_call(FftThunk("f", kind, lengths, of(x), of(x))), x)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_real_transforms_undo_each_other() -> None:
    x = normal(2, 9)
    half = compute(fft_call(FftThunk("f", "RFFT", (9,), of(x), spec("c64", 2, 5))), x)[0]
    np.testing.assert_allclose(np.real(half[:, 0]), x.sum(1), rtol=1e-4)
    back = compute(fft_call(FftThunk("f", "IRFFT", (9,), of(half), of(x))), half)[0]
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-5)


def test_batches_of_transforms_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(7, 3, 8)
    call = fft_call(FftThunk("f", "RFFT", (8,), of(x), spec("c64", 7, 3, 5)))
    whole = compute(call, x)[0]
    monkeypatch.setattr(linalg, "_PIECE_BYTES", 300)
    np.testing.assert_array_equal(compute(call, x)[0], whole)


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(lower: bool) -> None:
    root = np.tril(normal(2, 5, 5)) + 4 * np.eye(5, dtype=np.float32)
    matrix = root @ root.swapaxes(-1, -2)
    matrix[1] = -matrix[1]  # has no factor
    found = compute(cholesky_call(CholeskyThunk("c", lower, of(matrix), of(matrix))), matrix)[0]
    np.testing.assert_allclose(found[0] if lower else found[0].T, root[0], rtol=1e-3, atol=1e-4)
    assert np.isnan(found[1][np.tril_indices(5) if lower else np.triu_indices(5)]).all()


@pytest.mark.parametrize(
    ("left", "lower", "unit", "transpose"),
    list(itertools.product([True, False], [True, False], [True, False], ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])),
)
def test_triangular_solve(left: bool, lower: bool, unit: bool, transpose: Any) -> None:
    size = 60  # more than one panel
    matrix = (0.1 * (normal(2, size, size) + 1j * normal(2, size, size))).astype(np.complex128)
    matrix += 3 * np.eye(size)
    right = normal(2, *((size, 3) if left else (3, size)), dtype=np.complex128)
    thunk = TriangularSolveThunk("t", of(matrix), of(right), of(right), left, lower, unit, transpose)
    x = compute(triangular_solve_call(thunk), matrix, right)[0]
    triangle = np.tril(matrix) if lower else np.triu(matrix)
    if unit:
        triangle = triangle - triangle * np.eye(size) + np.eye(size)
    turned = {"NO_TRANSPOSE": triangle, "TRANSPOSE": triangle.swapaxes(-1, -2), "ADJOINT": triangle.conj().swapaxes(-1, -2)}
    product = turned[transpose] @ x if left else x @ turned[transpose]
    np.testing.assert_allclose(product, right, rtol=1e-6, atol=1e-6)


# ---- sorts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "u8", "s64", "f8e4m3b11fnuz"])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(dtype: str, descending: bool) -> None:
    record = DTYPES[dtype]
    keys = (RNG.integers(0, 3, (4, 9)) if dtype == "u8" else normal(4, 9).round(0) + 0.0).astype(record.numpy)
    along = np.arange(36, dtype=np.int32).reshape(4, 9)
    thunk = SortThunk("s", (of(keys, dtype), of(along)), (of(keys, dtype), of(along)), descending)
    found_keys, found = compute(sort_call(thunk), keys, along)
    for row in range(4):
        values = [float(value) for value in keys[row]]
        expected = sorted(range(9), key=lambda place, v=values: -v[place] if descending else v[place])
        assert found[row].tolist() == [along[row, place] for place in expected], values
        assert [float(value) for value in found_keys[row]] == [values[place] for place in expected]


def test_floats_are_in_total_order() -> None:
    x = np.array([np.nan, 1, -0.0, 0.0, -np.inf, -np.nan, np.inf, -1], np.float32)
    (found,) = compute(sort_call(SortThunk("s", (of(x),), (of(x),), False)), x)
    expected = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("is_reverse", [False, True])
def test_scans_run_along_rows_of_memory(is_reverse: bool) -> None:
    x = np.arange(12, dtype=np.float16).reshape(4, 3)
    source = ArraySpec("f16", (4, 3), (0, 1), BufferSlice(0, 0, 0))  # its memory has 3 rows of 4
    (sums,) = compute(scan_call(ScanThunk("s", source, source, 1, 4, 3, is_reverse)), x)
    expected = np.cumsum(x[::-1], axis=0)[::-1] if is_reverse else np.cumsum(x, axis=0)
    np.testing.assert_array_equal(sums, expected)


def test_sums_of_integers_wrap() -> None:
    x = np.array([100, 100, 100], np.int8)
    (sums,) = compute(scan_call(ScanThunk("s", of(x), of(x), 1, 3, 1)), x)
    assert sums.tolist() == [100, -56, 44]


def test_top_k() -> None:
    x = np.array([[1, 3, 3, np.nan, -np.inf], [0.0, -0.0, 0, 5, 5]], np.float32)
    thunk = SelectKThunk("k", of(x), spec("f32", 2, 3), spec("s32", 2, 3))
    values, places = compute(select_k_call(thunk), x)
    assert places.tolist() == [[3, 1, 2], [3, 4, 0]]
    np.testing.assert_array_equal(values, np.array([[np.nan, 3, 3], [5, 5, 0]], np.float32))
