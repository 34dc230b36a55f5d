"""Evaluate `convert`, `bitcast-convert`, `reduce-precision` and `stochastic-convert`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.bits import element_bits, from_element_bits, from_packed_bytes, to_packed_bytes
from hlo_run.reference.complex_functions import real_part
from hlo_run.reference.values import Array, arrays_row, map_elements, narrow, table, widen


def convert(array: Array, source: DType, target: DType) -> Array:
    """Convert values to another type: saturating to ints (NaN → 0), wrapping between ints, nearest even to floats.

    A complex number becomes its real part if the target is real. In pred, everything but 0 is true.
    """
    return map_elements(partial(_convert, source=source, target=target), (array,), target.numpy)


def _convert(array: Array, source: DType, target: DType) -> Array:
    if source.name == target.name:
        return array
    wide = widen(array, source)
    if target.kind == "pred":
        return wide != 0
    if target.is_complex:
        return wide.astype(target.numpy)
    if source.is_complex:
        wide = real_part(wide)
    if source.kind in ("float", "complex") and target.is_integer:
        return _float_to_int(wide, target)
    return narrow(wide, target)


def _float_to_int(x: Array, target: DType) -> Array:
    lowest = -(1 << (target.bits - 1)) if target.is_signed else 0
    highest = (1 << (target.bits - 1 if target.is_signed else target.bits)) - 1
    wide = x.astype(np.float64)
    # The upper bound of a 64-bit type rounds up to a power of two, which is already too large for the type.
    above, below = wide >= float(highest), wide <= float(lowest)
    inside = np.where(above | below | np.isnan(wide), 0.0, wide)
    middle = np.dtype(np.int64 if target.is_signed else np.uint64)
    whole = np.where(above, middle.type(highest), np.where(below, middle.type(lowest), inside.astype(middle)))
    return narrow(whole, target)


def _convert_instruction(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    return convert(operands[0], instruction.operands[0].shape.dtype, instruction.shape.dtype)


def _bitcast_convert(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    source, target, dims = instruction.operands[0].shape.dtype, instruction.shape.dtype, instruction.shape.dims
    array = operands[0]
    if source.bits == target.bits and source.bits >= 8:
        # The array's own shape, not the instruction's: inside a lifted computation they differ.
        return np.ascontiguousarray(array).reshape(array.shape).view(target.numpy)
    if source.bits == target.bits:
        return from_element_bits(element_bits(array, source), target)
    # Little endian: the first of the narrow elements has the lowest bits, just as in a packed buffer.
    packed = to_packed_bytes(array.reshape(-1), source)
    return from_packed_bytes(packed, target, math.prod(dims)).reshape(dims)


def _reduce_precision(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    dtype = instruction.shape.dtype
    exponent_bits, mantissa_bits = instruction.exponent_bits, instruction.mantissa_bits
    chunk = partial(reduce_precision, dtype=dtype, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)
    return map_elements(chunk, operands, dtype.numpy)


def reduce_precision(x: Array, dtype: DType, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round to the nearest number with these exponent and mantissa bits, ties to even.

    Numbers above the reduced range become ±inf, or NaN in types without infinity. Numbers at or below its minimum
    exponent become ±0. NaN stays. A width that is not below the type's own changes nothing.
    """
    own_exponent_bits, own_mantissa_bits = dtype.float_format.exponent_bits, dtype.float_format.mantissa_bits
    bits = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    number = bits.dtype.type
    sign_mask, exponent_mask = number(1 << (dtype.bits - 1)), number(((1 << own_exponent_bits) - 1) << own_mantissa_bits)
    out, overflows = bits, np.zeros(x.shape, np.bool_)
    dropped = own_mantissa_bits - mantissa_bits
    if dropped > 0:
        last = number(1 << dropped)
        tie_to_even = (out >> number(dropped)) & number(1)
        out = (out + (number((1 << (dropped - 1)) - 1) + tie_to_even)) & ~(last - number(1))
    if exponent_bits < own_exponent_bits:
        sign = out & sign_mask
        exponent = out & exponent_mask
        bias, reduced_bias = (1 << (own_exponent_bits - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        overflows = exponent > number((bias + reduced_bias) << own_mantissa_bits)
        out = np.where(overflows, sign | exponent_mask, out)
        out = np.where(exponent <= number((bias - reduced_bias) << own_mantissa_bits), sign, out)
    reduced = np.where(np.isnan(x), x, out.view(x.dtype))
    return reduced if np.isinf(np.asarray(np.inf, x.dtype)) else np.where(overflows, x.dtype.type(np.nan), reduced)


def _stochastic_convert(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    """Round |x| = whole + part up if random < part · 2^width; infinities and numbers out of range saturate, NaN → 0."""
    source, target = instruction.operands[0].shape.dtype, instruction.shape.dtype

    def chunk(x: Array, random: Array) -> Array:
        wide = widen(x, source).astype(np.float64)
        size = np.abs(wide)
        whole = np.floor(np.where(np.isfinite(size), size, 0))
        threshold = np.floor((np.where(np.isfinite(size), size, 0) - whole) * 2.0**source.bits)
        up = random.astype(np.uint64) < threshold.astype(np.uint64)
        rounded = np.copysign(np.where(np.isfinite(size), whole + up, size), wide)
        return _float_to_int(np.where(np.isnan(wide), np.nan, rounded), target)

    return map_elements(chunk, operands, target.numpy)


EVALUATE = table(
    arrays_row("convert", _convert_instruction),
    arrays_row("bitcast-convert", _bitcast_convert),
    arrays_row("reduce-precision", _reduce_precision),
    arrays_row("stochastic-convert", _stochastic_convert),
)
