"""Convert a LiteralProto to a literal, one numpy array in logical order per leaf, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.literal import Array, Literal
from hlo_run.hlo.values.shape import Shape

_MOST_DIMS, _MOST_ELEMENTS = 64, 1 << 56


def literal_of_proto(message: Any, what: str) -> Literal:
    """Return a literal. An array with dynamic sizes has these sizes. `what` names the literal in errors.

    Raises ParseError if its data does not fit its shape, Unsupported for an unknown type.
    """
    kind = message.shape.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_number
    name: str = kind[message.shape.element_type].name.lower() if message.shape.element_type in kind else "unknown"
    if name == "tuple":
        return tuple(literal_of_proto(element, what) for element in message.tuple_literals)
    if name == "token":
        return ()
    if name not in DTYPES:
        raise Unsupported(f"{what} has element type '{name}'")
    dims = tuple(message.shape.dimensions)
    # numpy also limits the product of an empty array's other dimensions.
    if len(dims) > _MOST_DIMS or min(dims, default=0) < 0 or math.prod(size or 1 for size in dims) >= _MOST_ELEMENTS:
        raise ParseError(f"{what} has dimensions that no array has")
    flat = _elements(message, DTYPES[name])
    count = int(np.prod(dims, dtype=object))
    if flat.size != count:
        raise ParseError(f"{what} has {flat.size} elements, but its shape has {count}")
    # The data is in layout order: the first dimension of minor_to_major varies fastest.
    order = list(message.shape.layout.minor_to_major)[::-1] or list(range(len(dims)))
    if sorted(order) != list(range(len(dims))):
        raise ParseError(f"{what} has {len(dims)} dimensions, which are not those of its layout")
    sizes = tuple(message.dynamic_sizes) or dims
    if len(sizes) != len(dims) or any(not 0 <= size <= bound for size, bound in zip(sizes, dims, strict=True)):
        raise ParseError(f"{what} has dynamic sizes that are not within its dimensions")
    if not count:
        return np.zeros(sizes, DTYPES[name].numpy)
    physical = flat.reshape([dims[dim] for dim in order])
    logical = physical.transpose(np.argsort(order))[tuple(map(slice, sizes))]
    return np.ascontiguousarray(logical).reshape(sizes)


def _elements(message: Any, dtype: DType) -> Array:
    """Return the elements in the order of the message's data."""
    data = getattr(message, f"{dtype.name}s")
    if dtype.is_complex:
        part = np.float32 if dtype.name == "c64" else np.float64
        parts = np.array(data, part)
        return parts.view(dtype.numpy) if len(parts) % 2 == 0 else np.zeros(0, dtype.numpy)
    if not isinstance(data, bytes):
        return np.array(data, dtype.numpy)
    if dtype.is_integer and dtype.bits < 8:
        # One element per byte, in its low bits.
        bits = np.frombuffer(data, np.uint8).astype(np.int8) & ((1 << dtype.bits) - 1)
        signed = bits - ((bits >> (dtype.bits - 1)) << dtype.bits) if dtype.is_signed else bits
        return signed.astype(dtype.numpy)
    if len(data) % dtype.numpy.itemsize:
        return np.zeros(0, dtype.numpy)
    little = np.dtype(dtype.numpy).newbyteorder("<") if dtype.numpy.kind != "V" else dtype.numpy
    return np.frombuffer(data, little).astype(dtype.numpy)


def fill_proto(message: Any, literal: Literal, shape: Shape) -> None:
    """Fill an empty LiteralProto as XLA's `Literal::ToProto` does, with default layouts.

    The data of an array with dynamic sizes fills its bounds, with zeros beyond the sizes. Raises Unsupported for an element type
    that the schema of the message lacks.
    """
    _fill_shape(message.shape, shape)
    if shape.is_tuple:
        assert isinstance(literal, tuple), "a tuple has a tuple's shape"
        for element, inner in zip(literal, shape.tuple_shapes, strict=True):
            fill_proto(message.tuple_literals.add(), element, inner)
    elif shape.is_array:
        assert not isinstance(literal, tuple), "an array has an array's shape"
        if any(shape.dynamic_dims or ()):
            message.dynamic_sizes.extend(literal.shape)
            whole = np.zeros(shape.dims, shape.dtype.numpy)
            whole[tuple(map(slice, literal.shape))] = literal
            literal = whole
        _fill_elements(message, literal, shape.dtype)


def _fill_shape(message: Any, shape: Shape) -> None:
    name = "TUPLE" if shape.is_tuple else shape.element_type.upper()
    known = message.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_name
    if name not in known:
        raise Unsupported(f"this jaxlib's literals have no element type '{shape.element_type}'")
    message.element_type = known[name].number
    if shape.is_tuple:
        for inner in shape.tuple_shapes:
            _fill_shape(message.tuple_shapes.add(), inner)
    elif shape.is_array:
        message.dimensions.extend(shape.dims)
        message.is_dynamic_dimension.extend(shape.dynamic_dims or (False,) * shape.rank)
        message.layout.minor_to_major.extend(reversed(range(shape.rank)))
        message.layout.tail_padding_alignment_in_elements = 1


def _fill_elements(message: Any, array: Array, dtype: DType) -> None:
    field = f"{dtype.name}s"
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.is_complex:
        getattr(message, field).extend(flat.view(np.float32 if dtype.name == "c64" else np.float64).tolist())
    elif isinstance(getattr(message, field), bytes):
        data = flat.tobytes() if flat.dtype.kind == "V" else flat.astype(flat.dtype.newbyteorder("<")).tobytes()
        if dtype.bits < 8:  # one element per byte, in its low bits
            data = (np.frombuffer(data, np.uint8) & ((1 << dtype.bits) - 1)).tobytes()
        setattr(message, field, data)
    else:
        getattr(message, field).extend(flat.tolist())
