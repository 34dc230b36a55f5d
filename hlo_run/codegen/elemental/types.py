"""Converts HLO element types and shapes to IR types: PRED is i8, integers are signless, layouts are tensor encodings."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    Float4E2M1FNType,
    Float8E3M4Type,
    Float8E4M3B11FNUZType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E4M3Type,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    NoneAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute

from hlo_run.errors import Unsupported, Where
from hlo_run.hlo.values.shape import Shape

# Floats of at most 8 bits that kernels hold; their names are HLO's but for capitals.
_SMALL_FLOATS = (
    Float8E5M2Type,
    Float8E4M3Type,
    Float8E4M3FNType,
    Float8E4M3B11FNUZType,
    Float8E5M2FNUZType,
    Float8E4M3FNUZType,
    Float8E3M4Type,
    Float8E8M0FNUType,
    Float4E2M1FNType,
)
_ELEMENT_TYPES: dict[str, Attribute] = {
    "pred": IntegerType(8),
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
    "f32": Float32Type(),
    "f64": Float64Type(),
    **{kind.name.lower(): kind() for kind in _SMALL_FLOATS},
    "c64": ComplexType(Float32Type()),
    "c128": ComplexType(Float64Type()),
    **{f"{sign}{bits}": IntegerType(bits) for sign in "su" for bits in (1, 2, 4, 8, 16, 32, 64)},
}


def element_type(name: str, where: Where | None = None) -> Attribute:
    """Return the IR type of an HLO element type. Raises Unsupported for types that kernels do not support."""
    found = _ELEMENT_TYPES.get(name)
    if found is None:
        raise Unsupported(f"elements of type {name} in a kernel", where, hint="convert to a supported element type first")
    return found


@lru_cache(maxsize=4096)
def _tensor_type(name: str, dims: tuple[int, ...], minor_to_major: tuple[int, ...]) -> TensorType[Attribute]:
    encoding: Attribute = NoneAttr()
    if minor_to_major != tuple(reversed(range(len(dims)))):
        order = BytesAttr(np.array(minor_to_major, dtype="<i8").tobytes())
        encoding = DenseIntOrFPElementsAttr(TensorType(i64, [len(dims)]), order)
    return TensorType(_ELEMENT_TYPES[name], dims, encoding)


def tensor_type(shape: Shape, where: Where | None = None) -> TensorType[Attribute]:
    """Return the tensor type of an array. A layout other than the default becomes the encoding, minor to major.

    Raises Unsupported as `element_type` does.
    """
    element_type(shape.element_type, where)
    return _tensor_type(shape.element_type, shape.dims, shape.minor_to_major)
