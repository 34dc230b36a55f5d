"""Folds arith, complex, vector and tensor ops to one of their operands or to a constant.

Integers are signed and wrapped to their width; `index` has 64 bits. All folds are exact: float arithmetic on constants,
which rounds, is left to LLVM.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from xdsl.dialects import arith, complex, tensor, vector
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.dialects.types import constant_int, is_integer
from hlo_run.dialects.xla_gpu import AtomicRMWOp

Folded: TypeAlias = SSAValue | Attribute | None
COMMUTATIVE = (
    arith.AddiOp,
    arith.MuliOp,
    arith.AndIOp,
    arith.OrIOp,
    arith.XOrIOp,
    arith.MaxSIOp,
    arith.MinSIOp,
    arith.MaxUIOp,
    arith.MinUIOp,
)


def fold(op: Operation) -> Folded:
    """Return the value or the constant attribute that replaces the op's one result; None if the op cannot be folded.

    May swap the op's operands, so that a constant is on the right.
    """
    folder = _FOLDERS.get(type(op))
    return folder(op) if folder is not None else None


def integer_attribute(value: int, type_: Attribute) -> IntegerAttr[IntegerType] | IntegerAttr[IndexType]:
    """Return a constant of an integer or index type; the value is wrapped to the type's width."""
    if is_integer(type_):
        return IntegerAttr(value, type_, truncate_bits=True)
    assert isinstance(type_, IndexType), f"expected an integer type, got {type_}"
    return IntegerAttr(value, type_)


def _width(type_: Attribute) -> int:
    return type_.width.data if is_integer(type_) else 64


def _unsigned(value: int, type_: Attribute) -> int:
    return value & ((1 << _width(type_)) - 1)


# Integer arithmetic.

_SIGNED: dict[type[Operation], Callable[[int, int], int]] = {
    arith.AddiOp: operator.add,
    arith.SubiOp: operator.sub,
    arith.MuliOp: operator.mul,
    arith.AndIOp: lambda a, b: a & b,
    arith.OrIOp: lambda a, b: a | b,
    arith.XOrIOp: lambda a, b: a ^ b,
    arith.MaxSIOp: max,
    arith.MinSIOp: min,
}
_UNSIGNED: dict[type[Operation], Callable[[int, int], int]] = {arith.MaxUIOp: max, arith.MinUIOp: min}
_DIVISION: dict[type[Operation], Callable[[int, int], int]] = {
    arith.DivSIOp: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    arith.RemSIOp: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    arith.DivUIOp: lambda a, b: a // b,
    arith.RemUIOp: operator.mod,
}
_SHIFT: dict[type[Operation], Callable[[int, int], int]] = {
    arith.ShLIOp: lambda a, b: a << b,
    arith.ShRSIOp: lambda a, b: a >> b,
    arith.ShRUIOp: lambda a, b: a >> b,
}
# `x op neutral` is x, and `x op absorbing` is the absorbing number.
_NEUTRAL: dict[type[Operation], int] = {
    arith.AddiOp: 0,
    arith.SubiOp: 0,
    arith.MuliOp: 1,
    arith.AndIOp: -1,
    arith.OrIOp: 0,
    arith.XOrIOp: 0,
    arith.ShLIOp: 0,
    arith.ShRSIOp: 0,
    arith.ShRUIOp: 0,
    arith.DivSIOp: 1,
    arith.DivUIOp: 1,
}
_ABSORBING: dict[type[Operation], int] = {arith.MuliOp: 0, arith.AndIOp: 0, arith.OrIOp: -1}
_SAME_GIVES_IT = (arith.AndIOp, arith.OrIOp, arith.MaxSIOp, arith.MinSIOp, arith.MaxUIOp, arith.MinUIOp)
_SAME_GIVES_ZERO = (arith.SubiOp, arith.XOrIOp)


