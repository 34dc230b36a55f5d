"""Decides which instructions a GPU computes in a narrow type, and the wider type for the others.

XLA's `GpuFloatSupport`. An op on the bits of a 4-bit integer is never widened: -1 has fewer ones in 4 bits than in 8 bits.
Collectives are: NCCL sends whole bytes.
"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, ASYNC_START, COLLECTIVE, CONTROL_FLOW, MOVES_ELEMENTS, NO_CODE, SIDE_EFFECT

# The type to compute in if a narrow type has no support. Types are handled in this order.
WIDE_TYPES = {
    "bf16": "f32",
    "f8e5m2": "f16",
    "f8e4m3": "f16",
    "f8e4m3fn": "f16",
    "f8e4m3b11fnuz": "f16",
    "f8e5m2fnuz": "f16",
    "f8e4m3fnuz": "f16",
    "f8e3m4": "f16",
    "s4": "s8",
    "u4": "u8",
    "f4e2m1fn": "f16",
    "f8e8m0fnu": "f32",
}
# XLA's `FloatSupport`: instructions that only pass values on, between computations, devices, or out of tuples.
_HANDING_ON = frozenset(
    (
        *(NO_CODE | CONTROL_FLOW | ASYNC_START | ASYNC_DONE | COLLECTIVE | SIDE_EFFECT),
        *"async-update fusion custom-call rng-bit-generator get-dimension-size".split(),
    )
)
_MOVING = MOVES_ELEMENTS | opcode_set("""bitcast-convert compare concatenate convert convolution dynamic-reshape dynamic-slice
    dynamic-update-slice gather pad ragged-dot reduce-precision scaled-dot scatter select set-dimension-size sort
    stochastic-convert topk""")
# Instructions that a GPU computes in a narrow type: 4-bit integers, then bf16 by architecture (XLA's `GpuFloatSupport`).
_BITS = opcode_set("xor shift-right-arithmetic shift-right-logical count-leading-zeros popcnt")
_BF16_FUNCTIONS: frozenset[Opcode] = frozenset(("exponential", "log"))
_BF16_SINCE_SM_80: frozenset[Opcode] = frozenset(("abs", "maximum", "minimum", "negate"))
_BF16_SINCE_SM_90: frozenset[Opcode] = frozenset(("add", "multiply", "subtract"))
# A permute of slices has these: source, result, and the starts of both.
_OPERANDS_WITH_SLICES = 4


def computes_in(instruction: HloInstruction, narrow: str, sm: int) -> bool:
    """True if a GPU of architecture `sm` (90 for 9.0) computes the instruction in the `narrow` type itself."""
    opcode = instruction.opcode
    if _sends_parts_of_bytes(instruction):
        return False
    if narrow == "f8e4m3b11fnuz":
        # XLA even moves values of this type in the wide one, to which the bits of a reduce-precision do not refer.
        keeps = opcode in ("convert", "bitcast-convert", "reduce-precision")
        return keeps or (opcode in _HANDING_ON and opcode not in COLLECTIVE)
    if opcode in _HANDING_ON or opcode in _MOVING:
        return True
    if opcode == "dot":
        return narrow == "bf16"
    if opcode in _BITS:
        return narrow in ("s4", "u4")
    if opcode == "reduce":
        body = instruction.to_apply
        return all(i.opcode == "parameter" or (i.opcode != "tuple" and computes_in(i, narrow, sm)) for i in body.instructions)
    if narrow != "bf16":
        return False
    if opcode in _BF16_FUNCTIONS:
        return True
    return (sm >= 80 and opcode in _BF16_SINCE_SM_80) or (sm >= 90 and opcode in _BF16_SINCE_SM_90)


def _sends_parts_of_bytes(instruction: HloInstruction) -> bool:
    """True for a collective of elements below 8 bits, unless it has started already or sends slices of an array."""
    if instruction.opcode not in COLLECTIVE - ASYNC_START:
        return False
    if instruction.opcode == "collective-permute" and len(instruction.operands) == _OPERANDS_WITH_SLICES:
        return False
    return any(leaf.is_array and leaf.dtype.bits < 8 for _, leaf in instruction.shape.leaves())
