"""Helpers shared by the shape rules: the type of a rule, checks, and errors.

A rule takes an instruction whose operands have shapes and returns the shape that the instruction must have. If the text
determines a part of it (`convert`'s element type), the rule takes that part from the written shape. It refuses what XLA's shape
inference or verifier refuses, whether the shape is written or not. To refuse is to raise ParseError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.records import replace

Rule: TypeAlias = "Callable[[HloInstruction], Shape]"

SCALAR_PRED = Shape.array("pred", ())
TOKEN = Shape("token")


def refuse(message: str, hint: str = "") -> ParseError:
    """Return the error of a rule; `infer` adds the instruction and its source location."""
    return ParseError(message, hint=hint)


def brief(shape: Shape) -> str:
    """Return the text of the shape without layouts, for messages."""
    return shape.to_string(layout=False)


def is_open(shape: Shape) -> bool:
    """Return True if the text omits the shape."""
    return shape.element_type == "unknown"


def array_operand(instruction: HloInstruction, number: int = 0) -> Shape:
    """Return the shape of an operand; refuse one that is not an array."""
    shape = operand(instruction, number)
    if not shape.is_array:
        raise refuse(f"operand {number} must be an array, but has shape {brief(shape)}")
    return shape


def operand(instruction: HloInstruction, number: int) -> Shape:
    """Return the shape of operand `number`; refuse an instruction with fewer operands."""
    if number >= len(instruction.operands):
        raise refuse(f"expects at least {number + 1} operands, but has {len(instruction.operands)} operands")
    return instruction.operands[number].shape


def array_operands(instruction: HloInstruction) -> list[Shape]:
    """Return the shapes of all operands; refuse operands that are not arrays."""
    return [array_operand(instruction, number) for number in range(len(instruction.operands))]


def same_dims(shapes: Sequence[Shape]) -> None:
    """Refuse shapes with different dimensions."""
    for shape in shapes[1:]:
        if shape.dims != shapes[0].dims:
            raise refuse(f"operand shapes differ in dimensions: {brief(shapes[0])} and {brief(shape)}")


def same_types(shapes: Sequence[Shape]) -> None:
    """Refuse shapes with different element types; as in XLA's rules, floats of different widths are equal here."""
    for shape in shapes[1:]:
        if not same_type(shape, shapes[0]):
            raise refuse(f"operand element types differ: {brief(shapes[0])} and {brief(shape)}")


def same_type(first: Shape, second: Shape) -> bool:
    """Return True if the element types are equal or both are floats."""
    if first.element_type == second.element_type:
        return True
    return first.is_array and second.is_array and first.dtype.is_float and second.dtype.is_float


def wider_type(first: str, second: str) -> str:
    """Return the element type with more range, then more precision; refuse two float types that are equal in both."""
    if first == second:
        return first
    one, two = _precision(first), _precision(second)
    if one == two:
        raise refuse(f"neither of {first} and {second} is the wider type", hint="convert one operand to the other's type")
    return first if one > two else second


def _precision(name: str) -> tuple[int, int, int, int, bool]:
    dtype = DTYPES[name]
    part = DTYPES[{"c64": "f32", "c128": "f64"}.get(name, name)]
    exponent, mantissa = (part.format.max_exponent, part.format.mantissa_bits) if part.format else (-1, -1)
    return dtype.is_complex, exponent, mantissa, part.bits, dtype.is_signed


def dim_list(instruction: HloInstruction, attribute: str, rank: int, ordered: bool = False) -> tuple[int, ...]:
    """Return the dimension numbers of an attribute; refuse repeats, numbers outside `rank`, and (if `ordered`) unsorted ones."""
    dims = instruction.ints(attribute)
    for dim in dims:
        if not 0 <= dim < rank:
            raise refuse(f"{attribute} names dimension {dim}, but the rank is {rank}")
    if len(set(dims)) != len(dims):
        raise refuse(f"{attribute} names a dimension twice: {braces(dims)}")
    if ordered and list(dims) != sorted(dims):
        raise refuse(f"{attribute} must be ascending, but is {braces(dims)}")
    return dims


def one_dim(instruction: HloInstruction, attribute: str, rank: int) -> int:
    """Return the only dimension number of a list attribute."""
    dims = dim_list(instruction, attribute, rank)
    if len(dims) != 1:
        raise refuse(f"{attribute} must name exactly one dimension, but is {braces(dims)}")
    return dims[0]


