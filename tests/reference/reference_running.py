"""Helpers of the reference's tests: evaluate text, arrays from lists, equality with NaN and the sign of zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import hlo_run
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.values import Value

Array: TypeAlias = NDArray[Any]

INF, NAN = float("inf"), float("nan")


def array(dtype: str, values: Any) -> Array:
    """Return values as an HLO type; ints that do not fit wrap."""
    kind = DTYPES[dtype].kind
    if kind in ("signed", "unsigned"):
        return (
            np.asarray([[int(v) & (2**64 - 1)] for v in np.ravel(np.asarray(values, dtype=object))], np.uint64)
            .astype(DTYPES[dtype].numpy)
            .reshape(np.shape(values))
        )
    wide = np.asarray(values, np.complex128 if kind == "complex" else np.float64)
    return wide.astype(DTYPES[dtype].numpy)


def run(text: str, *arguments: Value) -> Any:
    """Return the value of the module's root; without `HloModule` the text is the body of an entry computation."""
    if "HloModule" not in text:
        text = "HloModule m\nENTRY e {\n" + text + "\n}"
    return evaluate(hlo_run.parse(text), arguments)


def apply(opcode: str, dtype: str, operands: Sequence[Array], result: str = "", attributes: str = "") -> Array:
    """Return one op on whole arrays of one shape and type; `result` is the result's type if it is another."""
    dims = ",".join(map(str, operands[0].shape))
    lines = [f"  p{n} = {dtype}[{dims}] parameter({n})" for n in range(len(operands))]
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    lines.append(f"  ROOT r = {result or dtype}[{dims}] {opcode}({names}){attributes}")
    return run("\n".join(lines), *operands)


def assert_same(actual: Array, expected: Array) -> None:
    """Assert equal types, shapes and elements; all NaNs are equal, +0 and -0 are not."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind == "c":
        part = np.float32 if actual.dtype == np.complex64 else np.float64
        actual, expected = actual.view(part), expected.view(part)
    if actual.dtype.kind in "iub" or actual.dtype.name.startswith(("int", "uint")):
        assert np.array_equal(actual.astype(object), expected.astype(object)), f"{actual} is not {expected}"
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    alike = (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
    assert alike.all(), f"{actual} is not {expected}"
