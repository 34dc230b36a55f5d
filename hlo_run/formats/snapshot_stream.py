"""XLA's stream format of an HloUnoptimizedSnapshot, whose arguments may be larger than the 2 GiB of a protobuf message.

The stream has the size of a message as a varint, the message, and the arguments. The message is an HloUnoptimizedSnapshot with
the module; in place of each argument it has the argument's size in bytes. An argument is the size of its ShapeProto (8 bytes),
the ShapeProto, and the elements of each array: in the order of its layout, little-endian, elements of less than 8 bits packed
from the low bits. Before the elements of an array with dynamic dimensions are its sizes (4 bytes each).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hlo_run.arrays import Array
from hlo_run.errors import ParseError, Unsupported
from hlo_run.formats.wire import base128
from hlo_run.hlo.values.dtype import DTYPES, DType

_SIZE_BYTES = 8
_LONGEST_VARINT = 10


def write_stream(snapshot: Any) -> bytes:
    """Return the stream of an HloUnoptimizedSnapshot message with arguments."""
    head = type(snapshot)()
    head.hlo_module.CopyFrom(snapshot.hlo_module)
    head.version = snapshot.version
    parts: list[bytes] = []
    for partition in snapshot.partitions:
        inputs = head.partitions.add()
        for argument in partition.arguments:
            shape = argument.shape.SerializeToString(deterministic=True)
            parts.append(b"".join([len(shape).to_bytes(_SIZE_BYTES, "little"), shape, *_arrays(argument)]))
            inputs.arguments_descriptors.add().argument_size_bytes = len(parts[-1])
    message = head.SerializeToString(deterministic=True)
    return b"".join([base128(len(message)), message, *parts])


def read_stream(data: bytes, snapshot_type: Any) -> Any | None:
    """Return the message with arguments, of the class `snapshot_type`; None if `data` does not begin like a stream.

    Raises ParseError if the arguments do not fit their sizes, Unsupported for an unknown element type.
    """
    from google.protobuf.message import DecodeError

    size, start = _varint(data)
    if not 0 < size <= len(data) - start:
        return None
    try:
        head = snapshot_type.FromString(data[start : start + size])
    except DecodeError:
        return None
    if not head.hlo_module.computations:
        return None
    rest = memoryview(data)[start + size :]
    snapshot = snapshot_type()
    snapshot.hlo_module.CopyFrom(head.hlo_module)
    for partition in head.partitions:
        inputs = snapshot.partitions.add()
        for descriptor in partition.arguments_descriptors:
            count = descriptor.argument_size_bytes
            if count < _SIZE_BYTES or count > len(rest):
                raise ParseError("the snapshot is cut off within its arguments")
            _read_argument(bytes(rest[:count]), inputs.arguments.add())
            rest = rest[count:]
    if rest:
        raise ParseError(f"the snapshot has {len(rest)} bytes after its last argument")
    return snapshot


def _varint(data: bytes) -> tuple[int, int]:
    """Return the number at the start of `data`, and where it ends; 0 if there is none."""
    value = 0
    for place, byte in enumerate(data[:_LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, place + 1
    return 0, 0


def _dtype(shape: Any) -> DType:
    """Return the element type of a ShapeProto."""
    kinds = shape.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_number
    name = kinds[shape.element_type].name.lower() if shape.element_type in kinds else "unknown"
    if name not in DTYPES:
        raise Unsupported(f"the snapshot has an argument with element type '{name}'")
    return DTYPES[name]


def _is_tuple(shape: Any) -> bool:
    return (
        bool(shape.tuple_shapes)
        or shape.element_type == shape.DESCRIPTOR.file.pool.FindEnumTypeByName("xla.PrimitiveType").values_by_name["TUPLE"].number
    )


def _bits(dtype: DType) -> int:
    """Return the bits that an element takes in the stream."""
    if dtype.name == "pred":
        return 1
    return dtype.bits if dtype.bits >= 8 or 8 % dtype.bits == 0 else 8


def _arrays(literal: Any) -> Iterator[bytes]:
    """Yield the bytes of the arrays of a LiteralProto, in order."""
    if _is_tuple(literal.shape):
        for element in literal.tuple_literals:
            yield from _arrays(element)
        return
    dtype = _dtype(literal.shape)
    if any(literal.shape.is_dynamic_dimension):
        yield np.array(literal.dynamic_sizes, "<i4").tobytes()
    data = getattr(literal, f"{dtype.name}s")
    if not isinstance(data, bytes):
        part = {"c64": "<f4", "c128": "<f8", "pred": "u1"}.get(dtype.name, dtype.numpy)
        data = np.array(data, np.dtype(part).newbyteorder("<")).tobytes()
    bits = _bits(dtype)
    yield data if bits >= 8 else _packed(np.frombuffer(data, np.uint8), bits)


def _packed(elements: Array, bits: int) -> bytes:
    """Return elements of `bits` bits, one in each byte, with as many as fit into a byte."""
    each = 8 // bits
    padded = np.zeros(-(-elements.size // each) * each, np.uint8)
    padded[: elements.size] = elements & ((1 << bits) - 1)
    groups = padded.reshape(-1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(groups, axis=1).astype(np.uint8).tobytes()


def _read_argument(data: bytes, literal: Any) -> None:
    """Fill an empty LiteralProto."""
    size = int.from_bytes(data[:_SIZE_BYTES], "little")
    if size > len(data) - _SIZE_BYTES:
        raise ParseError("the snapshot is cut off within the shape of an argument")
    literal.shape.ParseFromString(data[_SIZE_BYTES : _SIZE_BYTES + size])
    if _read_arrays(data, _SIZE_BYTES + size, literal) != len(data):
        raise ParseError("the snapshot has an argument whose size is not that of its shape")


def _read_arrays(data: bytes, start: int, literal: Any) -> int:
    """Fill a LiteralProto that has a shape from the bytes at `start`; return where they end."""
    shape = literal.shape
    if _is_tuple(shape):
        for inner in shape.tuple_shapes:
            element = literal.tuple_literals.add()
            element.shape.CopyFrom(inner)
            start = _read_arrays(data, start, element)
        return start
    dtype, count = _dtype(shape), math.prod(shape.dimensions)
    if any(shape.is_dynamic_dimension):
        end = start + 4 * len(shape.dimensions)
        literal.dynamic_sizes.extend(np.frombuffer(data[start:end].ljust(end - start, b"\0"), "<i4").tolist())
        start = end
    bits = _bits(dtype)
    end = start + -(-count * bits // 8)
    if end > len(data) or count < 0:
        raise ParseError("the snapshot is cut off within an argument")
    raw = data[start:end]
    if bits < 8:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        raw = ((np.frombuffer(raw, np.uint8)[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].tobytes()
    field = f"{dtype.name}s"
    if isinstance(getattr(literal, field), bytes):
        setattr(literal, field, raw)
    else:
        part = {"c64": "<f4", "c128": "<f8", "pred": "u1"}.get(dtype.name, dtype.numpy)
        getattr(literal, field).extend(np.frombuffer(raw, np.dtype(part).newbyteorder("<")).tolist())
    return end