def _fold_integer(op: arith.SignlessIntegerBinaryOperation) -> Folded:
    # The operands once: each use of an op's named operand searches for its place.
    kind, (left, right) = type(op), op.operands
    type_ = left.type
    if not isinstance(type_, IndexType) and not is_integer(type_):
        return None
    lhs, rhs = constant_int(left), constant_int(right)
    if lhs is not None and rhs is None and kind in COMMUTATIVE:
        op.operands = [right, left]
        left, right = right, left
        lhs, rhs = rhs, lhs
    if rhs is not None and rhs == _wrapped(_NEUTRAL.get(kind), type_):
        return left
    if rhs is not None and rhs == _ABSORBING.get(kind):
        return right
    if left is right and kind in _SAME_GIVES_IT:
        return left
    if left is right and kind in _SAME_GIVES_ZERO:
        return integer_attribute(0, type_)
    if lhs is not None and rhs is not None:
        value = _calculate(kind, lhs, rhs, type_)
        return None if value is None else integer_attribute(value, type_)
    return None


def _wrapped(value: int | None, type_: Attribute) -> int | None:
    """Return the value as constants of the type store it: i1 stores -1 for one."""
    if value is None:
        return None
    unsigned = _unsigned(value, type_)
    return unsigned - (1 << _width(type_)) if unsigned >> (_width(type_) - 1) else unsigned


def _calculate(kind: type[Operation], lhs: int, rhs: int, type_: Attribute) -> int | None:
    if kind in _SIGNED:
        return _SIGNED[kind](lhs, rhs)
    left, right = _unsigned(lhs, type_), _unsigned(rhs, type_)
    if kind in _UNSIGNED:
        return _UNSIGNED[kind](left, right)
    if kind in _SHIFT:
        return _SHIFT[kind](lhs if kind is arith.ShRSIOp else left, right) if right < _width(type_) else None
    if kind in _DIVISION and rhs != 0:
        signed = kind in (arith.DivSIOp, arith.RemSIOp)
        return _DIVISION[kind](lhs, rhs) if signed else _DIVISION[kind](left, right)
    return None


# Comparisons, selects, casts.

_PREDICATES: tuple[Callable[[int, int], bool], ...] = (
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)
_FIRST_UNSIGNED = 6  # predicates in MLIR's order: eq ne slt sle sgt sge ult ule ugt uge
_SWAPPED = (0, 1, 4, 5, 2, 3, 8, 9, 6, 7)


def _fold_cmpi(op: arith.CmpiOp) -> Folded:
    predicate = op.predicate.value.data
    lhs, rhs = constant_int(op.lhs), constant_int(op.rhs)
    if op.lhs is op.rhs:
        return IntegerAttr.from_bool(_PREDICATES[predicate](0, 0))
    if lhs is not None and rhs is not None:
        return IntegerAttr.from_bool(compare(predicate, lhs, rhs, op.lhs.type))
    if lhs is not None:
        op.operands = [op.rhs, op.lhs]
        op.predicate = IntegerAttr(_SWAPPED[predicate], 64)
    return None


def compare(predicate: int, lhs: int, rhs: int, type_: Attribute) -> bool:
    """Return the result of `arith.cmpi` with this predicate number on two numbers of the type."""
    if predicate >= _FIRST_UNSIGNED:
        lhs, rhs = _unsigned(lhs, type_), _unsigned(rhs, type_)
    return _PREDICATES[predicate](lhs, rhs)


def _fold_select(op: arith.SelectOp) -> Folded:
    condition = constant_int(op.cond)
    if condition is not None:
        return op.lhs if condition else op.rhs
    if op.lhs is op.rhs:
        return op.lhs
    if op.result.type == IntegerType(1) and constant_int(op.lhs) == -1 and constant_int(op.rhs) == 0:
        return op.cond
    return None


def _fold_cast(op: arith.ExtSIOp | arith.TruncIOp | arith.IndexCastOp) -> Folded:
    number, type_ = constant_int(op.input), op.result.type
    if number is not None:
        return integer_attribute(number, type_)
    return _undone_cast(op.input, type_)


def _fold_unsigned_cast(op: arith.ExtUIOp | IndexCastUIOp) -> Folded:
    number, type_ = constant_int(op.input), op.result.type
    if number is not None:
        return integer_attribute(_unsigned(number, op.input.type), type_)
    return _undone_cast(op.input, type_)


def _undone_cast(value: SSAValue, type_: Attribute) -> SSAValue | None:
    """Return x for a cast of `value` = cast(x) back to the type of x, if the way there lost nothing."""
    inner = value.owner
    match inner:
        case arith.ExtSIOp() | arith.ExtUIOp():
            return inner.input if inner.input.type == type_ else None
        case arith.IndexCastOp() | IndexCastUIOp():
            # An index may have 32 bits: a wider integer can lose bits on the way.
            is_narrow = is_integer(inner.input.type) and _width(inner.input.type) <= 32
            return inner.input if is_narrow and inner.input.type == type_ else None
        case _:
            return None


