"""The element types of HLO: names, widths, numpy types."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
from msgspec import Struct

Kind: TypeAlias = Literal["pred", "signed", "unsigned", "float", "complex"]


class FloatFormat(Struct, frozen=True):
    """The bits of a float: exponent bits, stored mantissa bits, the exponent's bias, and the encoding of infinities and NaNs.

    `special` is `ieee` (infinities and NaN above the largest exponent), `fn` (NaN is all ones), `fnuz` (NaN is what would
    be -0), `finite`, or `exponent` (powers of two without a sign; NaN is all ones).
    """

    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: str

    @property
    def max_exponent(self) -> int:
        """The exponent from which on numbers are too large (C++'s `numeric_limits::max_exponent`)."""
        return (1 << self.exponent_bits) - self.bias - (self.special in ("ieee", "exponent"))

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return (1 << (self.bits - 1)) - 1

    @property
    def infinity(self) -> int:
        """The magnitude of infinity in an `ieee` format."""
        return self.magnitude >> self.mantissa_bits << self.mantissa_bits

    @property
    def largest(self) -> int:
        """The magnitude of the largest finite number."""
        return {"ieee": self.infinity - 1, "fn": self.magnitude - 1}.get(self.special, self.magnitude)

    @property
    def nan(self) -> int:
        """The magnitude of a NaN."""
        return self.infinity | 1 << (self.mantissa_bits - 1) if self.special == "ieee" else self.magnitude

    @property
    def step(self) -> float:
        """The distance of subnormal numbers."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    @property
    def payload_bits(self) -> int:
        """The width of a NaN's payload and the quiet bit above it; 0 for a type with one NaN or none."""
        return self.mantissa_bits if self.special == "ieee" else 0


class DType(Struct, frozen=True):
    """One element type.

    `number` is that of XLA's `PrimitiveType`. `bits` is XLA's bit width (8 for pred, as in all of XLA:GPU). `numpy` is the type
    of a literal's elements.
    `format` is the format of a float type, and None for other types.
    """

    name: str
    number: int
    kind: Kind
    bits: int
    numpy: np.dtype[Any]
    format: FloatFormat | None = None

    @property
    def is_float(self) -> bool:
        """True for real floats of any width."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for pred."""
        return self.kind in ("signed", "unsigned")

    @property
    def is_signed(self) -> bool:
        """True for signed integers."""
        return self.kind == "signed"

    @property
    def is_unsigned(self) -> bool:
        """True for unsigned integers, not for pred."""
        return self.kind == "unsigned"

    @property
    def is_complex(self) -> bool:
        """True for c64 and c128."""
        return self.kind == "complex"

    @property
    def float_format(self) -> FloatFormat:
        """The bits of a float type. The type must be a float."""
        assert self.format is not None, f"{self.name} is not a float"
        return self.format


def _row(name: str, number: int, kind: Kind, bits: int, numpy: Any) -> DType:
    return DType(name, number, kind, bits, np.dtype(numpy))


def _float(name: str, number: int, numpy: Any, exponent_bits: int, mantissa_bits: int, bias: int, special: str = "ieee") -> DType:
    bits = exponent_bits + mantissa_bits + (special != "exponent")
    return DType(name, number, "float", bits, np.dtype(numpy), FloatFormat(bits, exponent_bits, mantissa_bits, bias, special))


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _row("pred", 1, "pred", 8, np.bool_),
        _row("s1", 30, "signed", 1, ml_dtypes.int1),
        _row("s2", 26, "signed", 2, ml_dtypes.int2),
        _row("s4", 21, "signed", 4, ml_dtypes.int4),
        _row("s8", 2, "signed", 8, np.int8),
        _row("s16", 3, "signed", 16, np.int16),
        _row("s32", 4, "signed", 32, np.int32),
        _row("s64", 5, "signed", 64, np.int64),
        _row("u1", 31, "unsigned", 1, ml_dtypes.uint1),
        _row("u2", 27, "unsigned", 2, ml_dtypes.uint2),
        _row("u4", 22, "unsigned", 4, ml_dtypes.uint4),
        _row("u8", 6, "unsigned", 8, np.uint8),
        _row("u16", 7, "unsigned", 16, np.uint16),
        _row("u32", 8, "unsigned", 32, np.uint32),
        _row("u64", 9, "unsigned", 64, np.uint64),
        _float("f16", 10, np.float16, 5, 10, 15),
        _float("bf16", 16, ml_dtypes.bfloat16, 8, 7, 127),
        _float("f32", 11, np.float32, 8, 23, 127),
        _float("f64", 12, np.float64, 11, 52, 1023),
        _float("f8e5m2", 19, ml_dtypes.float8_e5m2, 5, 2, 15),
        _float("f8e4m3", 28, ml_dtypes.float8_e4m3, 4, 3, 7),
        _float("f8e4m3fn", 20, ml_dtypes.float8_e4m3fn, 4, 3, 7, "fn"),
        _float("f8e4m3b11fnuz", 23, ml_dtypes.float8_e4m3b11fnuz, 4, 3, 11, "fnuz"),
        _float("f8e5m2fnuz", 24, ml_dtypes.float8_e5m2fnuz, 5, 2, 16, "fnuz"),
        _float("f8e4m3fnuz", 25, ml_dtypes.float8_e4m3fnuz, 4, 3, 8, "fnuz"),
        _float("f8e3m4", 29, ml_dtypes.float8_e3m4, 3, 4, 3),
        _float("f8e8m0fnu", 33, ml_dtypes.float8_e8m0fnu, 8, 0, 127, "exponent"),
        _float("f4e2m1fn", 32, ml_dtypes.float4_e2m1fn, 2, 1, 1, "finite"),
        _float("f6e2m3fn", 36, ml_dtypes.float6_e2m3fn, 2, 3, 1, "finite"),
        _float("f6e3m2fn", 35, ml_dtypes.float6_e3m2fn, 3, 2, 3, "finite"),
        _row("c64", 15, "complex", 64, np.complex64),
        _row("c128", 18, "complex", 128, np.complex128),
    )
}


def keeps_values(before: DType, after: DType) -> bool:
    """True if a conversion from `before` to `after` changes no number."""
    if before.name == after.name:
        return True
    if after.name == "f8e8m0fnu" or before.name == "pred" or after.name == "pred":
        return before.name == "pred" and after.name != "f8e8m0fnu"
    if after.is_complex:
        part = DTYPES["f32" if after.name == "c64" else "f64"]
        return keeps_values(DTYPES["f32" if before.name == "c64" else "f64"] if before.is_complex else before, part)
    if before.is_complex or (before.is_float and not after.is_float):
        return False
    if before.is_float:
        return _keeps_floats(before.float_format, after.float_format)
    significant = before.bits - before.is_signed
    if after.is_float:
        largest = after.float_format
        return significant <= largest.mantissa_bits + 1 and before.bits - 1 < largest.max_exponent
    return not (before.is_signed and after.is_unsigned) and significant <= after.bits - after.is_signed


def _keeps_floats(before: FloatFormat, after: FloatFormat) -> bool:
    return (
        before.mantissa_bits <= after.mantissa_bits
        and before.exponent_bits <= after.exponent_bits
        and (before.special != "ieee" or after.special == "ieee")
        and (before.special == "finite" or after.special != "finite")
        and (before.special in ("fnuz", "exponent") or after.special not in ("fnuz", "exponent"))
        and before.step >= after.step
        and before.max_exponent <= after.max_exponent
    )
