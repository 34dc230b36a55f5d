"""Decides which ops are free of side effects, and which may run speculatively."""

from __future__ import annotations

import functools
from enum import Enum, auto

from xdsl.dialects import arith, func, vector
from xdsl.ir import Operation
from xdsl.traits import (
    IsTerminator,
    MemoryEffect,
    NoMemoryEffect,
    Pure,
    RecursiveMemoryEffect,
    is_side_effect_free,
    is_speculatable,
)

from hlo_run.dialects.types import constant_int, is_tensor

_INTEGER_DIVISIONS = (
    arith.DivUIOp,
    arith.DivSIOp,
    arith.RemUIOp,
    arith.RemSIOp,
    arith.FloorDivSIOp,
    arith.CeilDivSIOp,
    arith.CeilDivUIOp,
)


class _Purity(Enum):
    """The purity of all ops of a class, or the function that decides it for one op."""

    NEVER = auto()
    ALWAYS = auto()
    BY_SOURCE = auto()
    BY_REGIONS = auto()
    BY_EFFECTS = auto()


@functools.cache
def _purity(kind: type[Operation]) -> _Purity:
    """Return the purity of a class by its traits; cached, because passes ask about every op of a kernel many times."""
    if kind.has_trait(IsTerminator) or issubclass(kind, func.CallOp):
        return _Purity.NEVER
    if issubclass(kind, arith.ExtSIOp):  # has no trait in xDSL
        return _Purity.ALWAYS
    if issubclass(kind, vector.TransferReadOp | vector.TransferWriteOp):
        return _Purity.BY_SOURCE
    if kind.has_trait(RecursiveMemoryEffect):
        return _Purity.BY_REGIONS
    effects = kind.get_traits_of_type(MemoryEffect)
    if not effects:
        return _Purity.NEVER
    return _Purity.ALWAYS if all(type(effect) in (NoMemoryEffect, Pure) for effect in effects) else _Purity.BY_EFFECTS


def is_pure(op: Operation) -> bool:
    """Tell whether the op, with its regions, only computes its results: it can be dropped if unused and merged by CSE.

    pure_call, and reads and writes of tensor values, are pure. allocate_shared, sync_threads, atomic_rmw, barriers and
    calls are not.
    """
    kind: object = type(op)
    match _purity(kind):
        case _Purity.ALWAYS:
            return True
        case _Purity.NEVER:
            return False
        case _Purity.BY_SOURCE:
            assert isinstance(op, vector.TransferReadOp | vector.TransferWriteOp), "only these have a source"
            return is_tensor(op.source.type)
        case _Purity.BY_REGIONS:
            return all(_is_pure_inside(inner) for region in op.regions for block in region.blocks for inner in block.ops)
        case _Purity.BY_EFFECTS:
            return is_side_effect_free(op)


def _is_pure_inside(op: Operation) -> bool:
    return op.has_trait(IsTerminator) or is_pure(op)


def can_speculate(op: Operation) -> bool:
    """Tell whether the op may run speculatively: it is pure and has no undefined behaviour (no division by zero)."""
    if not is_pure(op):
        return False
    if op.regions:
        return all(
            inner.has_trait(IsTerminator) or can_speculate(inner)
            for region in op.regions
            for block in region.blocks
            for inner in block.ops
        )
    if isinstance(op, _INTEGER_DIVISIONS):
        return constant_int(op.rhs) not in (None, 0, -1)
    if isinstance(op, arith.ExtSIOp | vector.TransferReadOp | vector.TransferWriteOp):
        return True
    return is_speculatable(op)
