"""`dot`: batched contraction; both operands are rounded to the result's type first, floats are summed in double."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.dtype import DType
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.convert import convert
from hlo_run.reference.values import Array, arrays_row, computing_type, narrow, precise_type, table, widen


def _dot(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    result = instruction.shape.dtype
    lhs, rhs = (
        _wide(operand, source.shape.dtype, result) for operand, source in zip(operands, instruction.operands, strict=True)
    )
    product = contract(
        lhs,
        rhs,
        instruction.attrs.get("lhs_batch_dims", ()),
        instruction.attrs.get("rhs_batch_dims", ()),
        instruction.attrs.get("lhs_contracting_dims", ()),
        instruction.attrs.get("rhs_contracting_dims", ()),
    )
    return narrow(product, result)


def _wide(array: Array, source: DType, result: DType) -> Array:
    """Return the operand rounded to the result's type, in the type that sums."""
    wide = widen(convert(array, source, result), result)
    return wide.astype(precise_type(computing_type(result))) if result.kind in ("float", "complex") else wide


def contract(
    lhs: Array,
    rhs: Array,
    lhs_batch: Sequence[int],
    rhs_batch: Sequence[int],
    lhs_contracting: Sequence[int],
    rhs_contracting: Sequence[int],
) -> Array:
    """Return the dot of two arrays of one type: batch dimensions (in the lhs' order), lhs' free ones, rhs' free ones.

    Products of bools are ORs of ANDs.
    """
    lhs_free = [d for d in range(lhs.ndim) if d not in (*lhs_batch, *lhs_contracting)]
    rhs_free = [d for d in range(rhs.ndim) if d not in (*rhs_batch, *rhs_contracting)]
    batch_dims = [lhs.shape[d] for d in lhs_batch]
    depth = int(np.prod([lhs.shape[d] for d in lhs_contracting], dtype=np.int64))
    lhs_dims, rhs_dims = [lhs.shape[d] for d in lhs_free], [rhs.shape[d] for d in rhs_free]
    rows, columns = int(np.prod(lhs_dims, dtype=np.int64)), int(np.prod(rhs_dims, dtype=np.int64))
    left = np.transpose(lhs, (*lhs_batch, *lhs_free, *lhs_contracting)).reshape((*batch_dims, rows, depth))
    right = np.transpose(rhs, (*rhs_batch, *rhs_contracting, *rhs_free)).reshape((*batch_dims, depth, columns))
    return np.matmul(left, right).reshape((*batch_dims, *lhs_dims, *rhs_dims))


EVALUATE = table(arrays_row("dot", _dot))
