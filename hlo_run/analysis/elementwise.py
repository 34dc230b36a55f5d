"""Does an instruction compute each element of its result from the operands' elements at the same index?"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction

ELEMENTWISE = frozenset(
    """
    abs acos acosh add and asin asinh atan2 atanh bitcast-convert cbrt ceil clamp compare complex convert copy cosine cosh
    count-leading-zeros divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one logistic map
    maximum minimum mulhi multiply negate not or popcnt power real reduce-precision remainder round-nearest-afz
    round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt
    stochastic-convert subtract tan tanh xor
    """.split()
)


def is_elementwise(instruction: HloInstruction) -> bool:
    """Mirrors XLA's `HloInstruction::IsElementwise`; a `bitcast-convert` that changes the rank is not elementwise."""
    if instruction.opcode == "bitcast-convert":
        return instruction.shape.same_dims(instruction.operands[0].shape)
    return instruction.opcode in ELEMENTWISE
