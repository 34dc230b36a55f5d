"""Expand total-order comparisons of floats to comparisons of their bits as signed integers.

    compare(x, y), direction=LT, order=TOTAL   =>   compare(ordered(x), ordered(y)), direction=LT
        where ordered(x) = select(bits < 0, bits xor 0x7fffffff, bits), bits = s32 bitcast-convert(x)

Kernels only have the partial order. The integers are as wide as the floats; bf16 is converted to f32. XLA's
`comparison_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext

# This type has no sign: its bits are in order.
_UNSIGNED = "f8e8m0fnu"


class ComparisonExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "comparison-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place, including the comparators of sorts."""
        del ctx
        expand(module, ("compare",), _compare_bits, _is_total_order)


def _is_total_order(instruction: HloInstruction) -> bool:
    return instruction.comparison_order == "TOTAL" and instruction.operands[0].shape.dtype.is_float


def _compare_bits(b: HloBuilder, old: HloInstruction, x: HloValue, y: HloValue) -> HloValue:
    if x.shape.element_type == "bf16":
        x, y = b.convert(x, "f32"), b.convert(y, "f32")
    dtype = x.shape.dtype
    if dtype.name == _UNSIGNED:
        bits = [b.bitcast_convert(value, "u8") for value in (x, y)]
        return b.compare(bits[0], bits[1], old.comparison_direction)
    integer = f"s{dtype.bits}"
    shape = x.shape.with_element_type(integer)
    zero, least, most = (
        b.instruction("broadcast", [b.constant(value, integer)], shape, dimensions=())  # XLA broadcasts to scalars too
        for value in (0, -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    )

    def ordered(value: HloValue) -> HloValue:
        bits = b.bitcast_convert(value, integer)
        if not dtype.name.endswith("fnuz"):
            flipped = most ^ bits
        else:
            # These types have no -0: its bit pattern is NaN, the smallest in the order.
            flipped = least - bits
            flipped = b.select(b.compare(bits, least, "EQ"), least, flipped)
        return b.select(b.compare(bits, zero, "LT"), flipped, bits)

    return b.compare(ordered(x), ordered(y), old.comparison_direction)
