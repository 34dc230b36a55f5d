"""Changes that a comparison sees: zeros, small numbers, NaNs, and arrays of pred."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.compare.detectability import Detectability, detectability, is_poor

SPEC = ErrorSpec(1e-3, 1e-3)


def _sight(dtype: str, values: list[Any], fixed_bounds: bool = True) -> Detectability:
    shape = Shape.array(dtype, (len(values),))
    array = np.array(values, shape.dtype.numpy)
    (leaf,) = compare(array, array, shape, SPEC).leaves
    return detectability(leaf, SPEC, fixed_bounds)


@pytest.mark.parametrize(
    ("dtype", "values", "fixed", "seen"),
    [
        ("f32", [0, 1e-4, 1, np.nan, np.inf, -2], True, Detectability(6, 1, 1, 2)),
        ("f32", [0, 1e-4, 1, np.nan, np.inf, -2], False, Detectability(6, 1, 0, 2)),
        ("f32", [1e-9, 1], False, Detectability(2, 0, 1, 0)),
        ("c64", [0, 1e-4j, 1 + 1j], True, Detectability(3, 1, 1, 0)),
        ("bf16", [1e-4, 2e-4], False, Detectability(2, 0, 0, 0)),
        ("s32", [0, 1, -1], True, Detectability(3, 1, 0, 0)),
        ("pred", [False, True], True, Detectability(2, 1, 0, 0)),
        ("pred", [True, True], True, Detectability(2, 0, 0, 0, True)),
    ],
)
def test_counts(dtype: str, values: list[Any], fixed: bool, seen: Detectability) -> None:
    assert _sight(dtype, values, fixed) == seen


@pytest.mark.parametrize(
    ("seen", "poor"),
    [
        (Detectability(), False),
        (Detectability(4, 4), True),
        (Detectability(4, 3), False),
        (Detectability(16, 0, 0, 2), False),
        (Detectability(16, 0, 0, 3), True),
        (Detectability(4, all_true=True), True),
    ],
)
def test_poor_sight(seen: Detectability, poor: bool) -> None:
    assert is_poor(seen) is poor


def test_texts() -> None:
    assert str(Detectability(5)) == "the comparison sees all 5 elements"
    text = str(Detectability(8, 1, 2, 1))
    assert text == "the comparison sees 4 of 8 elements (50 %): 1 zero, 2 too small, 1 NaN or infinite"
