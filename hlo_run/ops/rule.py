"""What shape rules share: the type of a rule, and the checks and refusals that many of them need.

A rule takes an instruction whose operands have shapes and returns the shape that the instruction must have; where the
text decides a part of it (`convert`'s element type), the rule takes that part from the written shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.shape import Shape

Rule: TypeAlias = "Callable[[HloInstruction], Shape]"


def refuse(message: str, hint: str = "") -> ParseError:
    """Return the error of a rule; `infer` adds the instruction and its place."""
    return ParseError(message, hint=hint)


def brief(shape: Shape) -> str:
    """Return the shape without layouts, as messages show it."""
    return shape.to_string(layout=False)


def is_open(shape: Shape) -> bool:
    """True if the text left the shape out."""
    return shape.element_type == "unknown"


def array_operand(instruction: HloInstruction, number: int = 0) -> Shape:
    """Return the shape of an operand that must be an array."""
    shape = operand(instruction, number)
    if not shape.is_array:
        raise refuse(f"operand {number} must be an array, but has shape {brief(shape)}")
    return shape


def operand(instruction: HloInstruction, number: int) -> Shape:
    """Return the shape of operand `number`; refuse if there are fewer."""
    if number >= len(instruction.operands):
        raise refuse(f"expects at least {number + 1} operands, but has {len(instruction.operands)} operands")
    return instruction.operands[number].shape


def array_operands(instruction: HloInstruction) -> list[Shape]:
    """Return the shapes of all operands, each of which must be an array."""
    return [array_operand(instruction, number) for number in range(len(instruction.operands))]


def same_dims(shapes: Sequence[Shape]) -> None:
    """Refuse shapes of different dimensions."""
    for shape in shapes[1:]:
        if shape.dims != shapes[0].dims:
            raise refuse(f"operand shapes differ in dimensions: {brief(shapes[0])} and {brief(shape)}")


def same_types(shapes: Sequence[Shape]) -> None:
    """Refuse shapes of different element types."""
    for shape in shapes[1:]:
        if shape.element_type != shapes[0].element_type:
            raise refuse(f"operand element types differ: {brief(shapes[0])} and {brief(shape)}")


def dim_list(instruction: HloInstruction, attribute: str, rank: int, ordered: bool = False) -> tuple[int, ...]:
    """Return the dimension numbers of an attribute: distinct, each within `rank`, ascending if `ordered`."""
    dims: tuple[int, ...] = instruction.attrs.get(attribute, ())
    for dim in dims:
        if not 0 <= dim < rank:
            raise refuse(f"{attribute} names dimension {dim}, but the rank is {rank}")
    if len(set(dims)) != len(dims):
        raise refuse(f"{attribute} names a dimension twice: {_braces(dims)}")
    if ordered and list(dims) != sorted(dims):
        raise refuse(f"{attribute} must be ascending, but is {_braces(dims)}")
    return dims


def _braces(dims: Sequence[Any]) -> str:
    return "{" + ",".join(map(str, dims)) + "}"


def one_dim(instruction: HloInstruction, attribute: str, rank: int) -> int:
    """Return the single dimension number of a list attribute."""
    dims = dim_list(instruction, attribute, rank)
    if len(dims) != 1:
        raise refuse(f"{attribute} must name exactly one dimension, but is {_braces(dims)}")
    return dims[0]


def resized(shape: Shape, dims: Sequence[int], element_type: str | None = None) -> Shape:
    """Return an array of other dimensions in the default layout, or in `shape`'s own if the rank stays."""
    kind = element_type or shape.element_type
    if len(dims) == shape.rank and not any(shape.dynamic_dims):
        return replace(shape, element_type=kind, dims=tuple(dims))
    return Shape.array(kind, tuple(dims))


def tuple_or_one(shapes: Sequence[Shape]) -> Shape:
    """Return the only shape, or the tuple of several."""
    return shapes[0] if len(shapes) == 1 else Shape.make_tuple(tuple(shapes))


def check_parameters(computation: HloComputation, shapes: Sequence[Shape], what: str) -> None:
    """Refuse a called computation whose parameters do not take `shapes` (float precision may differ)."""
    parameters = computation.parameters
    if len(parameters) != len(shapes):
        raise refuse(f"{what} '{computation.name}' has {len(parameters)} parameters, but must have {len(shapes)}")
    for number, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if not compatible_up_to_precision(parameter.shape, shape):
            raise refuse(
                f"parameter {number} of {what} '{computation.name}': expected {brief(shape)}, found {brief(parameter.shape)}"
            )


def compatible_up_to_precision(first: Shape, second: Shape) -> bool:
    """True if the shapes are equal up to layouts and the width of floats."""
    if first.is_tuple and second.is_tuple:
        pairs = zip(first.tuple_shapes, second.tuple_shapes, strict=False)
        return len(first.tuple_shapes) == len(second.tuple_shapes) and all(compatible_up_to_precision(a, b) for a, b in pairs)
    if first.is_array and second.is_array and first.dtype.is_float and second.dtype.is_float:
        return first.dims == second.dims
    return first.compatible(second)
