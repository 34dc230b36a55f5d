"""Chooses the number of adjacent elements that a thread of a loop-like kernel computes."""

from __future__ import annotations

import math
from itertools import chain

from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.transpose_description import normalize_transpose
from hlo_run.hlo.graph import HloInstruction

# XLA's MaxUnrollFactor, the bound of unrolling for every emitter.
MAX_UNROLL_FACTOR = 4

_MAX_WINDOW_TO_UNROLL = 8
_MAX_CONCAT_OPERANDS_TO_UNROLL = 10
# Blackwell can read 256 bits at once; PTX of this toolkit and later can express it.
_WIDE_VECTOR_TOOLKIT = (12, 9)
_WIDE_VECTOR_BITS = 256
_VECTOR_BITS = 128
_MAX_BLACKWELL_UNROLL = 32
_MIN_BLACKWELL_UNROLL = 8


def unroll_factor(analysis: FusionAnalysis, elements: int) -> int:
    """Return the unroll factor for a kernel over `elements` elements. Mirrors XLA's `ComputeLoopFusionConfig`.

    Types below 8 bits raise it so that a thread writes whole bytes, even if it then does not divide `elements`.
    """
    factor = 1
    if elements >= analysis.target.max_resident_threads and not _bad_to_unroll(analysis):
        factor = math.gcd(elements, max_unroll_factor(analysis))
    return max(factor, -(-8 // analysis.smallest_output_bits))


def max_unroll_factor(analysis: FusionAnalysis) -> int:
    """Return the bound for the device and the fusion: 4, more on Blackwell for narrow types."""
    if not analysis.target.is_blackwell:
        return MAX_UNROLL_FACTOR
    opcodes = {instruction.opcode for instruction in analysis.instructions}
    width = _WIDE_VECTOR_BITS if analysis.target.toolkit_version >= _WIDE_VECTOR_TOOLKIT else _VECTOR_BITS
    if len(analysis.roots) != 1 or "reduce" in opcodes or analysis.smallest_output_bits >= width // 4:
        return MAX_UNROLL_FACTOR
    factor = min(_MAX_BLACKWELL_UNROLL, width // max(8, _widest_bits(analysis)))
    factor = 1 << (factor.bit_length() - 1)
    if "pad" in opcodes:
        factor = min(factor, _MIN_BLACKWELL_UNROLL)
    for instruction in analysis.instructions:
        if instruction.opcode == "transpose":
            factor = _halve_to_fit(factor, _minor_size(instruction))
    return max(factor, _MIN_BLACKWELL_UNROLL)


def _widest_bits(analysis: FusionAnalysis) -> int:
    shapes = chain(analysis.parameter_shapes, (root.shape for root in analysis.roots))
    return max(shape.dtype.bits for shape in shapes if shape.is_array)


def _minor_size(transpose: HloInstruction) -> int:
    dims, _ = normalize_transpose(transpose.shape.dims, transpose.dimensions)
    return dims[-1] if dims else 1


def _halve_to_fit(factor: int, minor_size: int) -> int:
    while factor > minor_size and factor > MAX_UNROLL_FACTOR:
        factor //= 2
    return factor


def _bad_to_unroll(analysis: FusionAnalysis) -> bool:
    return any(map(makes_unrolling_bad, analysis.instructions))


def makes_unrolling_bad(instruction: HloInstruction) -> bool:
    """True if a fusion that contains this instruction should not be unrolled: one element is enough work for a thread."""
    match instruction.opcode:
        case "sort" | "dot":
            return True
        case "reduce-window":
            return math.prod(dim.size for dim in instruction.window.dims) > _MAX_WINDOW_TO_UNROLL
        case "concatenate":
            return len(instruction.operands) > _MAX_CONCAT_OPERANDS_TO_UNROLL
        case "reduce":
            return instruction.shape.is_tuple
        case _:
            return False
