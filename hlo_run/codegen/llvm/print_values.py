"""Prints types and constants of the LLVM dialect as LLVM IR text."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TypeGuard

from xdsl.dialects import llvm
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
)
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from hlo_run.dialects.types import is_vector
from hlo_run.errors import InternalError

_FLOATS: dict[type[Attribute], str] = {
    Float16Type: "half",
    BFloat16Type: "bfloat",
    Float32Type: "float",
    Float64Type: "double",
}


_BITS: dict[Attribute, int] = {Float32Type(): 32, Float64Type(): 64}


@lru_cache(maxsize=1024)
def type_text(type_: Attribute) -> str:
    """Return LLVM's name of a type of the LLVM dialect. Raises InternalError for a type without one."""
    if isa(type_, IntegerType):
        return f"i{type_.width.data}"
    if isinstance(type_, llvm.LLVMPointerType):
        space = type_.addr_space
        return f"ptr addrspace({space.data})" if isinstance(space, IntAttr) and space.data else "ptr"
    if is_vector(type_):
        return f"<{type_.get_shape()[0]} x {type_text(type_.get_element_type())}>"
    if isinstance(type_, llvm.LLVMArrayType):
        return f"[{type_.size.data} x {type_text(type_.type)}]"
    if isinstance(type_, llvm.LLVMStructType):
        return "{ " + ", ".join(type_text(member) for member in type_.types) + " }"
    if isinstance(type_, llvm.LLVMVoidType):
        return "void"
    name = _FLOATS.get(type(type_))
    if name is None:
        raise InternalError(f"type {type_} has no LLVM IR text")
    return name


@lru_cache(maxsize=1024)
def intrinsic_suffix(type_: Attribute) -> str:
    """Return the suffix of a type in an intrinsic's name: `f32`, `bf16`, `v4i32`."""
    if is_vector(type_):
        return f"v{type_.get_shape()[0]}{intrinsic_suffix(type_.get_element_type())}"
    return str(type_)


@lru_cache(maxsize=4096)
def constant_text(value: Attribute, type_: Attribute) -> str:
    """Return the text of a constant without its type. Raises InternalError for a constant without LLVM IR text."""
    if isinstance(value, IntegerAttr):
        return _integer_text(value.value.data, type_)
    if _is_float(value):
        return float_text(value.value.data, value.type)
    if _is_dense(value):
        return _dense_text(value, type_)
    raise InternalError(f"constant {value} has no LLVM IR text")


def _is_float(value: object) -> TypeGuard[FloatAttr[AnyFloat]]:
    return isinstance(value, FloatAttr)


def _is_dense(value: object) -> TypeGuard[DenseIntOrFPElementsAttr]:
    return isinstance(value, DenseIntOrFPElementsAttr)


def _integer_text(number: int, type_: Attribute) -> str:
    if isa(type_, IntegerType) and type_.width.data == 1:
        return "true" if number else "false"
    return str(number)


def float_text(number: float, type_: AnyFloat) -> str:
    """Return a float constant: decimal if six digits are exact, else LLVM's hexadecimal form.

    The hexadecimal form has the bits of a double for f32 and f64, and the type's own bits after `0xH` (f16) or `0xR` (bf16).
    """
    decimal = f"{number:.6e}"
    if float(decimal) == number and number not in (float("inf"), float("-inf")):
        return decimal
    match type_:
        case Float16Type():
            return f"0xH{int.from_bytes(type_.pack((number,)), 'little'):04X}"
        case BFloat16Type():
            return f"0xR{int.from_bytes(type_.pack((number,)), 'little'):04X}"
        case _:
            return f"0x{int.from_bytes(struct.pack('>d', number)):016X}"


def _dense_text(value: DenseIntOrFPElementsAttr, type_: Attribute) -> str:
    if is_vector(type_):
        element, count, brackets = type_.get_element_type(), type_.get_shape()[0], "<>"
    elif isinstance(type_, llvm.LLVMArrayType):
        element, count, brackets = type_.type, type_.size.data, "[]"
    else:
        raise InternalError(f"a dense constant of type {type_} has no LLVM IR text")
    data = value.data.data
    if not any(data):
        return "zeroinitializer"
    size = len(data) // len(value)
    words = [int.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size)]
    texts = [f"{type_text(element)} {_word_text(word, element)}" for word in words]
    splat = texts * count if len(texts) == 1 else texts
    return f"{brackets[0]}{', '.join(splat)}{brackets[1]}"


def _word_text(bits: int, element: Attribute) -> str:
    match element:
        case llvm.LLVMStructType():
            # A complex number. The real part comes first, so it is the low half.
            part = element.types.data[0]
            halves = bits & ((1 << _BITS[part]) - 1), bits >> _BITS[part]
            return f"{{ {', '.join(f'{type_text(part)} {_word_text(half, part)}' for half in halves)} }}"
        case Float16Type():
            return f"0xH{bits:04X}"
        case BFloat16Type():
            return f"0xR{bits:04X}"
        case Float32Type():
            return float_text(struct.unpack("<f", bits.to_bytes(4, "little"))[0], element)
        case Float64Type():
            return f"0x{bits:016X}"
        case IntegerType() if element.width.data == 1:
            return "true" if bits else "false"
        case _:
            return str(bits)
