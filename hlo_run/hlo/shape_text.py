"""Shapes from HLO text: array shapes with layouts, tuples, tokens; refuses what no buffer could ever hold."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from hlo_run.errors import HloRunError, ParseError, Unsupported
from hlo_run.hlo.dtype import DTYPES
from hlo_run.hlo.lexer import Lexer
from hlo_run.hlo.shape import Layout, Shape

MAX_ELEMENTS = 2**40
MAX_RANK = 32
# A limit of ours (XLA stops at 8192): far above any real module, far below Python's own limit on recursion.
MAX_DEPTH = 64

_ARRAY = re.compile(r"([a-z0-9_]+)\s*\[([^\]]*)\]\s*(?:\{\s*([\d,\s]*)(?::(.*))?\})?", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# Level types of the old sparse layouts, which XLA reads and drops.
_LEVEL_TYPES = re.compile(r"D\([^)]*\)")
_INT64_BYTES = 2**63


def parse_shape(lexer: Lexer, depth: int = 0) -> Shape:
    """Read the shape that begins at the current token and leave the lexer after it; a missing layout is the default one.

    Raises ParseError for what is no shape, Unsupported for one that is valid but beyond every machine.
    """
    if lexer.kind == "shape":
        try:
            shape = array_shape(lexer.value)
        except HloRunError as error:
            raise type(error)(error.message, lexer.where(), error.hint) from None
        lexer.advance()
        return shape
    if lexer.value == "(":
        return _parse_tuple(lexer, depth)
    raise lexer.error(f"expects a shape, but sees {lexer.seen()}", hint="a shape is written like f32[2,3]{1,0}")


def _parse_tuple(lexer: Lexer, depth: int) -> Shape:
    if depth >= MAX_DEPTH:
        raise lexer.error("maximum recursion depth exceeded", hint=f"tuples nest at most {MAX_DEPTH} deep")
    lexer.advance()
    elements: list[Shape] = []
    while lexer.value != ")":
        elements.append(parse_shape(lexer, depth + 1))
        if not lexer.take(","):
            break
    lexer.expect(")", "at the end of a tuple shape")
    return Shape.make_tuple(tuple(elements))


@lru_cache(maxsize=4096)
def array_shape(text: str) -> Shape:
    """Return the shape that one shape token spells; errors have no place in a text yet."""
    found = _ARRAY.fullmatch(_COMMENT.sub("", text))
    if found is None:
        raise ParseError(f"cannot read the shape '{text}'", hint="a shape is written like f32[2,3]{1,0}")
    element_type, dims_text, order_text, extra = found.groups()
    if element_type not in DTYPES:
        return _opaque_shape(element_type, dims_text)
    dims, dynamic = _dimensions(dims_text)
    check_size(element_type, dims)
    layout = Layout(tuple(reversed(range(len(dims)))))
    if order_text is not None:
        layout = _layout(order_text, extra or "", len(dims))
    return Shape(element_type, dims, layout, dynamic_dims=dynamic if any(dynamic) else ())


def _opaque_shape(element_type: str, dims_text: str) -> Shape:
    if dims_text.strip():
        raise ParseError(f"{element_type} has no dimensions")
    return Shape("opaque" if element_type == "opaque_type" else element_type)


def _dimensions(text: str) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return sizes and, per dimension, whether `<=` marks it as dynamic."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if "?" in parts:
        raise Unsupported("dimensions without a bound ('?') are not supported", hint="give the dimension a bound: '<=N'")
    sizes: list[int] = []
    for part in parts:
        digits = part.removeprefix("<=")
        # Twenty digits are beyond 64 bits already, and Python refuses to convert a few thousand.
        if not (digits.isascii() and digits.isdigit()):
            raise ParseError(f"expects an integer as dimension size, but sees '{part}'")
        if len(digits) > 20:
            raise ParseError(f"the dimension size {digits[:20]}... does not fit into 64 bits")
        sizes.append(int(digits))
    if len(sizes) > MAX_RANK:
        raise Unsupported(f"arrays of rank {len(sizes)} are not supported", hint=f"the largest rank is {MAX_RANK}")
    return tuple(sizes), tuple(part.startswith("<=") for part in parts)


def check_size(element_type: str, dims: tuple[int, ...]) -> None:
    """Raise ParseError for an array whose bytes no 64-bit number counts, Unsupported for one beyond every machine."""
    text = f"{element_type}[{','.join(map(str, dims))}]"
    # A dimension of size 0 makes the product harmless, but not the other sizes.
    elements = math.prod(max(size, 1) for size in dims)
    if elements * DTYPES[element_type].bits // 8 >= _INT64_BYTES:
        raise ParseError(f"the size of shape {text} in bytes does not fit into 64 bits")
    if elements > MAX_ELEMENTS:
        raise Unsupported(
            f"shape {text} has {elements} elements, more than any device can hold",
            hint=f"the limit is {MAX_ELEMENTS} elements; make the dimensions smaller",
        )


def _layout(order_text: str, extra: str, rank: int) -> Layout:
    parts = [part.strip() for part in order_text.split(",") if part.strip()]
    if any(not part.isdecimal() or len(part) > 3 for part in parts):
        raise ParseError(f"cannot read the minor to major order {{{order_text}}}")
    order = tuple(map(int, parts))
    if len(order) != rank:
        raise ParseError(f"Dimensions size is {rank}, but minor to major size is {len(order)}.")
    if sorted(order) != list(range(rank)):
        raise ParseError(f"the minor to major order {{{order_text}}} does not name each dimension once")
    return Layout(order, _LEVEL_TYPES.sub("", extra.strip()))
