"""Convert a LiteralProto to a literal: one numpy array in logical order per leaf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.literal import Array, Literal

_MOST_DIMS, _MOST_ELEMENTS = 64, 1 << 56


def literal_of_proto(message: Any, number: int) -> Literal:
    """Return the literal of argument `number`.

    Raises ParseError if its data does not fit its shape, Unsupported for an unknown type or a dynamic size.
    """
    kind = message.shape.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_number
    name: str = kind[message.shape.element_type].name.lower() if message.shape.element_type in kind else "unknown"
    if name == "tuple":
        return tuple(literal_of_proto(element, number) for element in message.tuple_literals)
    if name not in DTYPES:
        raise Unsupported(f"argument {number} of the snapshot has element type '{name}'")
    if message.dynamic_sizes:
        raise Unsupported(f"argument {number} of the snapshot has a dynamic size")
    dims = tuple(message.shape.dimensions)
    # numpy also limits the product of an empty array's other dimensions.
    if len(dims) > _MOST_DIMS or min(dims, default=0) < 0 or math.prod(size or 1 for size in dims) >= _MOST_ELEMENTS:
        raise ParseError(f"argument {number} of the snapshot has dimensions that no array has")
    flat = _elements(message, DTYPES[name])
    count = int(np.prod(dims, dtype=object))
    if flat.size != count:
        raise ParseError(f"argument {number} of the snapshot has {flat.size} elements, but its shape has {count}")
    # The data is in layout order: the first dimension of minor_to_major varies fastest.
    order = list(message.shape.layout.minor_to_major)[::-1] or list(range(len(dims)))
    if sorted(order) != list(range(len(dims))):
        raise ParseError(f"argument {number} of the snapshot has {len(dims)} dimensions, which are not those of its layout")
    if not count:
        return np.zeros(dims, DTYPES[name].numpy)
    physical = flat.reshape([dims[dim] for dim in order])
    return np.ascontiguousarray(physical.transpose(np.argsort(order))).reshape(dims)


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
