"""Compare floats in the total order by comparing their bits as signed integers, since kernels know the partial order only.

    compare(x, y), direction=LT, type=TOTALORDER   =>   compare(ordered(x), ordered(y)), direction=LT
        where ordered(x) = select(bits < 0, bits xor 0x7fffffff, bits), bits = s32 bitcast-convert(x)

Floats below 32 bits are widened first, which keeps their order; 8 bits and less go through f32 as well. XLA's
`comparison_expander.cc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.expansion import expand
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class ComparisonExpander:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "comparison-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place, comparators of sorts too."""
        del ctx
        expand(module, ("compare",), _compare_bits, _is_total_order)


def _is_total_order(instruction: HloInstruction) -> bool:
    return instruction.attrs.get("type") == "TOTALORDER" and instruction.operands[0].shape.dtype.is_float


def _compare_bits(b: HloBuilder, old: HloInstruction, x: HloValue, y: HloValue) -> HloValue:
    integer = "s64" if x.shape.element_type == "f64" else "s32"
    zero, most = (b.constant(value, integer) for value in (0, np.iinfo(integer.replace("s", "int")).max))

    def ordered(value: HloValue) -> HloValue:
        if value.shape.dtype.bits < 32:
            value = b.convert(value, "f32")
        bits = b.bitcast_convert(value, integer)
        return b.select(bits < zero, b.xor(most, bits), bits)

    return b.compare(ordered(x), ordered(y), old.attrs["direction"])
