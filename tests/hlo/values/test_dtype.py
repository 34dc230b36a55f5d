"""The formats of floats are those of ml_dtypes and numpy, which know the numbers by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.literal import float_info

FLOATS = [dtype for dtype in DTYPES.values() if dtype.is_float]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_a_format_is_what_the_library_computes_with(dtype: DType) -> None:
    info, form = float_info(dtype), dtype.float_format
    assert (form.bits, form.mantissa_bits) == (dtype.bits, info.nmant)
    assert form.max_exponent == np.frexp(float(info.max))[1]
    assert _bits(dtype, info.max) == form.largest or form.special == "exponent"
    if form.special != "exponent":
        assert float(info.smallest_subnormal) == form.step
        assert _number(dtype, 1 << form.mantissa_bits) == 2.0 ** (1 - form.bias)
    if form.special == "ieee":
        assert _number(dtype, form.infinity) == np.inf
    if form.special in ("ieee", "fn"):
        assert np.isnan(_number(dtype, form.nan))
    if form.special == "fnuz":
        assert np.isnan(_number(dtype, 1 << (form.bits - 1)))


def _number(dtype: DType, bits: int) -> float:
    return float(np.array(bits, f"u{dtype.numpy.itemsize}").view(dtype.numpy))


def _bits(dtype: DType, value: object) -> int:
    return int(np.array(value, dtype.numpy).view(f"u{dtype.numpy.itemsize}"))
