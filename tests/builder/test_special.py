"""Calls of XLA's builder that are more than one instruction: broadcasts, plain products, lgamma, digamma, constants."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run import HloBuilder, HloRunError

# scipy has no type stubs.
special: Any = importlib.import_module("scipy.special")
RNG = np.random.default_rng(3)


def test_the_dense_layer_of_xlas_documentation() -> None:
    x, w, bias = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (5, 4), (4,)))
    b = HloBuilder("dense")
    dot = b.dot(b.parameter(0, x), b.parameter(1, w))
    biased = b.add(dot, b.parameter(2, bias), broadcast_dimensions=[1])
    module = b.build(b.maximum(biased, b.constant(0.0)))
    np.testing.assert_allclose(hlo_run.evaluate(module, x, w, bias), np.maximum(x @ w + bias, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("left", "right", "places"), [((4, 3), (4,), [0]), ((3,), (4, 3), [1]), ((4, 1), (4, 3), []), ((1, 3), (4, 1), [])]
)
def test_broadcast_dimensions(left: tuple[int, ...], right: tuple[int, ...], places: list[int]) -> None:
    one, two = RNG.standard_normal(left).astype(np.float32), RNG.standard_normal(right).astype(np.float32)
    b = HloBuilder("m")
    module = b.build(b.subtract(b.parameter(0, one), b.parameter(1, two), broadcast_dimensions=places))
    aligned = [array[:, None] if places == [0] and array.ndim == 1 else array for array in (one, two)]
    np.testing.assert_array_equal(hlo_run.evaluate(module, one, two), aligned[0] - aligned[1])


@pytest.mark.parametrize(
    ("left", "right", "places"), [((4, 3), (4,), []), ((4, 3), (4,), [2]), ((4, 3), (2,), [0]), ((4, 3), (3, 4), [1, 0])]
)
def test_broadcasts_that_do_not_fit(left: tuple[int, ...], right: tuple[int, ...], places: list[int]) -> None:
    b = HloBuilder("m")
    with pytest.raises(HloRunError):
        b.add(
            b.parameter(0, np.zeros(left, np.float32)), b.parameter(1, np.zeros(right, np.float32)), broadcast_dimensions=places
        )


@pytest.mark.parametrize(("name", "reference"), [("lgamma", special.gammaln), ("digamma", special.psi)])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-12), (np.float32, 1e-5), (ml_dtypes.bfloat16, 1e-2)])
def test_functions_of_the_gamma_function(name: str, reference: Any, dtype: Any, bound: float) -> None:
    places = [*np.linspace(-9.7, 20, 301), 1e-3, -1e-3, 0.5, 1, 2, -1, -2, 1e5, 1e30, np.inf, np.nan]
    x = np.asarray(places, dtype)
    b = HloBuilder("m")
    module = b.build(getattr(b, name)(b.parameter(0, x)))
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    np.testing.assert_allclose(np.asarray(hlo_run.evaluate(module, x), np.float64), want, rtol=bound, atol=bound)


def test_the_value_of_a_constant() -> None:
    b = HloBuilder("m")
    value = b.reduce(b.iota("s32[5]", 0) * 2, b.constant(0), [0], "add")
    assert hlo_run.compute_constant(value) == 20
    with pytest.raises(HloRunError, match="depends on the parameter 'x'"):
        hlo_run.compute_constant(b.parameter(0, "f32[]", name="x") + 1.0)
