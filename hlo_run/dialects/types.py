"""Type guards and queries for xDSL types and values, whose generic classes are only partly typed."""

from __future__ import annotations

from functools import cache
from typing import Final, TypeGuard

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    ComplexType,
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    MemRefType,
    TensorType,
    VectorType,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import AttrSizedOperandSegments

SEGMENTS: Final = AttrSizedOperandSegments.attribute_name


def is_tensor(type_: Attribute) -> TypeGuard[TensorType[Attribute]]:
    """True for tensor types."""
    return isinstance(type_, TensorType)


def is_integer(type_: Attribute) -> TypeGuard[IntegerType]:
    """True for integer types of any width; false for index."""
    return isinstance(type_, IntegerType)


def is_complex(type_: Attribute) -> TypeGuard[ComplexType[AnyFloat]]:
    """True for complex types; their parts are floats."""
    return isinstance(type_, ComplexType)


def is_array(attribute: Attribute | None) -> TypeGuard[ArrayAttr[Attribute]]:
    """True for array attributes, `[a, b]`."""
    return isinstance(attribute, ArrayAttr)


def is_vector(type_: Attribute) -> TypeGuard[VectorType[Attribute]]:
    """True for vector types."""
    return isinstance(type_, VectorType)


def is_memref(type_: Attribute) -> TypeGuard[MemRefType[Attribute]]:
    """True for memrefs with a rank."""
    return isinstance(type_, MemRefType)


def tensor_type(value: SSAValue) -> TensorType[Attribute]:
    """Return the type of a value that must be a tensor."""
    assert is_tensor(value.type), f"expected a tensor, got {value.type}"
    return value.type


def constant_int(value: SSAValue) -> int | None:
    """Return the number in an `arith.constant` of integer or index type, None for other values. i1 gives 0 or -1."""
    op = value.owner
    # The exact classes and the property itself: passes ask about most operands, and xDSL's ways there take ten times as long.
    if type(op) is not arith.ConstantOp:
        return None
    constant = op.properties["value"]
    return constant.value.data if type(constant) is IntegerAttr else None


@cache
def operand_segments(*sizes: int) -> DenseArrayBase[IntegerType]:
    """Return the property SEGMENTS of an op with several variadic operands: how many values each has."""
    return DenseArrayBase.from_list(i32, sizes)
