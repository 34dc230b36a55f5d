"""The generator's knowledge of a value: its shape, its bound, and how exactly the reference and the pipeline must agree.

A float is exact if it is a multiple of 2**-grain whose bits fit its type: then every order of operations gives the same
number, and comparisons, roundings and sorts have one correct result. All other floats have an error: a bound on the difference
between two correct results.
"""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace

Dims = tuple[int, ...]


class ElementType(Struct, frozen=True):
    """An element type: `digits` is the number of significand bits of a float, `most_grain` the largest grain of exact values."""

    name: str
    kind: str  # pred, signed, unsigned, float, complex
    bits: int
    digits: int
    highest: float
    most_grain: int
    weight: float

    @property
    def largest(self) -> int:
        """The largest number of an integer type; `highest` is the largest magnitude."""
        return (1 << (self.bits - (self.kind == "signed"))) - 1

    @property
    def is_float(self) -> bool:
        """True for real floats."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for pred."""
        return self.kind in ("signed", "unsigned")

    @property
    def is_number(self) -> bool:
        """True for integers and floats."""
        return self.is_float or self.is_integer

    @property
    def is_wide_float(self) -> bool:
        """True for floats of 16 bits or more, which may be inexact."""
        return self.is_float and self.bits >= 16


def _integer(name: str, weight: float) -> ElementType:
    bits = int(name[1:])
    signed = name[0] == "s"
    return ElementType(name, "signed" if signed else "unsigned", bits, bits, 2.0 ** (bits - signed) - (not signed), 0, weight)


def _float(name: str, highest: float, most_grain: int, weight: float) -> ElementType:
    dtype = DTYPES[name]
    return ElementType(name, "float", dtype.bits, dtype.float_format.mantissa_bits + 1, highest, most_grain, weight)


TYPES: dict[str, ElementType] = {
    t.name: t
    for t in (
        ElementType("pred", "pred", 8, 1, 1, 0, 2.0),
        *(_integer(n, w) for n, w in (("s2", 0.2), ("u2", 0.2), ("s4", 0.5), ("u4", 0.5), ("s8", 1.0), ("u8", 1.0))),
        *(_integer(n, w) for n, w in (("s16", 0.5), ("u16", 0.5), ("s32", 5.0), ("u32", 1.0), ("s64", 1.0), ("u64", 0.5))),
        _float("f32", 2.0**60, 100, 9.0),
        _float("f64", 2.0**60, 100, 1.5),
        _float("f16", 2.0**14, 20, 2.0),
        _float("bf16", 2.0**60, 100, 2.0),
        _float("f8e4m3fn", 8, 6, 0.6),
        _float("f8e5m2", 8, 6, 0.6),
        _float("f8e4m3", 8, 6, 0.2),
        _float("f8e3m4", 8, 5, 0.2),
        _float("f8e4m3b11fnuz", 8, 6, 0.2),
        _float("f8e5m2fnuz", 8, 6, 0.2),
        _float("f8e4m3fnuz", 8, 6, 0.2),
        _float("f4e2m1fn", 4, 1, 0.2),
        ElementType("c64", "complex", 64, 24, 2.0**60, 100, 0.4),
        ElementType("c128", "complex", 128, 53, 2.0**60, 100, 0.2),
    )
}
FLOATS = tuple(t.name for t in TYPES.values() if t.is_float)
WIDE_FLOATS = tuple(t.name for t in TYPES.values() if t.is_wide_float)
PART_OF = {"c64": "f32", "c128": "f64"}


class Range(Struct, frozen=True):
    """The range of an array's numbers: |x| <= bound, and multiples of 2**-grain if `error` is 0."""

    bound: float
    grain: int = 0
    error: float = 0.0

    @property
    def exact(self) -> bool:
        """True if the numbers have no error."""
        return self.error == 0.0


def rounded(range_: Range, element_type: str, slack: float = 1.0) -> Range:
    """Return the range after rounding to the type; `slack` is the maximum error in units of the type's rounding error."""
    t = TYPES[element_type]
    if not (t.is_float or t.kind == "complex"):
        return Range(min(range_.bound, t.highest))
    bound = min(range_.bound, 1e30)
    fits = bound * 2.0**range_.grain <= 2.0**t.digits and bound <= t.highest and range_.grain <= t.most_grain
    if range_.exact and fits:
        return Range(bound, range_.grain)
    return Range(bound, 0, range_.error + slack * bound * 2.0**-t.digits)


def join(*ranges: Range) -> Range:
    """Return a range that contains all of these."""
    return Range(max(r.bound for r in ranges), max(r.grain for r in ranges), max(r.error for r in ranges))


def plus(one: Range, other: Range) -> Range:
    """Return the range of the sum."""
    return Range(one.bound + other.bound, max(one.grain, other.grain), one.error + other.error)


def times(one: Range, other: Range) -> Range:
    """Return the range of the product."""
    error = one.bound * other.error + other.bound * one.error + one.error * other.error
    return Range(one.bound * other.bound, one.grain + other.grain, error)


def sum_of(one: Range, count: int, element_type: str) -> Range:
    """Return the range of a sum of `count` numbers, in any order, with rounding after each step."""
    count = max(count, 1)
    total = Range(one.bound * count, one.grain, one.error * count)
    end = rounded(total, element_type)
    return end if end.exact else replace(end, error=end.error * (1 + math.ceil(math.log2(count + 1))) + one.error)


class Value(Struct, frozen=True):
    """A value in a computation: an array, a tuple of `parts`, or a token (type "token")."""

    name: str
    type: str
    dims: Dims = ()
    range: Range = Range(0.0)
    parts: tuple[Value, ...] = ()
    layout: str = ""

    @property
    def element(self) -> ElementType:
        """The record of the element type; the value must be an array."""
        return TYPES[self.type]

    @property
    def is_tuple(self) -> bool:
        """True for tuples."""
        return self.type == "tuple"

    @property
    def exact(self) -> bool:
        """True if the numbers have no error."""
        return self.range.exact

    @property
    def count(self) -> int:
        """The number of elements of an array."""
        return math.prod(self.dims)

    @property
    def shape(self) -> str:
        """The shape as text, with the layout if it is not the default."""
        return shape_text(self)


def shape_text(value: Value) -> str:
    """Return a shape as text, with its layout if it is not the default one."""
    if value.is_tuple:
        return f"({', '.join(shape_text(part) for part in value.parts)})"
    return "token[]" if value.type == "token" else array_text(value.type, value.dims) + value.layout


def array_text(element_type: str, dims: Dims) -> str:
    """Return an array's shape as text, for example `f32[2,3]`."""
    return f"{element_type}[{','.join(map(str, dims))}]"
