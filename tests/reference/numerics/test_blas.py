"""The number of BLAS threads while the reference runs, and products in our own threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hlo_run.reference import values
from hlo_run.reference.numerics import blas


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
