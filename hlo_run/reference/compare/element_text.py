"""Single elements as text: with as many digits as tell a number from its neighbours."""

from __future__ import annotations

import math

import numpy as np

from hlo_run.hlo.values.dtype import DTYPES, DType

_COMPONENTS = {"c64": "f32", "c128": "f64"}


def element_text(value: object, dtype: DType) -> str:
    """Return one element, `true`, `-7`, `0.1` or `(0.1, 2)`."""
    if dtype.kind == "pred":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(np.asarray(value).astype(np.uint64 if dtype.is_unsigned else np.int64)))
    return _float_text(value, dtype, _digits(dtype), 0)


def column_text(value: object, dtype: DType) -> str:
    """Return a float (or a complex number) in a column wide enough for every value of its type."""
    digits = _digits(dtype)
    return _float_text(value, dtype, digits, digits + 7)


def precise_text(value: object, dtype: DType, digits: int = 12) -> str:
    """Return the float64 value of an element of type `dtype`: all its digits are seldom worth reading, 12 are."""
    return _float_text(value, dtype, digits, 0)


def _float_text(value: object, dtype: DType, digits: int, width: int) -> str:
    if dtype.is_complex:
        number: complex = np.asarray(value).astype(np.complex128).item()
        return f"({number.real:{width or ''}.{digits}g}, {number.imag:{width or ''}.{digits}g})"
    return f"{float(np.asarray(value).astype(np.float64)):{width or ''}.{digits}g}"


def _digits(dtype: DType) -> int:
    """Decimal digits that are enough to tell any two numbers of the type apart (C++'s max_digits10)."""
    name = _COMPONENTS.get(dtype.name, dtype.name)
    return math.ceil(1 + (DTYPES[name].float_format.mantissa_bits + 1) * math.log10(2))
