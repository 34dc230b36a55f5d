"""Evaluate the custom calls of arrays with a scale per block: `__op$quantize`, `__op$dequantize`, `__op$block_scaled_dot`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.block_scaling import BLOCK_SCALED_DOT, DEQUANTIZE, QUANTIZE, stated_block_size, used_scales
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.convert import convert
from hlo_run.reference.numerics.dot import DotDims, contract
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, narrow, widen


def _quantize(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the numbers and their scales: the largest magnitude of each block over the type's largest power of two."""
    source, (numbers, scales) = instruction.operands[0].shape.dtype, instruction.shape.tuple_shapes
    array = widen(as_array(operands[0]), source)
    largest = np.abs(array).reshape(*scales.dims, -1).max(axis=-1)
    power = array.dtype.type(2.0 ** (numbers.dtype.float_format.max_exponent - 1))
    with np.errstate(all="ignore"):
        scale = convert(narrow(largest / power, source), source, scales.dtype)
        divided = narrow(array / _spread(widen(convert(scale, scales.dtype, source), source), numbers.dims), source)
    return convert(divided, source, numbers.dtype), scale


def _dequantize(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    types = [operand.shape.dtype for operand in instruction.operands]
    return narrow(
        _factor(as_array(operands[0]), as_array(operands[1]), types[0], types[1], instruction.shape.dtype),
        instruction.shape.dtype,
    )


def _block_scaled_dot(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return lhs . rhs over the last dimensions. Each is multiplied by its scales and rounded to the result's type first."""
    result, stated = instruction.shape.dtype, stated_block_size(instruction.backend_config)
    shapes, arrays = [operand.shape for operand in instruction.operands], [as_array(operand) for operand in operands]
    sides: list[Array] = []
    for side in (0, 1):
        if side + 2 >= len(shapes):
            sides.append(widen(arrays[side], result))
            continue
        used = used_scales(shapes[side], shapes[side + 2], stated)
        assert used is not None, "the call was verified"
        scales = arrays[side + 2][tuple(slice(size) for size in used)]
        sides.append(_factor(arrays[side], scales, shapes[side].dtype, shapes[side + 2].dtype, result))
    rank = len(instruction.shape.dims)
    batch = (0,) if rank == 3 else ()
    value = contract(sides[0], sides[1], DotDims(batch, batch, (rank - 1,), (rank - 1,)))
    if len(arrays) > 4:
        value = widen(narrow(value, result), result) * widen(arrays[4], result)
    return narrow(value, result)


def _factor(numbers: Array, scales: Array, numbers_type: DType, scales_type: DType, result: DType) -> Array:
    """Return numbers times scales, each as the result's type and the product rounded to it, in its computing type."""
    values, factors = (
        widen(convert(array, dtype, result), result) for array, dtype in ((numbers, numbers_type), (scales, scales_type))
    )
    with np.errstate(all="ignore"):
        return widen(narrow(values * _spread(factors, values.shape), result), result)


def _spread(scales: Array, dims: tuple[int, ...]) -> Array:
    return np.repeat(scales, dims[-1] // scales.shape[-1], axis=-1)


CUSTOM_CALLS: dict[str, Evaluator] = {
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    BLOCK_SCALED_DOT: _block_scaled_dot,
}
