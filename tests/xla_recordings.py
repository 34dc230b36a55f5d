"""Modules with arguments and results of real XLA:CPU, every op rounded (`scripts/record_xla_cpu.py` made them)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import hlo_run
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.values import Value

FOLDER = Path(__file__).resolve().parent / "data" / "xla_cpu"
MODULES = sorted(path.stem for path in FOLDER.glob("*.hlo"))


@cache
def _recorded() -> dict[str, NDArray[Any]]:
    with np.load(FOLDER / "results.npz") as data:
        return {key: data[key] for key in data.files}


def _arrays(module: str, prefix: str) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = []
    while (key := f"{module}/{prefix}{len(found)}") in _recorded():
        array = _recorded()[key]
        name = _recorded().get(f"{key}.dtype")
        found.append(array if name is None else array.view(np.dtype(getattr(ml_dtypes, str(name)))))
    return found


def _build(shape: Shape, leaves: list[NDArray[Any]]) -> Value:
    if shape.is_tuple:
        return tuple(_build(element, leaves) for element in shape.tuple_shapes)
    return leaves.pop(0) if shape.is_array else ()


def load(name: str) -> tuple[HloModule, list[Value], Value]:
    """Return (module, arguments, XLA's result) of a recording."""
    path = FOLDER / f"{name}.hlo"
    module = hlo_run.parse(path.read_text(encoding="utf-8"), path.name)
    leaves = _arrays(name, "arg")
    arguments = [_build(parameter.shape, leaves) for parameter in module.entry.parameters]
    assert not leaves, "every recorded argument has its place"
    return module, arguments, _build(module.entry.root.shape, _arrays(name, "out"))
