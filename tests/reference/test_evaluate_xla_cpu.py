"""The evaluator against recorded results of real XLA:CPU (`scripts/record_xla_cpu.py` made them)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference_running import Array

import hlo_run
from hlo_run.hlo.shape import Shape
from hlo_run.reference.evaluate import evaluate
from hlo_run.reference.values import Value

FOLDER = Path(__file__).resolve().parent.parent / "data" / "xla_cpu"
MODULES = sorted(path.stem for path in FOLDER.glob("*.hlo"))

# Relative bounds per type; absolute ones are these times the largest expected magnitude. Everything else is exact.
BOUNDS = {"float64": 1e-9, "complex128": 1e-9, "float32": 2e-4, "complex64": 2e-4, "float16": 2e-2, "bfloat16": 6e-2}
FP8_BOUND = 0.3


@cache
def _recorded() -> dict[str, Array]:
    with np.load(FOLDER / "results.npz") as data:
        return {key: data[key] for key in data.files}


def _arrays(module: str, prefix: str) -> list[Array]:
    found: list[Array] = []
    while (key := f"{module}/{prefix}{len(found)}") in _recorded():
        array = _recorded()[key]
        name = _recorded().get(f"{key}.dtype")
        found.append(array if name is None else array.view(np.dtype(getattr(ml_dtypes, str(name)))))
    return found


def _build(shape: Shape, leaves: list[Array]) -> Value:
    if shape.is_tuple:
        return tuple(_build(element, leaves) for element in shape.tuple_shapes)
    return leaves.pop(0) if shape.is_array else ()


def _leaves(value: Value) -> list[Array]:
    return [leaf for element in value for leaf in _leaves(element)] if isinstance(value, tuple) else [value]


def _wrong(expected: Array, actual: Array) -> Array:
    name = expected.dtype.name
    if not name.startswith(("float", "bfloat", "complex")):
        return expected != actual
    bound = BOUNDS.get(name, FP8_BOUND)
    wide: Any = np.complex128 if name.startswith("complex") else np.float64
    want, got = expected.astype(wide), actual.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.abs(want[np.isfinite(want)])
        limit = bound * np.maximum(np.abs(want), finite.max() if finite.size else 0)
        both_nan = np.isnan(want) & np.isnan(got)
        return ~(both_nan | (want == got) | (np.abs(want - got) <= limit))


def test_there_are_recordings() -> None:
    assert len(MODULES) > 80


@pytest.mark.parametrize("name", MODULES)
def test_agrees_with_xla_cpu(name: str) -> None:
    path = FOLDER / f"{name}.hlo"
    module = hlo_run.parse(path.read_text(encoding="utf-8"), path.name)
    leaves = _arrays(name, "arg")
    arguments = [_build(parameter.shape, leaves) for parameter in module.entry.parameters]
    expected, actual = _arrays(name, "out"), _leaves(evaluate(module, arguments))
    assert expected
    for want, got in zip(expected, actual, strict=True):
        assert want.dtype == got.dtype
        assert want.shape == got.shape
        assert not _wrong(want, got).any()
