"""The tables of a mismatch on a terminal, also for unusual arrays."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.compare.findings import Findings
from hlo_run.reference.values import Array, Value
from hlo_run.terminal import mismatch_view

SPEC = ErrorSpec(1e-3, 1e-3)


def _render(findings: Findings, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, color_system=None).print(mismatch_view(findings))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _shape(array: Array, dtype: str) -> Shape:
    return Shape.array(dtype, array.shape)


def test_one_array() -> None:
    want = np.linspace(1, 2, 40, dtype=np.float32).reshape(4, 10)
    got = want.copy()
    got[2] *= 2
    text = _render(compare(want, got, _shape(want, "f32"), SPEC).examine(lambda: want.astype(np.float64)))
    lines = text.splitlines()
    assert lines[1] == "f32[4,10]: 10 of 40 elements differ (25 %)"
    assert lines[2].split() == ["index", "expected", "actual", "float64", "abs", "error", "rel", "error", "ulp"]
    assert lines[3].split() == ["{2,0}", "1.51282048", "3.02564096", "1.512820482", "1.51", "1", "8.39e+06"]
    assert "• all mismatches are at index 2 of dimension 0 (size 4), and every element there differs" in text
    assert "• actual values look scaled by 2" in text
    assert "• float64 is nearer to expected at 10, to actual at 0 of the mismatches" in text
    assert "• would pass with bounds abs 0 rel 1 or abs 2 rel 0" in text
    assert "rel, where abs is over its bound  10       10      10     10    10  10" in text
    assert "1 to inf              40     10 " + "█" * 40 in text


def test_several_arrays_have_an_overview() -> None:
    a, b = np.arange(6, dtype=np.float32), np.arange(5, dtype=np.int32)
    shape = Shape.make_tuple((_shape(a, "f32"), _shape(b, "s32"), _shape(b, "s32")))
    text = _render(compare((a, b, b), (a, b, b + 2), shape, SPEC).examine())
    lines = text.splitlines()
    assert lines[2].split() == ["✓", "{0}", "f32[6]", "0", "6", "0", "0", "0"]
    assert lines[4].split() == ["✗", "{2}", "s32[5]", "5", "5", "2"]
    assert "• array {2} differs, the other 2 agree" in text
    assert "array {2} s32[5]: 5 of 5 elements differ (100 %)" in text
    assert "• actual values are off by +2" not in text, "five elements prove nothing"


def test_many_arrays_are_counted() -> None:
    one = np.zeros(3, np.float32)
    values: tuple[Value, ...] = (one,) * 50
    wrong = tuple(one + (number % 8 == 0) for number in range(50))
    shape = Shape.make_tuple((Shape.array("f32", (3,)),) * 50)
    text = _render(compare(values, wrong, shape, SPEC).examine())
    assert text.count("✗") == 7
    assert "✓" not in text
    assert "43 more of 50 arrays" in text
    assert "3 more arrays differ; --report_json=FILE lists all of them" in text


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 200])
def test_every_type(dtype: str, width: int) -> None:
    kind = DTYPES[dtype]
    want: Any = np.zeros(9).astype(kind.numpy) if dtype != "f8e8m0fnu" else np.ones(9).astype(kind.numpy)
    got = want.copy()
    got[4:] = np.asarray([2, 1, 2, 1, 2] if kind.bits > 2 else [1] * 5).astype(kind.numpy)
    if dtype == "f8e8m0fnu":
        got[4:] = np.asarray([2, 4, 8, 4, 2]).astype(kind.numpy)
    found = compare(want, got, _shape(want, dtype), SPEC)
    text = _render(found.examine(lambda: want.astype(np.complex128 if kind.is_complex else np.float64)), width)
    assert "5 of 9 elements differ" in " ".join(text.split())


def test_results_without_arrays_in_common() -> None:
    shape = Shape.make_tuple((Shape.array("f32", ()),))
    assert "want tuple element count" in _render(compare((np.asarray(1, np.float32),), (), shape, SPEC).examine())
    other = compare(np.zeros(2, np.float32), np.zeros(3, np.float32), Shape.array("f32", (2,)), SPEC)
    assert "mismatch in dimension #0" in _render(other.examine())
