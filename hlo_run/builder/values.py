"""Convert Python values to shapes and literals: shape text, arrays, dtypes, numbers, tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from hlo_run.errors import UsageError
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.shape_text import parse_shape
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape


@runtime_checkable
class HasShape(Protocol):
    """An array, or a description of one."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...


# Shape text (`f32[2,3]{0,1}`), a Shape, anything with `shape` and `dtype` (arrays, jax.ShapeDtypeStruct), or a sequence of
# these for a tuple.
ShapeLike: TypeAlias = "Shape | str | HasShape | Sequence[ShapeLike]"
# HLO's name (`bf16`), or a value that numpy converts to a dtype.
TypeLike: TypeAlias = object

_BY_NUMPY = {dtype.numpy: name for name, dtype in DTYPES.items()}
# The element types of Python numbers, as in JAX.
_PYTHON_TYPES = ((bool, "pred"), (int, "s32"), (float, "f32"), (complex, "c64"))


def type_of(value: TypeLike) -> str:
    """Return HLO's name of an element type; raises UsageError for an unknown one."""
    if isinstance(value, str) and value in DTYPES:
        return value
    given: Any = value  # numpy tells what it converts
    try:
        name = _BY_NUMPY.get(np.dtype(given))
    except TypeError:
        name = None
    if name is None:
        raise UsageError(f"{value!r} is not an element type", hint=f"one of {', '.join(DTYPES)}, or a numpy dtype")
    return name


def shape_of(value: ShapeLike) -> Shape:
    """Convert to a Shape; a missing layout is the default one. Raises UsageError, or ParseError for invalid text."""
    if isinstance(value, Shape):
        return value
    if isinstance(value, str):
        lexer = Lexer(value, "<shape>")
        shape = parse_shape(lexer)
        if lexer.kind != "eof":
            raise UsageError(f"'{value}' is not a shape", hint="a shape is written like f32[2,3] or (f32[], s32[4])")
        return shape
    if isinstance(value, HasShape):
        return Shape.array(type_of(value.dtype), tuple(int(size) for size in value.shape))
    if isinstance(value, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        return Shape.make_tuple(tuple(shape_of(shape) for shape in value))
    raise UsageError(f"{value!r} is not a shape", hint="a shape is written like f32[2,3] or (f32[], s32[4])")


def literal_of(value: object, element_type: TypeLike | None = None) -> tuple[Literal, Shape]:
    """Return the literal and shape of an array, a number, nested lists of numbers, or a tuple of these.

    Without `element_type`, arrays keep theirs and Python numbers become pred, s32, f32 or c64. Raises UsageError for a
    value that the type cannot represent.
    """
    if isinstance(value, tuple):
        elements: list[object] = [*value]
        parts = [literal_of(element, element_type) for element in elements]
        return tuple(literal for literal, _ in parts), Shape.make_tuple(tuple(shape for _, shape in parts))
    name = type_of(element_type) if element_type is not None else _natural_type(value)
    try:
        # A copy, so that a later change of the array does not change the module.
        array = np.array(value, dtype=DTYPES[name].numpy)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"cannot make a constant of {name}: {error}") from None
    if DTYPES[name].is_integer and not hasattr(value, "dtype") and np.asarray(value).dtype.kind in "fc":
        raise UsageError(f"a constant of {name} cannot be {value}", hint="convert it, or give another element type")
    return array, Shape.array(name, array.shape)


def _natural_type(value: object) -> str:
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return type_of(dtype)
    for python_type, name in _PYTHON_TYPES:
        if isinstance(value, python_type):
            return name
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"cannot make a constant: {error}") from None
    found = next((name for python_type, name in _PYTHON_TYPES if array.dtype == np.dtype(python_type)), None)
    return found or type_of(array.dtype)
