"""What a comparison sees: zeros, small numbers, NaNs, and arrays of pred."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.compare.sight import Sight, is_poor, sight

SPEC = ErrorSpec(1e-3, 1e-3)


def _sight(dtype: str, values: list[Any], fixed_bounds: bool = True) -> Sight:
    shape = Shape.array(dtype, (len(values),))
    array = np.array(values, shape.dtype.numpy)
    (leaf,) = compare(array, array, shape, SPEC).leaves
    return sight(leaf, SPEC, fixed_bounds)


@pytest.mark.parametrize(
    ("dtype", "values", "fixed", "seen"),
    [
        ("f32", [0, 1e-4, 1, np.nan, np.inf, -2], True, Sight(6, 1, 1, 2)),
        ("f32", [0, 1e-4, 1, np.nan, np.inf, -2], False, Sight(6, 1, 0, 2)),
        ("f32", [1e-9, 1], False, Sight(2, 0, 1, 0)),
        ("c64", [0, 1e-4j, 1 + 1j], True, Sight(3, 1, 1, 0)),
        ("bf16", [1e-4, 2e-4], False, Sight(2, 0, 0, 0)),
        ("s32", [0, 1, -1], True, Sight(3, 1, 0, 0)),
        ("pred", [False, True], True, Sight(2, 1, 0, 0)),
        ("pred", [True, True], True, Sight(2, 0, 0, 0, True)),
    ],
)
def test_counts(dtype: str, values: list[Any], fixed: bool, seen: Sight) -> None:
    assert _sight(dtype, values, fixed) == seen


@pytest.mark.parametrize(
    ("seen", "poor"),
    [
        (Sight(), False),
        (Sight(4, 4), True),
        (Sight(4, 3), False),
        (Sight(16, 0, 0, 2), False),
        (Sight(16, 0, 0, 3), True),
        (Sight(4, all_true=True), True),
    ],
)
def test_poor_sight(seen: Sight, poor: bool) -> None:
    assert is_poor(seen) is poor


def test_texts() -> None:
    assert str(Sight(5)) == "the comparison sees all 5 elements"
    text = str(Sight(8, 1, 2, 1))
    assert text == "the comparison sees 4 of 8 elements (50 %): 1 zero, 2 too small, 1 NaN or infinite"
