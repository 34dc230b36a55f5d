"""Compute products of stacked matrices, by BLAS where its result is exact enough."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.convert import convert
from hlo_run.reference.numerics.blas import matmul
from hlo_run.reference.values import Array, narrow, widen

# f64 represents every integer below this magnitude.
_EXACT_INTEGERS = 2.0**53


def sum_type(instruction: HloInstruction) -> DType:
    """Return the type of the sums of a dot or convolution: the result's, or of floats into ints the wider operand's.

    Such sums are converted to the result by `convert_sums`, as XLA does.
    """
    result = instruction.shape.dtype
    left, right = (operand.shape.dtype for operand in instruction.operands[:2])
    if not (result.is_integer and left.is_float and right.is_float):
        return result
    return right if right.bits > left.bits else left


def convert_sums(array: Array, sums: DType, result: DType) -> Array:
    """Return sums, which are in the computing type of `sums`, rounded to that type and converted to the result's."""
    return convert(narrow(array, sums), sums, result)


def operand_in(array: Array, source: DType, result: DType) -> Array:
    """Return an operand of a dot or convolution: rounded to the result's type, then in its computing type, which sums."""
    return widen(convert(array, source, result), result)


def stacked_matmul(left: Array, right: Array) -> Array:
    """Return the products of [.., rows, depth] and [.., depth, columns] of one type, which is also the result's.

    Floats and complex numbers are summed in their own type, ints wrap, a sum of products of bools is an OR of ANDs.
    """
    if left.dtype.kind in "fc":
        return matmul(_for_blas(left), _for_blas(right))
    if left.dtype == np.bool_:
        return matmul(_for_blas(left.astype(np.float32)), _for_blas(right.astype(np.float32))) != 0
    return _integer_matmul(left, right)


def _integer_matmul(left: Array, right: Array) -> Array:
    """Multiply ints in f64 if every sum is exact there, as numpy has no fast product of ints; else in their type."""
    depth = left.shape[-1]
    if _magnitude(left) * _magnitude(right) * depth >= _EXACT_INTEGERS:
        return np.matmul(left, right)
    product = matmul(_for_blas(left.astype(np.float64)), _for_blas(right.astype(np.float64)))
    # Through int64, which wraps to the target; a direct conversion of a float out of range would not.
    return product.astype(np.int64).astype(left.dtype)


def _magnitude(array: Array) -> float:
    return max(abs(float(array.max())), abs(float(array.min()))) if array.size else 0.0


def _for_blas(array: Array) -> Array:
    """Return the matrices in a layout that BLAS can read: one of the two dimensions is contiguous."""
    if array.flags.c_contiguous:
        return array
    rows, columns = array.strides[-2:]
    item = array.itemsize
    direct = columns == item and rows >= item * array.shape[-1]
    turned = rows == item and columns >= item * array.shape[-2]
    return array if direct or turned else np.ascontiguousarray(array)
