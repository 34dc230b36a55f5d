"""Which ops have side effects and which may run although the program would not have run them."""

from __future__ import annotations

from xdsl.dialects import arith, func, vector
from xdsl.ir import Operation
from xdsl.traits import IsTerminator, RecursiveMemoryEffect, is_side_effect_free, is_speculatable

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


def is_pure(op: Operation) -> bool:
    """Tell whether the op, regions included, only computes its results: it may be dropped if unused, or merged with an equal one.

    pure_call and reads and writes of tensor values are pure; allocate_shared, sync_threads, atomic_rmw, barriers and
    calls are not.
    """
    if op.has_trait(IsTerminator) or isinstance(op, func.CallOp):
        return False
    if isinstance(op, arith.ExtSIOp):  # has no trait in xDSL
        return True
    if isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        return is_tensor(op.source.type)
    if op.has_trait(RecursiveMemoryEffect):
        return all(_is_pure_inside(inner) for region in op.regions for block in region.blocks for inner in block.ops)
    return is_side_effect_free(op)


def _is_pure_inside(op: Operation) -> bool:
    return op.has_trait(IsTerminator) or is_pure(op)


def can_speculate(op: Operation) -> bool:
    """Tell whether the op may run where the program would not have run it: pure, and never undefined (no division by zero)."""
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
