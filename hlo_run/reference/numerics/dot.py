"""Evaluate `dot` and `scaled-dot`.

Operands are first rounded to the result's type, or as the algorithm says. Floats into ints are summed as floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import methodcaller

import numpy as np
from msgspec import Struct

from hlo_run.arrays import NumpyType
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.reference.convert import convert
from hlo_run.reference.numerics.contraction import convert_sums, operand_in, stacked_matmul, sum_type
from hlo_run.reference.values import Array, Kernel, arrays_row, computing_type, narrow, prepared_row, table, widen


class DotDims(Struct, frozen=True):
    """The dimension numbers of a dot."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]


def dot_dims(instruction: HloInstruction) -> DotDims:
    """Return the dimension numbers in an instruction's attributes."""
    i = instruction
    return DotDims(i.lhs_batch_dims, i.rhs_batch_dims, i.lhs_contracting_dims, i.rhs_contracting_dims)


def _dot(instruction: HloInstruction) -> Kernel:
    result, sums = instruction.shape.dtype, sum_type(instruction)
    lhs, rhs = (operand.shape for operand in instruction.operands)
    product = contraction(lhs.dims, rhs.dims, dot_dims(instruction))
    through_bf16 = instruction.algorithm == "dot_bf16_bf16_f32" and lhs.dtype is rhs.dtype is DTYPES["f32"]
    if not through_bf16 and lhs.dtype is result and rhs.dtype is result and computing_type(result) == result.numpy:
        return product

    def kernel(left: Array, right: Array) -> Array:
        if through_bf16:
            left, right = _through_bf16(left), _through_bf16(right)
        return convert_sums(product(operand_in(left, lhs.dtype, sums), operand_in(right, rhs.dtype, sums)), sums, result)

    return kernel


def _through_bf16(array: Array) -> Array:
    """Return f32 numbers rounded to bf16, for dot_bf16_bf16_f32."""
    return widen(convert(array, DTYPES["f32"], DTYPES["bf16"]), DTYPES["f32"])


def wide_operands(instruction: HloInstruction, operands: Sequence[Array]) -> tuple[Array, Array]:
    """Return both sides in the computing type of the sums."""
    sums = sum_type(instruction)
    left, right = (
        operand_in(operand, source.shape.dtype, sums) for operand, source in zip(operands[:2], instruction.operands, strict=False)
    )
    return left, right


def contract(lhs: Array, rhs: Array, dims: DotDims) -> Array:
    """Return the dot of two arrays of one type; `contraction` says how the result's dimensions are ordered."""
    return contraction(lhs.shape, rhs.shape, dims)(lhs, rhs)


def contraction(lhs: Sequence[int], rhs: Sequence[int], dims: DotDims) -> Kernel:
    """Return a kernel for the dot of arrays of these dimensions and one type.

    The result has the batch dimensions (in the lhs's order), the free ones of lhs, the free ones of rhs. With bools it is
    an OR of ANDs. A side without batch dimensions is multiplied by every matrix of the other; only library calls do so.
    """
    lhs_free = [d for d in range(len(lhs)) if d not in (*dims.lhs_batch, *dims.lhs_contracting)]
    rhs_free = [d for d in range(len(rhs)) if d not in (*dims.rhs_batch, *dims.rhs_contracting)]
    lhs_batch, rhs_batch = [lhs[d] for d in dims.lhs_batch], [rhs[d] for d in dims.rhs_batch]
    depth = math.prod(lhs[d] for d in dims.lhs_contracting)
    rows, columns = [lhs[d] for d in lhs_free], [rhs[d] for d in rhs_free]
    left = _arrange((*dims.lhs_batch, *lhs_free, *dims.lhs_contracting), lhs, (*lhs_batch, math.prod(rows), depth))
    right = _arrange((*dims.rhs_batch, *dims.rhs_contracting, *rhs_free), rhs, (*rhs_batch, depth, math.prod(columns)))
    result = (*(lhs_batch or rhs_batch), *rows, *columns)

    def kernel(lhs: Array, rhs: Array) -> Array:
        return stacked_matmul(left(lhs), right(rhs)).reshape(result)

    return kernel


def _arrange(order: tuple[int, ...], dims: Sequence[int], matrices: tuple[int, ...]) -> Kernel:
    """Return a function that transposes an array to `order` and reshapes it to `matrices`."""
    in_order = order == tuple(range(len(dims)))
    if in_order:
        return methodcaller("reshape", matrices)
    if tuple(dims[d] for d in order) == matrices:
        return methodcaller("transpose", order)

    def kernel(array: Array) -> Array:
        return array.transpose(order).reshape(matrices)

    return kernel


def _scaled_dot(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    """Return the dot of the scaled operands: one scale per block of each dimension; rank 0 means unscaled.

    Operands are scaled in the widest computing type of all operands and the result, and not rounded before the dot.
    """
    result = instruction.shape.dtype
    types = [operand.shape.dtype for operand in instruction.operands]
    computing: NumpyType = np.result_type(computing_type(result), *(computing_type(dtype) for dtype in types))
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


EVALUATE = table(prepared_row("dot", _dot), arrays_row("scaled-dot", _scaled_dot))
