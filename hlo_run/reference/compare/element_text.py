"""Print single elements, with enough digits to tell a number from its neighbours."""

from __future__ import annotations

import math

import numpy as np

from hlo_run.hlo.values.dtype import DTYPES, DType

_COMPONENTS = {"c64": "f32", "c128": "f64"}


def element_text(value: object, dtype: DType) -> str:
    """Return the text of one element: `true`, `-7`, `0.1` or `(0.1, 2)`."""
    if dtype.kind == "pred":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(np.asarray(value).astype(np.uint64 if dtype.is_unsigned else np.int64)))
    return _float_text(value, dtype, _digits(dtype), 0)


def column_text(value: object, dtype: DType) -> str:
    """Return the text of a float or complex number, padded to the width of the longest value of its type."""
    digits = _digits(dtype)
    return _float_text(value, dtype, digits, digits + 7)


def precise_text(value: object, dtype: DType, digits: int = 12) -> str:
    """Return the text of the float64 value of an element of type `dtype`, with 12 digits rather than all 17."""
    return _float_text(value, dtype, digits, 0)


def _float_text(value: object, dtype: DType, digits: int, width: int) -> str:
    if dtype.is_complex:
        number: complex = np.asarray(value).astype(np.complex128).item()
        return f"({number.real:{width or ''}.{digits}g}, {number.imag:{width or ''}.{digits}g})"
    return f"{float(np.asarray(value).astype(np.float64)):{width or ''}.{digits}g}"


def _digits(dtype: DType) -> int:
    """Return the number of decimal digits that tell any two numbers of the type apart (C++'s max_digits10)."""
    name = _COMPONENTS.get(dtype.name, dtype.name)
    return math.ceil(1 + (DTYPES[name].float_format.mantissa_bits + 1) * math.log10(2))