def dynamic_dims(shape: Shape) -> tuple[bool, ...]:
    """Return for each dimension whether its size is dynamic."""
    return shape.dynamic_dims or (False,) * shape.rank


def make_array(element_type: str, dims: Sequence[int], dynamic: Sequence[bool] = ()) -> Shape:
    """Return an array shape in the default layout; all dimensions are static without `dynamic`."""
    order = tuple(range(len(dims) - 1, -1, -1))
    return Shape(element_type, tuple(dims), Layout(order), (), tuple(dynamic) if any(dynamic) else ())


def bit_width(element_type: str) -> int:
    """Return the bits of an element as XLA's shape rules count them: 8 for types of 6 bits."""
    bits = DTYPES[element_type].bits
    return 8 if bits == 6 else bits


def changed_type(shape: Shape, element_type: str) -> Shape:
    """Return the shape with another element type; the layout's element size is only kept for types below 8 bits."""
    layout = shape.layout
    if layout and "E(" in layout.extra and bit_width(element_type) >= 8:
        layout = replace(layout, extra=_ELEMENT_SIZE.sub("", layout.extra))
    return replace(shape, element_type=element_type, layout=layout)


_ELEMENT_SIZE = re.compile(r"E\(\d+\)")


def with_element_size(shape: Shape, other: Shape) -> Shape:
    """Return the shape with the element size of `other`'s layout."""
    ours = shape.layout.extra if shape.layout else ""
    found = _ELEMENT_SIZE.search(other.layout.extra) if other.layout else None
    if shape.layout is None or (found is None and "E(" not in ours):
        return shape
    tiles, space, rest = _ELEMENT_SIZE.sub("", ours).partition("S(")
    return replace(shape, layout=replace(shape.layout, extra=f"{tiles}{found[0] if found else ''}{space}{rest}"))


def with_dynamic(shape: Shape, dynamic: Sequence[bool]) -> Shape:
    """Return the shape with `dynamic` as its dynamic dimensions."""
    flags = tuple(dynamic) if any(dynamic) else ()
    return shape if flags == shape.dynamic_dims else replace(shape, dynamic_dims=flags)


def tuple_or_one(shapes: Sequence[Shape]) -> Shape:
    """Return the only shape, or the tuple of several."""
    return shapes[0] if len(shapes) == 1 else Shape.make_tuple(tuple(shapes))


def results_of(shape: Shape) -> tuple[Shape, ...]:
    """Return the elements of a tuple, or the shape itself."""
    return shape.tuple_shapes if shape.is_tuple else (shape,)


def called(instruction: HloInstruction, attribute: str) -> HloComputation:
    """Return the only computation of an attribute."""
    found = instruction.called.get(attribute, ())
    if len(found) != 1:
        raise refuse(f"{attribute} must name one computation, but names {len(found)}")
    return found[0]


def check_parameters(computation: HloComputation, shapes: Sequence[Shape], what: str) -> None:
    """Refuse a called computation whose parameters do not have exactly the shapes `shapes`; `what` names it in messages."""
    parameters = computation.parameters
    if len(parameters) != len(shapes):
        raise refuse(f"{what} '{computation.name}' has {len(parameters)} parameters, but must have {len(shapes)}")
    for number, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if parameter.shape is not shape and not parameter.shape.compatible(shape):
            raise wrong_parameter(computation, number, shape, what)


def wrong_parameter(computation: HloComputation, number: int, expected: Shape, what: str) -> ParseError:
    """Return the error for a parameter that does not have the expected shape."""
    found = brief(computation.parameters[number].shape)
    return refuse(f"parameter {number} of {what} '{computation.name}': expected {brief(expected)}, found {found}")


def compatible_up_to_precision(first: Shape, second: Shape) -> bool:
    """Return True if the shapes are equal except for layouts and float widths."""
    waiting = [(first, second)]
    while waiting:
        one, two = waiting.pop()
        if one is two:
            continue
        if one.dims != two.dims or not same_type(one, two) or len(one.tuple_shapes) != len(two.tuple_shapes):
            return False
        waiting += zip(one.tuple_shapes, two.tuple_shapes, strict=True)
    return True
