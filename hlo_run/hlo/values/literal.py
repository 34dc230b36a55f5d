"""Literals (numpy arrays in logical order, or tuples of them) and their text as XLA prints it.

f32 and f64 are printed in the shorter of two precisions that parses back equal, narrower floats in a fixed one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from hlo_run.arrays import Array
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape

Literal: TypeAlias = "Array | tuple[Literal, ...]"

_MOST_EMPTY_ROWS = 1 << 16
_COMPONENTS = {"c64": "f32", "c128": "f64"}


def format_literal(literal: Literal, shape: Shape, reads_back: bool = False) -> str:
    """Return the text between the parentheses of `constant(..)`: one line, no shapes.

    XLA prints -0, which it parses as the integer 0. With `reads_back` the text is -0.0, which keeps the sign.
    """
    if not isinstance(literal, tuple):
        return _format_array(literal, shape, " ", reads_back)
    parts: list[str] = []
    # A stack of text and of values to print.
    waiting: list[str | tuple[Literal, Shape]] = [(literal, shape)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            parts.append(item)
        elif not isinstance(item[0], tuple):
            parts.append(_format_array(item[0], item[1], " ", reads_back))
        else:
            parts.append("( ")
            waiting.append(" )")
            for number, element in reversed([*enumerate(zip(item[0], item[1].tuple_shapes, strict=True))]):
                waiting.append(element)
                if number:
                    waiting.append(", ")
    return "".join(parts)


def literal_to_string(literal: Literal, shape: Shape) -> str:
    """Return the literal with its shapes (no layouts), a line for each innermost row, as XLA's `Literal::ToString`.

    An array with dynamic dimensions has its run-time sizes after the shape: `f32[<=8](3) {1, 2, 3}`.
    """
    if isinstance(literal, tuple) and shape.is_tuple:
        pairs = zip(literal, shape.tuple_shapes, strict=True)
        return "(\n" + ",\n".join(literal_to_string(element, inner) for element, inner in pairs) + "\n)"
    if isinstance(literal, tuple):
        return shape.to_string(layout=False)
    sizes = f"({','.join(map(str, literal.shape))})" if any(shape.dynamic_dims) else ""
    return f"{shape.to_string(layout=False)}{sizes} {_format_array(literal, shape, chr(10))}"


def _format_array(literal: Array, shape: Shape, line_break: str, reads_back: bool = False) -> str:
    if shape.rank == 0:
        if shape.dtype.kind == "pred":
            return "true" if literal else "false"
        return item_formatter(shape.dtype, reads_back)(literal[()])
    if not literal.size and math.prod(literal.shape[: literal.shape.index(0)]) > _MOST_EMPTY_ROWS:
        return "{...}"  # it has no elements and parses back; XLA prints every empty row
    items = _items(literal, shape.dtype, reads_back)
    if shape.rank == 1:
        return "{" + ", ".join(items) + "}"
    return _format_rows(items, literal.shape, (), line_break)


def _items(literal: Array, dtype: DType, reads_back: bool) -> Sequence[str]:
    """Return the text of each element, in row-major order."""
    flat = literal.reshape(-1)
    if dtype.kind == "pred" or dtype.is_integer:
        return [str(int(value)) for value in flat.tolist()]
    return list(map(item_formatter(dtype, reads_back), flat))


def _format_rows(items: Sequence[str], dims: tuple[int, ...], index: tuple[int, ...], line_break: str) -> str:
    """Return nested braces for the block at `index`; above rank 3 every block begins with its index."""
    depth, rank = len(index), len(dims)
    if depth == rank - 1:
        indent = "" if line_break == " " else "  "
        blank = " " if dims[-1] > 1 else ""
        return f"{indent}{{{blank}{', '.join(items)}{blank}}}"
    count = dims[depth]
    opening = "{" + line_break
    if rank > 3 and depth:
        opening = f"{{ /*i{depth - 1}={index[-1]}*/{line_break if count else ''}"
    step = len(items) // count if count else 0
    rows = [_format_rows(items[i * step : (i + 1) * step], dims, (*index, i), line_break) for i in range(count)]
    return opening + f",{line_break}".join(rows) + line_break + "}"


_SMALLEST_SCALE = 2.0**-127


def item_formatter(dtype: DType, reads_back: bool = False) -> Callable[[Any], str]:
    """Return the function that prints one element (a numpy scalar); `reads_back` is as in `format_literal`."""
    if dtype.kind == "pred" or dtype.is_integer:
        return lambda value: str(int(value))
    if dtype.is_complex:
        part = item_formatter(DTYPES[_COMPONENTS[dtype.name]], reads_back)
        return lambda value: f"({part(value.real)}, {part(value.imag)})"
    if dtype.name in ("f32", "f64"):
        return _shortest(dtype, reads_back)
    digits = math.ceil(1 + (float_info(dtype).nmant + 1) * math.log10(2))

    def show(value: Any) -> str:
        if value != value:
            return _nan(value, dtype)
        if reads_back and dtype.name == "f8e8m0fnu" and float(value) == _SMALLEST_SCALE:
            # XLA's two digits of the smallest f8e8m0fnu do not parse back.
            return f"{_SMALLEST_SCALE:.17g}"
        return f"{float(value):.{digits}g}" if value else _zero(float(value), reads_back)

    return show


def float_info(dtype: DType) -> Any:
    """Return ml_dtypes' `finfo` of a float type; its fields are untyped."""
    return ml_dtypes.finfo(dtype.numpy)  # pyright: ignore[reportUnknownVariableType]


def _zero(number: float, reads_back: bool) -> str:
    if math.copysign(1, number) > 0:
        return "0"
    return "-0.0" if reads_back else "-0"


def _shortest(dtype: DType, reads_back: bool) -> Callable[[Any], str]:
    short, full = (6, 9) if dtype.name == "f32" else (15, 17)
    kind: Any = np.float32 if dtype.name == "f32" else np.float64

    def show(value: Any) -> str:
        if value != value:
            return _nan(value, dtype)
        number = float(value)
        if number == 0:
            return _zero(number, reads_back)
        text = f"{number:.{short}g}"
        with np.errstate(over="ignore"):
            return text if float(kind(float(text))) == number else f"{number:.{full}g}"

    return show


def _nan(value: Any, dtype: DType) -> str:
    bits = int.from_bytes(np.asarray(value, dtype=dtype.numpy).tobytes(), sys.byteorder)
    sign = "-" if bits >> (dtype.bits - 1) & 1 and dtype.name != "f8e8m0fnu" else ""
    mantissa_bits = dtype.float_format.payload_bits
    if not mantissa_bits:
        return f"{sign}nan"
    payload = bits & ((1 << mantissa_bits) - 1)
    return f"{sign}nan" if payload == 1 << (mantissa_bits - 1) else f"{sign}nan(0x{payload:x})"
