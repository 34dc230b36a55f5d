"""The number of BLAS threads while the reference runs, and products in our own threads."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from hlo_run.reference import values
from hlo_run.reference.numerics import blas
from hlo_run.reference.numerics.ordered_products import ordered_matmul, ordered_products


def _counts() -> list[int]:
    functions = blas._thread_functions()  # pyright: ignore[reportPrivateUsage] - what there is to look at
    if functions is None:
        pytest.skip("numpy's BLAS is not OpenBLAS")
    return [functions[0]()]


def test_blas_has_one_thread_inside_and_its_own_number_afterwards() -> None:
    before = _counts()
    with blas.one_blas_thread():
        assert _counts() == [1]
        with blas.one_blas_thread():
            assert _counts() == [1]
        assert _counts() == [1]
    assert _counts() == before


def test_runs_that_overlap_leave_the_number_as_it_was() -> None:
    before = _counts()
    first, second = blas.one_blas_thread(), blas.one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _counts() == [1]
    second.__exit__(None, None, None)
    assert _counts() == before


@pytest.mark.parametrize(
    ("left", "right"),
    [((400, 300), (300, 90)), ((90, 300), (300, 400)), ((6, 130, 120), (6, 120, 130)), ((3, 300, 100), (100, 300))],
)
def test_a_large_product_in_parts_is_the_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    # Sums of small integers have no roundings.
    a, b = rng.integers(-4, 5, left).astype(np.float32), rng.integers(-4, 5, right).astype(np.float32)
    assert np.array_equal(blas.matmul(a, b), np.matmul(a, b))


def test_threads_start_no_threads() -> None:
    """Nested `in_threads` calls run in the same thread, and every number is processed once."""
    met: list[tuple[int, int, int]] = []

    def inner(outer: int) -> None:
        values.in_threads(lambda begin, end: met.append((outer, begin, end)), 5)

    started = threading.active_count()
    values.in_threads(lambda begin, end: [inner(number) for number in range(begin, end)][-1], 4)
    seen = sorted((outer, number) for outer, begin, end in met for number in range(begin, end))
    assert seen == [(outer, number) for outer in range(4) for number in range(5)]
    assert threading.active_count() == started


@pytest.mark.parametrize(
    ("left", "right"), [((5, 70), (70, 3)), ((20, 30), (30, 20)), ((4, 3, 90), (4, 90, 2)), ((2, 0), (0, 3))]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_an_ordered_product_is_the_product(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.normal(size=dims).astype(dtype) for dims in (left, right))
    with ordered_products():
        found = blas.matmul(a, b)
    assert found.dtype == a.dtype
    np.testing.assert_allclose(found, np.matmul(a, b), rtol=1e-4 if dtype in ("float32", "complex64") else 1e-12, atol=1e-5)


def test_the_sums_of_an_ordered_product_of_f32_are_those_of_f64() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(3, 500)).astype(np.float32), rng.normal(size=(500, 2)).astype(np.float32)
    exact = [[math.fsum((a[i].astype(float) * b[:, j].astype(float)).tolist()) for j in range(2)] for i in range(3)]
    assert ordered_matmul(a, b).tolist() == np.array(exact).astype(np.float32).tolist()
