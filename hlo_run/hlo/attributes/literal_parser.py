"""Parse literals into numpy arrays in logical order.

Arrays without complex numbers or NaN payloads are read in bulk. All other text goes to the reader of single elements,
which also knows the place of every error.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo_run.errors import Unsupported, Where
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.literal import Array, Literal, float_info
from hlo_run.hlo.values.shape import UNBOUNDED, Shape

# The largest elided constant: a larger one could use up the machine's memory before a device refuses it.
MAX_ELIDED_BYTES = 2**32

_ROW = re.compile(r"\{([^{}]*)\}")
_BETWEEN_ROWS = str.maketrans("", "", ", \t\r\n")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_OTHER_BLANK = re.compile(r"[^\S \t\r\n]")
_BULK = re.compile(r"[^()./]*(?:/\*[^*]*\*/[^()./]*|\.(?!\.)[^()./]*)*+")
# Plain items with one blank after each. A number begins with a point only after a sign.
_NUMBERS = re.compile(r"(?:(?:(?:-?\d++(?:\.\d*+)?|-\.\d++)(?:[eE][+\-]?\d++)?|-?inf|-?nan|true|false) )*+", re.ASCII)
# The payload of f64's quiet NaN; in the text it means the quiet NaN of any type.
_DEFAULT_DOUBLE_PAYLOAD = 1 << 51
_NAN_PAYLOAD = re.compile(r"\(0x([0-9a-fA-F]{1,16})\)")


class ElidedFill:
    """Fills `{...}` constants as XLA's parser does: with a counter of 32-bit words, and one of bytes for the rest.

    The rest bytes are in the second quarter of the data, where XLA puts them. XLA's counters are global to the process;
    ours begin at zero in every module, so that a module always has the same meaning.
    """

    def __init__(self) -> None:
        self._word = 0
        self._byte = 0

    def fill(self, shape: Shape) -> Array:
        """Return the next array; the pattern is in logical order, whatever the layout."""
        dtype = shape.dtype
        size = shape.element_count * dtype.numpy.itemsize
        words, rest = divmod(size, 4)
        data = np.zeros(size, dtype=np.uint8)
        data[: words * 4] = (np.arange(self._word, self._word + words, dtype=np.uint64) & 0xFFFFFFFF).astype("<u4").view(np.uint8)
        data[words : words + rest] = (np.arange(self._byte, self._byte + rest) & 0xFF).astype(np.uint8)
        self._word += words
        self._byte += rest
        if dtype.kind == "pred":
            data &= 1
        elif dtype.bits < 8:
            data &= (1 << dtype.bits) - 1
            data = _sign_extend(data, dtype)
        return data.view(dtype.numpy).reshape(shape.dims)


def _sign_extend(data: NDArray[np.uint8], dtype: DType) -> NDArray[np.uint8]:
    # ml_dtypes keeps signed small integers sign-extended in their byte.
    if not dtype.is_signed:
        return data
    shift = 8 - dtype.bits
    return ((data << shift).view(np.int8) >> shift).view(np.uint8)


def parse_literal(lexer: Lexer, shape: Shape, elided: ElidedFill) -> Literal:
    """Read the literal of `shape` at the current token, and move past it."""
    if not shape.is_tuple:
        return _parse_array(lexer, shape, elided)
    lexer.expect("(", "at the start of a tuple literal")
    # The open tuples: shape, elements so far.
    opened: list[tuple[Shape, list[Literal]]] = [(shape, [])]
    while True:
        top, elements = opened[-1]
        if len(elements) < len(top.tuple_shapes):
            if elements:
                lexer.take(",")
            inner = top.tuple_shapes[len(elements)]
            if inner.is_tuple:
                lexer.expect("(", "at the start of a tuple literal")
                opened.append((inner, []))
            else:
                elements.append(_parse_array(lexer, inner, elided))
            continue
        lexer.expect(")", "at the end of a tuple literal")
        opened.pop()
        if not opened:
            return tuple(elements)
        opened[-1][1].append(tuple(elements))


def _parse_array(lexer: Lexer, shape: Shape, elided: ElidedFill) -> Array:
    if not shape.is_array:
        raise lexer.error(f"a literal cannot have the shape {shape}")
    if UNBOUNDED in shape.dims:
        raise lexer.error(f"a literal of shape {shape} has no size")
    if shape.rank == 0:
        return np.array(_parse_scalar(lexer, shape), dtype=shape.dtype.numpy)
    if lexer.value == "{" and lexer.text.startswith("...", _skip_blanks(lexer.text, lexer.pos)):
        return _parse_elided(lexer, shape, elided)
    if lexer.value != "{" and lexer.kind != "ints" and shape.element_count and not shape.dtype.is_complex:
        return _parse_first_element(lexer, shape)
    bulk = _parse_bulk(lexer, shape)
    return _parse_nested(lexer, shape, elided) if bulk is None else bulk


def _parse_first_element(lexer: Lexer, shape: Shape) -> Array:
    """Read a number without braces as XLA does: it is the first element, the others are zero."""
    if lexer.value == "...":
        raise lexer.error("expects `...` in braces, but sees it without")
    _check_size(lexer, shape)
    where = lexer.where()
    first = _parse_scalar(lexer, shape)
    try:
        values = np.zeros(shape.dims, dtype=shape.dtype.numpy)
    except MemoryError:
        raise _no_memory(shape, where) from None
    values.reshape(-1)[0] = first
    return values


def _no_memory(shape: Shape, where: Where) -> Unsupported:
    return Unsupported(f"out of memory for the constant of shape {shape.to_string(layout=False)}", where)


def _skip_blanks(text: str, pos: int) -> int:
    while pos < len(text) and text[pos] in " \t\r\n":
        pos += 1
    return pos


def _parse_elided(lexer: Lexer, shape: Shape, elided: ElidedFill) -> Array:
    lexer.advance()
    return _fill(lexer, shape, elided)


def _check_size(lexer: Lexer, shape: Shape) -> None:
    """Raise Unsupported if an elided constant is too large to fill."""
    if shape.element_count * shape.dtype.numpy.itemsize > MAX_ELIDED_BYTES:
        raise Unsupported(
            f"the elided constant of shape {shape.to_string(layout=False)} is too large to fill",
            lexer.where(),
            hint="print the module with large constants, or make it a parameter",
        )


def _fill(lexer: Lexer, shape: Shape, elided: ElidedFill) -> Array:
    """Skip `...}` and return the data of the elided constant."""
    _check_size(lexer, shape)
    where = lexer.where()
    lexer.advance()
    lexer.expect("}", "after '...'")
    try:
        return elided.fill(shape)
    except MemoryError:
        raise _no_memory(shape, where) from None


def _parse_bulk(lexer: Lexer, shape: Shape) -> Array | None:
    """Return the array if its text is plain numbers in the right rows; else None, and the lexer does not move."""
    found = _BULK.match(lexer.text, lexer.start)
    if found is None or shape.dtype.is_complex or not lexer.text.startswith("{", lexer.start):
        return None
    end = found.end()
    if lexer.text[end : end + 1] != ")" or not found[0].rstrip().endswith("}"):
        # Not a constant's array: only that ends at the first parenthesis. In a tuple the next element may follow.
        return None
    if _OTHER_BLANK.search(found[0]):
        # `split` accepts this character as a blank, HLO does not.
        return None
    body = _COMMENT.sub("", found[0]) if "/" in found[0] else found[0]
    outer = math.prod(shape.dims[:-1])
    if outer > len(body) or _ROW.sub("{}", body).translate(_BETWEEN_ROWS) != _skeleton(shape.dims):
        return None
    items = [row.replace(",", " ").split() for row in _ROW.findall(body)]
    if any(len(row) != shape.dims[-1] for row in items):
        return None
    values = _bulk_values([item for row in items for item in row], shape.dtype)
    if values is None:
        return None
    lexer.jump(end)
    return values.reshape(shape.dims)


def _skeleton(dims: tuple[int, ...]) -> str:
    text = "{}"
    for size in reversed(dims[:-1]):
        text = "{" + text * size + "}"
    return text


def _bulk_values(items: list[str], dtype: DType) -> Array | None:
    """Return the flat array, or None if an item is not a plain number in range."""
    if items and not _NUMBERS.fullmatch(" ".join(items) + " "):
        return None
    try:
        if dtype.kind == "pred":
            return np.array([_PRED_WORDS[item] for item in items], dtype=np.bool_)
        if dtype.is_integer:
            low, high = integer_range(dtype)
            integers = [int(item) for item in items]
            in_range = not integers or (low <= min(integers) and max(integers) <= high)
            return np.array(integers, dtype=_WIDE[dtype.kind]).astype(dtype.numpy) if in_range else None
        numbers = [_number(item) for item in items]
    except (ValueError, KeyError):
        return None
    return _to_float(np.array(numbers, dtype=np.float64), dtype)


def _number(text: str) -> float:
    """Return the f64 value of `text`; NaN if it is out of range, which no caller accepts."""
    if text.lstrip("-").isdigit():
        # XLA reads a number without point and exponent as a signed 64-bit integer, so -0 is 0.
        integer = int(text) if len(text) <= 20 else 2**64
        return float(integer if integer < 2**63 else integer - 2**64) if -(2**63) <= integer < 2**64 else math.nan
    value = float(text)
    return math.nan if math.isinf(value) and "inf" not in text else value


_PRED_WORDS = {"true": True, "false": False, "1": True, "0": False}
_WIDE: dict[str, Any] = {"signed": np.int64, "unsigned": np.uint64}


_SMALLEST_SCALE = 2.0**-127


def _to_float(values: Array, dtype: DType) -> Array | None:
    """Round f64 to `dtype`; None if a finite number becomes infinite, or for a NaN, which `_parse_nan` reads."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if dtype.name == "f8e8m0fnu":
            # No sign and no zero: smaller numbers become the smallest power of two.
            values = np.where((values > 0) & (values < _SMALLEST_SCALE), _SMALLEST_SCALE, values)
        rounded = values.astype(dtype.numpy)
        back = rounded.astype(np.float64)
    lost = np.isnan(values) | (np.isfinite(values) & ~np.isfinite(back))
    return None if bool(np.any(lost)) else rounded


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the closed range of an integer type."""
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def _parse_nested(lexer: Lexer, shape: Shape, elided: ElidedFill) -> Array:
    values: list[Any] = []
    if not _parse_row(lexer, shape, (), values):
        # Elements before the dots are ignored, as in XLA.
        return _fill(lexer, shape, elided)
    return np.array(values, dtype=shape.dtype.numpy).reshape(shape.dims)


def _parse_row(lexer: Lexer, shape: Shape, index: tuple[int, ...], values: list[Any]) -> bool:
    """Read the braces of one dimension; `index` has the indices of the outer dimensions, so the rank bounds the recursion.

    Returns False if the outermost braces contain `...`, which is then the current token.
    """
    if lexer.kind == "ints":
        # The token is a whole row: move to its first element.
        lexer.pos = lexer.start + 1
    elif lexer.value != "{":
        raise lexer.error(f"expects nested array in rank {shape.rank}, but sees {len(index)}")
    place, start = len(index), lexer.start
    lexer.advance()
    count, innermost = 0, place == shape.rank - 1
    while lexer.value != "}":
        if lexer.take(","):
            continue
        if not index and lexer.value == "...":
            return False
        if innermost and lexer.value != "{" and lexer.kind != "ints":
            values.append(_parse_scalar(lexer, shape))
        elif innermost:
            raise lexer.error(f"expects nested array in rank {shape.rank}, but sees larger")
        else:
            _parse_row(lexer, shape, (*index, count), values)
        count += 1
    if count != shape.dims[place]:
        position = "".join(f"[{number}]" for number in index)
        raise lexer.error(f"expects {shape.dims[place]} elements in the {position}th element, but sees {count}", start)
    lexer.advance()
    return True


def _parse_scalar(lexer: Lexer, shape: Shape) -> Any:
    dtype = shape.dtype
    if dtype.is_complex:
        return _parse_complex(lexer, dtype)
    if dtype.is_float:
        return _parse_float(lexer, dtype)
    start, text = lexer.start, lexer.value
    if dtype.kind == "pred" and text in ("true", "false"):
        lexer.advance()
        return text == "true"
    if lexer.kind != "number" or not text.lstrip("-").isdigit():
        raise lexer.error(f"expects an integer for primitive type {dtype.name.upper()}, but sees {lexer.seen()}")
    lexer.advance()
    value = int(text) if len(text) <= 20 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise lexer.error(f"the integer {text[:20]} does not fit into 64 bits", start)
    if dtype.kind == "pred":
        return value != 0
    low, high = integer_range(dtype)
    if dtype.is_signed or dtype.bits == 64:
        # XLA reads every integer as a signed 64-bit word; unsigned types reinterpret it.
        value = (value - _WORD_LOW[dtype.is_signed]) % (1 << 64) + _WORD_LOW[dtype.is_signed]
    if not low <= value <= high:
        raise lexer.error(_out_of_range(text, dtype, low, high), start)
    return value


# The smallest value of an unsigned and of a signed word.
_WORD_LOW = (0, -(1 << 63))


def _out_of_range(text: str, dtype: DType, low: Any, high: Any) -> str:
    return f"value {text} is out of range for literal's primitive type {dtype.name.upper()}, namely [{low}, {high}]."


def _parse_float(lexer: Lexer, dtype: DType) -> Any:
    start, text = lexer.start, lexer.value
    if text in ("nan", "-nan"):
        return _parse_nan(lexer, dtype)
    if lexer.kind != "number" and text != "inf":
        raise lexer.error(f"expects a number for primitive type {dtype.name.upper()}, but sees {lexer.seen()}")
    lexer.advance()
    value = _to_float(np.array(_number(text)), dtype)
    if value is None:
        largest = float(float_info(dtype).max)
        raise lexer.error(_out_of_range(text, dtype, f"{-largest:g}", f"{largest:g}"), start)
    return value[()]


def _parse_nan(lexer: Lexer, dtype: DType) -> Any:
    """Read `nan` or `-nan(0x7)`: the default payload is f64's, any other is in the type's own mantissa."""
    negative = lexer.value.startswith("-")
    payload = _NAN_PAYLOAD.match(lexer.text, lexer.pos)
    with np.errstate(invalid="ignore"):
        value = np.array(-math.nan if negative else math.nan, dtype=np.float64).astype(dtype.numpy)
    if payload is None:
        lexer.advance()
        return value[()]
    mantissa_bits = dtype.float_format.payload_bits
    bits = int(payload[1], 16)
    if bits == _DEFAULT_DOUBLE_PAYLOAD:
        lexer.jump(payload.end())
        return value[()]
    if not 0 < bits < 1 << mantissa_bits:
        raise lexer.error(f"the NaN payload 0x{payload[1]} does not fit into {dtype.name.upper()}", lexer.pos)
    lexer.jump(payload.end())
    exponent = ((1 << (dtype.bits - 1 - mantissa_bits)) - 1) << mantissa_bits
    word = int(negative) << (dtype.bits - 1) | exponent | bits
    return np.array([word], dtype=f"u{dtype.bits // 8}").view(dtype.numpy)[0]


def _parse_complex(lexer: Lexer, dtype: DType) -> Any:
    part = _COMPLEX_PART[dtype.name]
    lexer.expect("(", "at the start of a complex number")
    real = _parse_float(lexer, part)
    lexer.expect(",", "between the parts of a complex number")
    imaginary = _parse_float(lexer, part)
    lexer.expect(")", "at the end of a complex number")
    if real != real:
        # XLA takes the imaginary NaN from the real part.
        imaginary = real
    elif imaginary != imaginary and part.bits == 32:
        imaginary = np.copysign(part.numpy.type(np.nan), imaginary)
    return np.array([real, imaginary], dtype=part.numpy).view(dtype.numpy)[0]


_COMPLEX_PART = {"c64": DTYPES["f32"], "c128": DTYPES["f64"]}
