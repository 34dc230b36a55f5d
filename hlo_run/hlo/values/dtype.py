"""The element types of HLO: names, widths, numpy types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `bits` is XLA's bit width (8 for pred, as in all of XLA:GPU). `kind` is one of pred, signed, unsigned, float, complex.
    `numpy` is the type of a literal's elements.
    """

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for pred."""
        return self.kind in ("signed", "unsigned")

    @property
    def is_signed(self) -> bool:
        return self.kind == "signed"

    @property
    def is_unsigned(self) -> bool:
        return self.kind == "unsigned"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"


def _row(name: str, kind: str, bits: int, numpy: Any) -> DType:
    return DType(name, kind, bits, np.dtype(numpy))


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _row("pred", "pred", 8, np.bool_),
        _row("s1", "signed", 1, ml_dtypes.int1),
        _row("s2", "signed", 2, ml_dtypes.int2),
        _row("s4", "signed", 4, ml_dtypes.int4),
        _row("s8", "signed", 8, np.int8),
        _row("s16", "signed", 16, np.int16),
        _row("s32", "signed", 32, np.int32),
        _row("s64", "signed", 64, np.int64),
        _row("u1", "unsigned", 1, ml_dtypes.uint1),
        _row("u2", "unsigned", 2, ml_dtypes.uint2),
        _row("u4", "unsigned", 4, ml_dtypes.uint4),
        _row("u8", "unsigned", 8, np.uint8),
        _row("u16", "unsigned", 16, np.uint16),
        _row("u32", "unsigned", 32, np.uint32),
        _row("u64", "unsigned", 64, np.uint64),
        _row("f16", "float", 16, np.float16),
        _row("bf16", "float", 16, ml_dtypes.bfloat16),
        _row("f32", "float", 32, np.float32),
        _row("f64", "float", 64, np.float64),
        _row("f8e5m2", "float", 8, ml_dtypes.float8_e5m2),
        _row("f8e4m3", "float", 8, ml_dtypes.float8_e4m3),
        _row("f8e4m3fn", "float", 8, ml_dtypes.float8_e4m3fn),
        _row("f8e4m3b11fnuz", "float", 8, ml_dtypes.float8_e4m3b11fnuz),
        _row("f8e5m2fnuz", "float", 8, ml_dtypes.float8_e5m2fnuz),
        _row("f8e4m3fnuz", "float", 8, ml_dtypes.float8_e4m3fnuz),
        _row("f8e3m4", "float", 8, ml_dtypes.float8_e3m4),
        _row("f8e8m0fnu", "float", 8, ml_dtypes.float8_e8m0fnu),
        _row("f4e2m1fn", "float", 4, ml_dtypes.float4_e2m1fn),
        _row("f6e2m3fn", "float", 6, ml_dtypes.float6_e2m3fn),
        _row("f6e3m2fn", "float", 6, ml_dtypes.float6_e3m2fn),
        _row("c64", "complex", 64, np.complex64),
        _row("c128", "complex", 128, np.complex128),
    )
}
