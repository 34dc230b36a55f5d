"""Which instructions compute in a narrow type as it is, and in which type do the others compute?

XLA's `GpuFloatSupport`. Where its bits matter an integer of 4 bits is never widened: the number of ones of -1 is not that of
the same value in 8 bits.
"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, ASYNC_START, COLLECTIVE, CONTROL_FLOW, MOVES_ELEMENTS, NO_CODE, SIDE_EFFECT

# The type in which what has no support computes, in the order in which the types are looked at.
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
# XLA's `FloatSupport`: what only hands values on, between computations, devices, or out of tuples.
_HANDING_ON = frozenset(
    (
        *(NO_CODE | CONTROL_FLOW | ASYNC_START | ASYNC_DONE | COLLECTIVE | SIDE_EFFECT),
        *"async-update fusion custom-call rng-bit-generator get-dimension-size".split(),
    )
)
_MOVING = MOVES_ELEMENTS | frozenset(
    """bitcast-convert compare concatenate convert convolution dynamic-reshape dynamic-slice dynamic-update-slice gather pad
    ragged-dot reduce-precision scaled-dot scatter select set-dimension-size sort stochastic-convert topk""".split()
)
# What a GPU computes in a narrow type: integers of 4 bits, then bf16 by architecture (XLA's `GpuFloatSupport`).
_BITS = frozenset("xor shift-right-arithmetic shift-right-logical count-leading-zeros popcnt".split())
_BF16_FUNCTIONS = frozenset(("exponential", "log"))
_BF16_SINCE_SM_80 = frozenset(("abs", "maximum", "minimum", "negate"))
_BF16_SINCE_SM_90 = frozenset(("add", "multiply", "subtract"))


def computes_in(instruction: HloInstruction, narrow: str, sm: int) -> bool:
    """True if the instruction takes and returns values of the narrow type as they are on a GPU of architecture `sm`."""
    opcode = instruction.opcode
    if opcode in _HANDING_ON or opcode in _MOVING:
        return True
    if opcode == "dot":
        return narrow == "bf16"
    if opcode in _BITS:
        return narrow in ("s4", "u4")
    if opcode == "reduce":
        body = instruction.called["to_apply"][0]
        return all(i.opcode == "parameter" or (i.opcode != "tuple" and computes_in(i, narrow, sm)) for i in body.instructions)
    if narrow != "bf16":
        return False
    if opcode in _BF16_FUNCTIONS:
        return True
    return (sm >= 80 and opcode in _BF16_SINCE_SM_80) or (sm >= 90 and opcode in _BF16_SINCE_SM_90)