# Floats: exact rules only.


def _is_float(value: SSAValue, number: float) -> bool:
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, FloatAttr):
        return False
    found = op.value.value.data
    return found == number and str(found) == str(number)  # tells 0.0 from -0.0


def _fold_float_neutral(op: arith.FloatingPointLikeBinaryOperation) -> Folded:
    if _is_float(op.rhs, _FLOAT_NEUTRAL[type(op)]):
        return op.lhs
    if isinstance(op, arith.AddfOp | arith.MulfOp) and _is_float(op.lhs, _FLOAT_NEUTRAL[type(op)]):
        return op.rhs
    return None


_FLOAT_NEUTRAL: dict[type[Operation], float] = {arith.AddfOp: -0.0, arith.SubfOp: 0.0, arith.MulfOp: 1.0, arith.DivfOp: 1.0}


def _fold_negf(op: arith.NegfOp) -> Folded:
    inner = op.operand.owner
    return inner.operand if isinstance(inner, arith.NegfOp) else None


# Complex, vectors, tensors.


def _fold_complex_part(op: complex.ReOp | complex.ImOp) -> Folded:
    inner = op.complex.owner
    if not isinstance(inner, complex.CreateOp):
        return None
    return inner.real if isinstance(op, complex.ReOp) else inner.imaginary


def _position(op: vector.ExtractOp | vector.InsertOp) -> tuple[object, ...]:
    """Return the position with constant values as ints, so that positions can be compared."""
    numbers = [place if isinstance(place, int) else constant_int(place) for place in op.get_mixed_position()]
    return tuple(place if number is None else number for place, number in zip(op.get_mixed_position(), numbers, strict=True))


def _fold_vector_extract(op: vector.ExtractOp) -> Folded:
    position, source = _position(op), op.vector.owner
    while isinstance(source, vector.InsertOp):
        place = _position(source)
        if place == position:
            return source.source
        if len(place) != len(position) or not all(isinstance(each, int) for each in (*place, *position)):
            return None
        source = source.dest.owner
    if isinstance(source, vector.BroadcastOp) and source.source.type == op.result.type:
        return source.source
    return _element_of_splat(source, op.result.type)


def _fold_tensor_extract(op: tensor.ExtractOp) -> Folded:
    return _element_of_splat(op.tensor.owner, op.result.type)


def _element_of_splat(constant: object, type_: Attribute) -> Attribute | None:
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, DenseIntOrFPElementsAttr):
        return None
    if not constant.value.is_splat():
        return None
    value = constant.value.get_values()[0]
    if (is_integer(type_) or isinstance(type_, IndexType)) and isinstance(value, int):
        return integer_attribute(value, type_)
    if isinstance(type_, AnyFloat) and isinstance(value, float):
        return FloatAttr(value, type_)
    return None


def _fold_atomic(op: AtomicRMWOp) -> Folded:
    """Fold an atomic_rmw whose body yields the current value: it does not change the tensor."""
    return op.tensor if op.body.block.first_op is op.yield_op and op.yield_op.operands[0] is op.current else None


_FOLDERS: dict[type[Operation], Callable[[Any], Folded]] = {
    **dict.fromkeys((*_SIGNED, *_UNSIGNED, *_DIVISION, *_SHIFT), _fold_integer),
    **dict.fromkeys(_FLOAT_NEUTRAL, _fold_float_neutral),
    arith.CmpiOp: _fold_cmpi,
    arith.SelectOp: _fold_select,
    arith.ExtSIOp: _fold_cast,
    arith.TruncIOp: _fold_cast,
    arith.IndexCastOp: _fold_cast,
    arith.ExtUIOp: _fold_unsigned_cast,
    IndexCastUIOp: _fold_unsigned_cast,
    arith.NegfOp: _fold_negf,
    complex.ReOp: _fold_complex_part,
    complex.ImOp: _fold_complex_part,
    vector.ExtractOp: _fold_vector_extract,
    tensor.ExtractOp: _fold_tensor_extract,
    AtomicRMWOp: _fold_atomic,
}
