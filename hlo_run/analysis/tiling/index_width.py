"""Chooses the width of the indices in a kernel."""

from __future__ import annotations

from hlo_run.hlo.graph import HloComputation, HloInstruction

_MAX_ELEMENTS_FOR_32_BITS = 2**31 - 1
# The number of the first index operand; gather and scatter have only this one.
_FIRST_INDEX_OPERAND = {"dynamic-slice": 1, "dynamic-update-slice": 2, "gather": 1, "scatter": 1}


def index_width_bits(fusion: HloInstruction) -> int:
    """Return 64 if an array in or under `fusion` has more than 2^31 - 1 elements or is indexed by 64-bit data, else 32."""
    is_wide = _has_wide_array(fusion) or any(_needs_64_bits(computation) for computation in fusion.called_computations)
    return 64 if is_wide else 32


def _needs_64_bits(computation: HloComputation) -> bool:
    return any(
        _has_wide_array(instruction)
        or _has_wide_indices(instruction)
        or any(_needs_64_bits(called) for called in instruction.called_computations)
        for instruction in computation.instructions
    )


def _has_wide_array(instruction: HloInstruction) -> bool:
    return any(shape.element_count > _MAX_ELEMENTS_FOR_32_BITS for _, shape in instruction.shape.leaves())


def _has_wide_indices(instruction: HloInstruction) -> bool:
    first = _FIRST_INDEX_OPERAND.get(instruction.opcode)
    if first is None:
        return False
    operands = (
        instruction.operands[first:] if instruction.opcode.startswith("dynamic") else instruction.operands[first : first + 1]
    )
    return any(operand.shape.is_array and operand.shape.dtype.bits == 64 for operand in operands)
