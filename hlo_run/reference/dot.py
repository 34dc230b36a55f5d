"""`dot` and `scaled-dot`: batched contractions; operands are rounded to the result's type first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.contraction import operand_in, stacked_matmul
from hlo_run.reference.values import Array, arrays_row, computing_type, narrow, table, widen


@dataclass(frozen=True, slots=True)
class DotDims:
    """The dimension numbers of a dot."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]


def dot_dims(instruction: HloInstruction) -> DotDims:
    """Return the dimension numbers that an instruction's attributes say."""
    names = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    return DotDims(*(tuple(instruction.attrs.get(name, ())) for name in names))


def _dot(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    return narrow(contract(*wide_operands(instruction, operands), dot_dims(instruction)), instruction.shape.dtype)


def wide_operands(instruction: HloInstruction, operands: Sequence[Array]) -> tuple[Array, Array]:
    """Return both sides in the type that sums."""
    left, right = (
        operand_in(operand, source.shape.dtype, instruction.shape.dtype)
        for operand, source in zip(operands[:2], instruction.operands, strict=False)
    )
    return left, right


def contract(lhs: Array, rhs: Array, dims: DotDims) -> Array:
    """Return the dot of two arrays of one type: batch dimensions (in the lhs' order), lhs' free ones, rhs' free ones.

    Products of bools are ORs of ANDs.
    """
    lhs_free = [d for d in range(lhs.ndim) if d not in (*dims.lhs_batch, *dims.lhs_contracting)]
    rhs_free = [d for d in range(rhs.ndim) if d not in (*dims.rhs_batch, *dims.rhs_contracting)]
    batch = [lhs.shape[d] for d in dims.lhs_batch]
    depth = math.prod(lhs.shape[d] for d in dims.lhs_contracting)
    rows, columns = [lhs.shape[d] for d in lhs_free], [rhs.shape[d] for d in rhs_free]
    left = np.transpose(lhs, (*dims.lhs_batch, *lhs_free, *dims.lhs_contracting))
    right = np.transpose(rhs, (*dims.rhs_batch, *dims.rhs_contracting, *rhs_free))
    left = left.reshape((*batch, math.prod(rows), depth))
    right = right.reshape((*batch, depth, math.prod(columns)))
    return stacked_matmul(left, right).reshape((*batch, *rows, *columns))


def _scaled_dot(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    """A dot of operands times their scales, one scale per block of each dimension; a scale of rank 0 means none.

    The products with the scales are made in the computing type of the wider of the two and not rounded further.
    """
    result = instruction.shape.dtype
    types = [operand.shape.dtype for operand in instruction.operands]
    computing: np.dtype[Any] = np.result_type(computing_type(result), *(computing_type(dtype) for dtype in types))
    lhs, rhs, lhs_scale, rhs_scale = (
        widen(operand, dtype).astype(computing, copy=False) for operand, dtype in zip(operands, types, strict=True)
    )
    return narrow(contract(_scaled(lhs, lhs_scale), _scaled(rhs, rhs_scale), dot_dims(instruction)), result)


def _scaled(array: Array, scale: Array) -> Array:
    return array * _spread(scale, array.shape) if scale.ndim else array


def _spread(scale: Array, dims: tuple[int, ...]) -> Array:
    """Repeat each scale over its block, so that it has `dims`."""
    for dim, size in enumerate(dims):
        if scale.shape[dim] not in (1, size):
            scale = np.repeat(scale, size // scale.shape[dim], axis=dim)
    return scale


EVALUATE = table(arrays_row("dot", _dot), arrays_row("scaled-dot", _scaled_dot))
