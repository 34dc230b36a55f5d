"""Evaluate `fft`: transforms of one to three innermost dimensions, computed in f64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import FftType
from hlo_run.reference.values import Array, arrays_row, narrow, table


def _fft(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    shape = instruction.shape
    if 0 in shape.dims or operands[0].size == 0:
        return np.zeros(shape.dims, shape.dtype.numpy)
    lengths = instruction.fft_length
    return narrow(transform(operands[0], instruction.fft_type, lengths), shape.dtype)


def transform(array: Array, kind: FftType, lengths: Sequence[int]) -> Array:
    """Return the transform of the innermost `len(lengths)` dimensions; inverses divide by the number of elements.

    IRFFT reads `length // 2 + 1` numbers of the last dimension. It ignores imaginary parts that must be zero in the
    transform of a real signal.
    """
    axes = range(-len(lengths), 0)
    match kind:
        case "FFT":
            return np.fft.fftn(array.astype(np.complex128, copy=False), axes=axes)
        case "IFFT":
            return np.fft.ifftn(array.astype(np.complex128, copy=False), axes=axes)
        case "RFFT":
            return np.fft.rfftn(array.astype(np.float64, copy=False), lengths, axes)
        case "IRFFT":
            return np.fft.irfftn(array.astype(np.complex128, copy=False), lengths, axes)
        case _:
            assert_never(kind)


EVALUATE = table(arrays_row("fft", _fft))
