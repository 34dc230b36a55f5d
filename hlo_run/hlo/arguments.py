"""Converts a caller's arguments to literals of a module's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.whole_shape import whole_shape

# An array (numpy's, or any object that numpy converts to one), a Python number or nested list; a tuple for a tuple.
ArgumentLike: TypeAlias = object


def fit_arguments(module: HloModule, values: Sequence[ArgumentLike], source: str = "the caller") -> list[Literal]:
    """Return one literal per entry parameter; raises UsageError unless number, dimensions and element types fit.

    A module that is divided between partitions takes whole arrays. Arrays must have the parameter's element type; Python numbers
    and lists are converted to it. `source` names the caller in errors.
    """
    parameters = module.entry.parameters
    if len(values) != len(parameters):
        raise UsageError(f"'{module.name}' takes {len(parameters)} arguments, but {source} gives {len(values)}")
    shapes = [parameter.shape for parameter in parameters]
    if module.divided is not None:
        shapes = [whole_shape(shape, own) for shape, own in zip(shapes, module.divided.parameters, strict=True)]
    rows = enumerate(zip(parameters, shapes, values, strict=True))
    return [_fit(shape, value, f"argument {number} ('{parameter.name}')") for number, (parameter, shape, value) in rows]


def _fits(dims: tuple[int, ...], shape: Shape) -> bool:
    dynamic = shape.dynamic_dims or (False,) * shape.rank
    return len(dims) == shape.rank and all(
        size == bound or (is_open and size < bound) for size, bound, is_open in zip(dims, shape.dims, dynamic, strict=True)
    )


def _fit(shape: Shape, value: ArgumentLike, what: str) -> Literal:
    if shape.is_tuple:
        elements: list[object] = [*value] if isinstance(value, tuple | list) else [value]
        if len(elements) != len(shape.tuple_shapes):
            raise UsageError(f"{what} must be a tuple of {len(shape.tuple_shapes)} values, but has {len(elements)}")
        pairs = enumerate(zip(shape.tuple_shapes, elements, strict=True))
        return tuple(_fit(inner, element, f"{what}, element {number},") for number, (inner, element) in pairs)
    if not shape.is_array:
        return ()  # a token
    expected = shape.dtype.numpy
    typed = hasattr(value, "dtype")
    if typed and not hasattr(value, "__array__"):
        raise UsageError(f"{what} is a {type(value).__name__}, which has no values")
    try:
        array = np.asarray(value) if typed else np.asarray(value).astype(expected)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{what} is not an array of {shape.element_type}: {error}") from None
    if array.dtype != expected:
        raise UsageError(f"{what} has elements of {array.dtype}, but the parameter is {shape.to_string(layout=False)}")
    if not _fits(array.shape, shape):
        raise UsageError(f"{what} has dimensions {list(array.shape)}, but the parameter is {shape.to_string(layout=False)}")
    return array
