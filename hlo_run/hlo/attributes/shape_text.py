"""Parse shapes: arrays with layouts, tuples, buffers, tokens. Sizes in bytes fit into 64 bits, as in XLA."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from hlo_run.errors import HloRunError, ParseError, Unsupported
from hlo_run.hlo.attributes.lexer import FOREIGN, Lexer
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import UNBOUNDED, Layout, Shape

MAX_RANK = 64
# XLA's limit on the nesting depth of tuples, instructions and computations in a text.
MAX_DEPTH = 8192

_ARRAY = re.compile(r"([a-z0-9_]+)\s*\[([^\]]*)\]\s*(?:\{\s*([\d,\s\-]*)(?::(.*))?\})?", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = r"(?:\((?:(?P<%s>-?\d+)\)?+)?+)?+"
_TYPE = r"\(?+(?P<%s>[a-z]\w*+)?+\)?+"
_SIZE = r"(?:\d+|\*)"
# The properties after the order of a layout, each at most once and in this order. Level types (`D`, of the old sparse
# layouts) are dropped. XLA continues after an incomplete property, so parentheses need not be closed. Possessive, as
# XLA does not read an incomplete property again as another one.
_EXTRA = re.compile(
    rf"""(?:D(?!\w)(?:\((?:[DCSH](?!\w)\+?~?(?:,[DCSH](?!\w)\+?~?)*+[,)]?+|\))?+)?+)?+
    (?:T(?!\w)(?P<tiles>(?:\((?:{_SIZE}(?:,{_SIZE})*+)?+\))*+(?:\((?:{_SIZE}(?:,{_SIZE})*+,?+)?+)?+))?+
    (?:L(?!\w){_NUMBER % "padding"})?+ (?:\#{_TYPE % "index"})?+ (?:\*{_TYPE % "pointer"})?+
    (?:E(?!\w){_NUMBER % "bits"})?+ (?:S(?!\w){_NUMBER % "space"})?+
    (?:SC(?!\w)(?P<splits>(?:\(\d+:(?:\d+(?:,\d+)*+)?+\))*+(?:\((?:\d+(?::(?:\d+(?:,\d+)*+,?+)?+)?+)?+)?+))?+
    (?:P(?!\w)(?P<physical>\(.*\)))?+ (?:M(?!\w){_NUMBER % "prefix"})?+""",
    re.VERBOSE,
)
_LONG_NUMBER = re.compile(r"\d{19,}")
_DIGITS_APART = re.compile(r"\w\s+\w")
_INT64_BYTES = 2**63


def starts_shape(lexer: Lexer) -> bool:
    """True if a shape begins at the current token."""
    return lexer.kind == "shape" or lexer.value == "(" or (lexer.value == "b" and _opens_buffer(lexer))


def _opens_buffer(lexer: Lexer) -> bool:
    return lexer.kind == "ident" and lexer.is_followed_by("(")


def parse_shape(lexer: Lexer) -> Shape:
    """Read the shape at the current token, and move past it; a missing layout is the default one.

    Raises ParseError for text that is not a shape, Unsupported for a valid shape that is too large for any device.
    """
    if lexer.kind == "shape":
        return _parse_array(lexer)
    # The open tuples and buffers: element type, elements so far.
    opened: list[tuple[str, list[Shape]]] = []
    while True:
        shape = _parse_leaf_or_open(lexer, opened)
        while shape is not None:
            if not opened:
                return shape
            kind, elements = opened[-1]
            elements.append(shape)
            if kind == "tuple" and lexer.take(","):
                break
            shape = _close(lexer, opened)


def _parse_leaf_or_open(lexer: Lexer, opened: list[tuple[str, list[Shape]]]) -> Shape | None:
    """Return the leaf or empty tuple at the current token, or open a tuple or buffer there and return None."""
    if lexer.kind == "shape":
        return _parse_array(lexer)
    kind = "tuple"
    if lexer.value == "b" and _opens_buffer(lexer):
        kind = "buffer"
        lexer.advance()
    if lexer.value != "(" or lexer.kind != "punct":
        raise lexer.error(f"expects a shape, but sees {lexer.seen()}", hint="a shape is written like f32[2,3]{1,0}")
    if len(opened) >= MAX_DEPTH:
        raise lexer.error("maximum recursion depth exceeded", hint=f"tuples nest at most {MAX_DEPTH} deep")
    lexer.advance()
    opened.append((kind, []))
    return _close(lexer, opened) if kind == "tuple" and lexer.sees(")") else None


def _close(lexer: Lexer, opened: list[tuple[str, list[Shape]]]) -> Shape:
    kind, elements = opened.pop()
    if kind == "buffer" and not elements[0].is_array:
        raise lexer.error(f"a buffer holds an array, not {elements[0].element_type}")
    lexer.expect(")", f"at the end of a {kind} shape")
    return Shape(kind, tuple_shapes=tuple(elements))


def _parse_array(lexer: Lexer) -> Shape:
    try:
        shape = array_shape(lexer.value)
    except HloRunError as error:
        raise type(error)(error.message, lexer.where(), error.hint) from None
    lexer.advance()
    return shape


@lru_cache(maxsize=4096)
def array_shape(text: str) -> Shape:
    """Return the shape of a shape token; its errors have no source location."""
    plain = _COMMENT.sub(" ", text) if "/" in text else text
    found = None if FOREIGN.search(plain) else _ARRAY.fullmatch(plain)
    if found is None:
        raise ParseError(f"cannot read the shape '{text}'", hint="a shape is written like f32[2,3]{1,0}")
    element_type, dims_text, order_text, extra = found.groups()
    if element_type not in DTYPES:
        return _opaque_shape(element_type, dims_text, order_text)
    dims, dynamic = _dimensions(dims_text)
    check_size(element_type, dims)
    layout = Layout(tuple(reversed(range(len(dims)))))
    if order_text is not None:
        layout = _layout(order_text, extra or "", len(dims))
    return Shape(element_type, dims, layout, dynamic_dims=dynamic if any(dynamic) else ())


def _opaque_shape(element_type: str, dims_text: str, order_text: str | None) -> Shape:
    if dims_text.strip() or order_text is not None:
        raise ParseError(f"{element_type} has no dimensions and no layout")
    return Shape("opaque" if element_type == "opaque_type" else element_type)


def _dimensions(text: str) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the sizes, and per dimension whether it is dynamic (`<=` or `?`)."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    sizes: list[int] = []
    for part in parts:
        digits = part.removeprefix("<=").lstrip()
        if part == "?":
            sizes.append(UNBOUNDED)
            continue
        # A number of more than 20 digits exceeds 64 bits, and Python refuses to convert one of thousands.
        if not (digits.isascii() and digits.isdigit()):
            raise ParseError(f"expects an integer as dimension size, but sees '{part}'")
        if len(digits) > 20:
            raise ParseError(f"the dimension size {digits[:20]}... does not fit into 64 bits")
        sizes.append(int(digits))
    if len(sizes) > MAX_RANK:
        raise Unsupported(f"arrays of rank {len(sizes)} are not supported", hint=f"the largest rank is {MAX_RANK}")
    return tuple(sizes), tuple(part.startswith(("<=", "?")) for part in parts)


def check_size(element_type: str, dims: tuple[int, ...]) -> None:
    """Raise ParseError if the bytes of an array exceed 64 bits."""
    # A size of 0 must not hide the other sizes; a dimension without a bound counts as 1.
    elements = math.prod(max(size, 1) for size in dims)
    if elements * DTYPES[element_type].bits // 8 < _INT64_BYTES and elements < _INT64_BYTES:
        return
    text = f"{element_type}[{','.join('?' if size == UNBOUNDED else str(size) for size in dims)}]"
    raise ParseError(f"the size of shape {text} in bytes does not fit into 64 bits")


def _layout(order_text: str, extra: str, rank: int) -> Layout:
    parts = [part.strip() for part in order_text.split(",")] if order_text.strip() else []
    if any(not part.isdecimal() or len(part) > 3 for part in parts):
        raise ParseError(f"cannot read the minor to major order {{{order_text}}}")
    order = tuple(map(int, parts))
    if len(order) != rank:
        raise ParseError(f"Dimensions size is {rank}, but minor to major size is {len(order)}.")
    if sorted(order) != list(range(rank)):
        raise ParseError(f"the minor to major order {{{order_text}}} does not name each dimension once")
    return Layout(order, _extra(extra) if extra.strip() else "")


def _extra(text: str) -> str:
    """Return the properties of a layout as XLA prints them: without those that equal their default."""
    found = None if _DIGITS_APART.search(text) else _EXTRA.fullmatch("".join(text.split()))
    if found is None:
        hint = "in this order: T(8,128)(2,1) L(n) #(u32) *(u32) E(n) S(n) SC(dim:i,j) M(n)"
        raise ParseError(f"cannot read the layout's '{text.strip()}': expects layout to end with '}}'", hint=hint)
    if found["physical"]:
        raise ParseError("Layout has physical shape, but is not for a sparse array")
    # Python refuses to convert numbers of thousands of digits.
    if any(len(number) > 19 or int(number) >= _INT64_BYTES for number in _LONG_NUMBER.findall(text)):
        raise ParseError(f"a number of the layout's '{text.strip()}' does not fit into 64 bits")
    numbers = {name: int(found[name] or default) for name, default in _NUMBERS.items()}
    # XLA stores a memory space in eight bits.
    numbers["space"] = (numbers["space"] + 128) % 256 - 128
    if numbers["padding"] < 1:
        raise ParseError("the tail padding L(n) of a layout is at least 1")
    parts = ["T", *_in_parentheses(found["tiles"] or "()")] if found["tiles"] is not None else []
    parts += [f"L({numbers['padding']})"] if numbers["padding"] != 1 else []
    parts += [f"#({_integer_type(found['index'])})"] if found["index"] else []
    parts += [f"*({_integer_type(found['pointer'])})"] if found["pointer"] else []
    parts += [f"E({numbers['bits']})"] if numbers["bits"] else []
    parts += [f"S({numbers['space']})"] if numbers["space"] else []
    splits = [split if ":" in split else f"{split[:-1]}:)" for split in _in_parentheses(found["splits"] or "") if split != "()"]
    parts += ["SC", *splits] if splits else []
    parts += [f"M({numbers['prefix']})"] if numbers["prefix"] > 0 else []
    return "".join(parts)


def _in_parentheses(text: str) -> list[str]:
    """Return the groups of a list like `(8,128)(2`, each with its closing parenthesis and without leading zeros."""
    groups = [re.sub(r"\d+", lambda number: str(int(number[0])), group.rstrip(",)")) for group in text.split("(")[1:]]
    return [f"({group})" for group in groups]


_NUMBERS = {"padding": 1, "bits": 0, "space": 0, "prefix": 0}


def _integer_type(name: str) -> str:
    if name == "invalid":
        # XLA's name for a type that is not an integer type.
        return name
    if name not in DTYPES:
        raise ParseError(f"expecting an unsigned integer type, but sees '{name}'")
    return name if DTYPES[name].is_integer else "invalid"
